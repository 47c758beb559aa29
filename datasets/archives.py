"""Unpacking downloaded archives and copying downloaded folders, whoever made them.

Only regular files and folders are taken, below the folder that was named, and up to a limit of size. An archive that is
truncated or damaged is refused. Whoever calls this unpacks to a temporary folder, which counts only once it is whole.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import shutil
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from .files import DataError, check_regular

SUFFIXES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
"""Ends of the names of archives."""

MAX_BYTES = 200 * 10**9
"""Most bytes that an archive may unpack to."""

FREE_BYTES = 10**9
"""Bytes that a small archive may unpack to; a larger one may grow to :data:`MAX_RATIO` times its size."""

MAX_RATIO = 50
"""Largest ratio of the unpacked to the packed size. Photographs have about 1, text about 4."""

BLOCK = 4096
"""Bytes that a file or folder counts at least, which is its block on a disk: a limit of size is one of number too."""

_HEADERS = 1 << 16
"""Most bytes of the headers of one member of a tar file, with its name."""

_PACKED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
"""Readers of packed files by their first bytes."""

Member = tuple[str, int, IO[bytes] | None]
"""Name, bytes and content of a member of an archive; a folder has no content."""

_REMEDY = "unpack it yourself, look at it, and import the folder"


class EncryptedArchive(DataError):
    """An archive that needs a password."""


def unpacked_limit(size: int) -> int:
    """Most bytes that a download of some size may unpack to, unless the user allows more.

    Example:
        >>> unpacked_limit(10**6), unpacked_limit(10**9), unpacked_limit(10**11)
        (1000000000, 50000000000, 200000000000)
    """
    return min(MAX_BYTES, max(FREE_BYTES, MAX_RATIO * size))


def take(source: Path, folder: Path, limit: int | None = None) -> None:
    """Unpack an archive or copy a folder, then unpack the archives inside it, but not those inside these.

    An inner archive with a password is left as it is: releases have such parts, which no data set here needs.
    """
    if source.is_dir():
        left = unpacked_limit(copy_folder(source, folder)) if limit is None else limit
    else:
        left = unpacked_limit(source.stat().st_size) if limit is None else limit
        left -= unpack(source, folder, left)
    inner = [path for path in folder.rglob("*") if path.name.lower().endswith(SUFFIXES) and path.is_file()]
    for path in sorted(inner):
        with contextlib.suppress(EncryptedArchive):
            left -= _unpack(path, path.parent, left, f"{source}: {path.relative_to(folder)}")


def unpack(archive: Path, folder: Path, limit: int | None = None) -> int:
    """Unpack a zip file, or a tar file with any compression that Python reads, and return the bytes unpacked.

    The content tells which it is. Files that are there already are left alone. After an error, the folder contains what
    was unpacked so far. Each member counts :data:`BLOCK` bytes at least; the limit is :func:`unpacked_limit` of the
    file's size if not given.

    Raises:
        EncryptedArchive: If it needs a password.
        DataError: If it is not an archive, is truncated or damaged, unpacks to more than the limit, or contains a link,
            a device, a name outside of the folder or a name twice.
    """
    check_regular(archive)
    return _unpack(archive, folder, unpacked_limit(archive.stat().st_size) if limit is None else limit, str(archive))


def _unpack(archive: Path, folder: Path, limit: int, shown: str) -> int:
    spent, places = 0, set[Path]()

    def spend(size: int) -> None:
        nonlocal spent
        spent += max(size, BLOCK)
        if spent > limit:
            raise DataError(f"unpacks to more than {limit / 1e9:g} GB; if it should, use --max-unpacked GB")

    try:
        with archive.open("rb") as file:
            folder.mkdir(parents=True, exist_ok=True)
            for name, size, content in _members(file, spend):
                parts = [part for part in name.split("/") if part not in ("", ".")]
                if name.startswith("/") or ".." in parts or "\0" in name:
                    raise DataError(f"the member {name!a} is outside of the folder; {_REMEDY}")
                place = folder.joinpath(*parts)
                if place in places:
                    raise DataError(f"two members are named {name!a}; {_REMEDY}")
                spend(size)
                (place if content is None else place.parent).mkdir(parents=True, exist_ok=True)
                if content is None:
                    continue
                places.add(place)
                if place.exists():
                    continue
                with place.open("xb") as out:
                    shutil.copyfileobj(content, out)
                    if out.tell() != size:
                        raise DataError(f"the member {name!a} is damaged or truncated; download it again")
    except DataError as error:
        raise type(error)(f"{shown}: {error}") from None
    except Exception as error:  # readers raise errors of many kinds on damaged files
        raise DataError(f"{shown}: {_reason(error)}") from None
    return spent


def _members(file: IO[bytes], spend: Callable[[int], None]) -> Iterator[Member]:
    head = file.read(6)
    file.seek(0)
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        return _members_of_zip(file)
    opened = next((opened for magic, opened in _PACKED.items() if head.startswith(magic)), None)
    return _members_of_tar(opened(file) if opened else file, spend)


def _members_of_zip(file: IO[bytes]) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if any(info.flag_bits & 1 for info in members):
            raise EncryptedArchive(f"needs a password; {_REMEDY}")
        for info in members:
            _check_kind(info.filename, stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR))
            with archive.open(info) as content:
                yield (info.filename, 0, None) if info.is_dir() else (info.filename, info.file_size, content)


def _members_of_tar(file: IO[bytes], spend: Callable[[int], None]) -> Iterator[Member]:
    limited = _Limited(file)
    with tarfile.open(fileobj=cast(IO[bytes], limited), mode="r:") as archive:
        while (member := archive.next()) is not None:
            limited.left = sys.maxsize
            _check_kind(member.name, member.isdir() or member.isreg())
            yield member.name, member.size, archive.extractfile(member)
            limited.left = _HEADERS  # of the next member
    # A truncated or damaged archive ends the loop like a whole one; only a whole one ends with blocks of zeros.
    if limited.last != bytes(tarfile.BLOCKSIZE):
        raise DataError(f"truncated or damaged after {limited.tell() / 1e6:.3g} MB; download it again")
    while block := file.read(1 << 20):  # the checksum of the compressed data is at its end
        spend(len(block))


def _check_kind(name: str, fits: bool) -> None:
    if not fits:
        raise DataError(f"the member {name!a} is a link or a device, not a file or folder; {_REMEDY}")


class _Limited:
    """A file that remembers what was read last, and of which a limited number of bytes may be read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell
        self.left, self.last = _HEADERS, b""

    def read(self, size: int) -> bytes:
        """Read so many bytes; a DataError if they are more than are left."""
        self.left -= size
        if self.left < 0:
            raise DataError(f"a name of more than {_HEADERS} characters; {_REMEDY}")
        self.last = self._file.read(size)
        return self.last


def copy_folder(source: Path, folder: Path) -> int:
    """Copy a folder of regular files and folders, and return the bytes copied; anything else in it is refused first."""
    paths = [Path(where, name) for where, folders, files in os.walk(source) for name in (*files, *folders)]
    for path in sorted(paths):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            raise DataError(
                f"{path} is a link, which an import does not copy; replace it by what it points to, or leave the images"
                " where they are and use --data-root"
            )
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise DataError(f"{path} is a pipe, device or socket; remove it")
    try:
        shutil.copytree(source, folder, symlinks=True)
    except shutil.Error as error:  # of every file; the first tells enough
        name, _, reason = error.args[0][0]
        raise DataError(f"{name}: cannot be copied ({reason})") from None
    except OSError as error:
        raise DataError(f"{source}: cannot be copied ({error.strerror})") from None
    return sum(path.stat().st_size for path in paths if path.is_file())


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())[:200] or type(error).__name__  # it may quote the file
    if isinstance(error, EOFError) or text == "unexpected end of data":
        return "truncated; download it again"
    if isinstance(error, zipfile.BadZipFile):
        return f"a damaged or truncated zip file ({text}); download it again"
    return f"not an archive that can be unpacked ({text})"
