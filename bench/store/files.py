"""Files that are written as a whole or not at all, alone or in an archive, and read only if they are whole.

An archive is a tar file of record files in their folders. A results folder reads archived records as if each had a file
of its own; a file of the same place goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
import os
import re
import secrets
import socket
import struct
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import UserError

MARKER = "store.json"
"""File with the schema and the versions of a results folder."""

DRIVERS = ".drivers"
"""Folder with a claim per driver, one of the driver that has the folder to itself, and one on the tables."""

ARCHIVE = ".tar.xz"
"""End of the name of an archive."""

COPY = ".queries.xz"
"""End of the name of a compressed file of queries of an archived test; before it is ``test-`` and the id."""

MOST_BYTES = 1 << 29
"""Largest size of an archive when it is unpacked."""

_MEMORY = 1 << 28
_PART = "[^/]{1,200}"
_RECORD = r"(train|test|rescore)-[0-9a-f]{16}/record|study-[0-9a-f]{16}/(study|trial-[0-9]{4})"
PLACE = re.compile(rf"{_PART}/{_PART}/{_PART}/({_RECORD})\.json|experiments/[0-9a-f]{{8}}\.toml|{re.escape(MARKER)}")
"""Places of the files that an archive may have."""


LEFT_FOR = 600.0
"""Age in seconds from which a temporary file or a claim that nobody renews is a leftover of a dead process."""

_TEMPORARY = re.compile(r"\..+\.part|\..+\.[a-z0-9_]{8}|\.checkpoint\.pt\.\d+")  # the last two: of earlier versions
_WRITER = re.compile(r".+\.([A-Za-z0-9-]+)-(\d+)-[0-9a-f]{8}\.part")
_SEAL = hashlib.sha256().digest_size
_digests: dict[str, tuple[State | None, str]] = {}


class DamagedFile(UserError):
    """Error for a file whose content is not what was written, or that belongs to another training or test."""


def host() -> str:
    """Name of this machine and of its table of processes, which a container has one of, fit for the name of a file."""
    name = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:64] or "host"
    with contextlib.suppress(OSError):
        name += f"-{Path('/proc/self/ns/pid').stat().st_ino:x}"
    return name


def process_name() -> str:
    """Name that no other process has, on this machine or another: host, process number and random digits."""
    return f"{host()}-{os.getpid()}-{secrets.token_hex(4)}"


@contextlib.contextmanager
def atomic_file(path: Path, sync: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file for writing, which replaces ``path`` at the end: a reader sees all of it or none of it.

    ``sync`` flushes it to disk, so that a power cut loses nothing either. An OSError names ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{process_name()}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        part.chmod(0o644)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, data: bytes, sync: bool = True) -> None:
    """Write a file as :func:`atomic_file` does."""
    with atomic_file(path, sync) as file:
        file.write(data)


def remove_leftovers(folder: Path, now: float) -> None:
    """Remove the temporary files that killed processes have left in a folder and its subfolders.

    Those of this host's dead processes go at once; others when they are :data:`LEFT_FOR` seconds old by ``now``,
    seconds since 1970 on the clock of the file system, because a living process may be writing them.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            if _TEMPORARY.fullmatch(name):
                path = Path(place, name)
                with contextlib.suppress(OSError):
                    if _is_left(path, now):
                        path.unlink()


def _is_left(path: Path, now: float) -> bool:
    """Check if a temporary file is that of a dead process."""
    writer = _WRITER.fullmatch(path.name)
    if writer is None or writer[1] != host():
        return now - path.stat().st_mtime > LEFT_FOR
    return not is_running(int(writer[2]))


def is_running(pid: int) -> bool:
    """Check if a process of this machine lives."""
    try:
        with contextlib.suppress(PermissionError):  # another user's process
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    return True


def sha256(data: bytes) -> str:
    """SHA-256 of some bytes, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


State = tuple[int, int, int, int]
"""Size, times and inode of a file, some of which change if it is written."""


def file_state(path: Path) -> State | None:
    """State of a file; None if there is no such file."""
    try:
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal; computed again only if its size, time or inode has changed."""
    state = file_state(path)
    known = _digests.get(str(path))
    if known is None or known[0] != state:
        with path.open("rb") as file:
            known = (state, hashlib.file_digest(file, "sha256").hexdigest())
        _digests[str(path)] = known
    return known[1]


class _Sealing:
    """The writer of a sealed file: computes the digest of what passes through it, and keeps an error of the disk."""

    def __init__(self, file: BinaryIO, owner: str) -> None:
        self._file = file
        self.digest = hashlib.sha256(owner.encode())
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            self.digest.update(data)
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


@contextlib.contextmanager
def sealed_file(path: Path, owner: str) -> Iterator[Any]:
    """Open a temporary file for writing, which gets a digest of owner and content and replaces ``path`` at the end.

    It is not flushed to disk: a power cut may damage it, which :func:`read_sealed` notices. A failure to write is an
    OSError, even if the caller's code turned it into another error.
    """
    with atomic_file(path, sync=False) as file:
        sealing = _Sealing(file, owner)
        try:
            yield sealing
        except BaseException:
            if sealing.error is not None:
                raise sealing.error from None
            raise
        file.write(sealing.digest.digest())


def read_sealed(path: Path, owner: str) -> bytes:
    """Content of a file that :func:`sealed_file` has written with this owner, after a check of its digest."""
    data = path.read_bytes()
    content, seal = data[:-_SEAL], data[-_SEAL:]
    digest = hashlib.sha256(owner.encode())
    digest.update(content)
    if digest.digest() != seal:
        raise DamagedFile(f"{path} is damaged, or not of {owner}")
    return content


def read_json(text: str | bytes) -> Any:
    """Value of a JSON text; a ValueError if a key is there twice, a number is not finite, or it is nested too deeply.

    Example:
        >>> read_json('{"a": [1, 2]}')
        {'a': [1, 2]}
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in made if keys.count(key) > 1)!r} is there more than once")
    return made


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def file_texts(data: bytes) -> dict[str, str]:
    """Texts in the header of the content of a safetensors file."""
    (length,) = struct.unpack("<Q", data[:8])
    held = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return {str(key): str(value) for key, value in held.items()}


def unpacked(path: Path) -> bytes:
    """Content of an .xz file; a DamagedFile if it is damaged, or unpacks to more than :data:`MOST_BYTES`."""
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
    try:
        data = unpacker.decompress(path.read_bytes(), max_length=MOST_BYTES + 1)
    except (lzma.LZMAError, EOFError):
        raise DamagedFile(f"{path} is damaged") from None
    if len(data) > MOST_BYTES:
        raise DamagedFile(f"{path} unpacks to more than {MOST_BYTES >> 20} MiB")
    if not unpacker.eof or unpacker.unused_data:
        raise DamagedFile(f"{path} is damaged: it ends too early or too late")
    return data


def read_archive(path: Path) -> dict[str, bytes]:
    """Contents of the files of an archive by their place in the results folder; the records are not checked.

    Raises:
        DamagedFile: If the archive is damaged, or has anything else than the files of records.
    """
    data = unpacked(path)
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                text = data[member.offset_data : member.offset_data + member.size]
                if member.type != tarfile.REGTYPE or member.issparse() or len(text) != member.size:
                    raise DamagedFile(f"{path} is damaged: {member.name!a} is no whole file")
                if not PLACE.fullmatch(member.name) or member.name in found:
                    raise DamagedFile(f"{path} is damaged: {member.name!a} is not the place of a record")
                found[member.name] = text
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from None
    return found


def write_archive(path: Path, texts: Mapping[str, bytes]) -> None:
    """Write the contents of some files by their place as an archive; the same contents give the same bytes.

    Files of one name are neighbours, as they are alike: that and the large dictionary save a third. A UserError if it
    would unpack to more than is read.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:") as tar:
        for place, text in sorted(texts.items(), key=lambda item: (item[0].rpartition("/")[2], item[0])):
            member = tarfile.TarInfo(place)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    if buffer.tell() > MOST_BYTES:
        raise UserError(f"{path}: more than {MOST_BYTES >> 20} MiB unpacked; give each data set a results folder")
    write_atomic(path, lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))
