"""Archives: the records of a results folder in one compressed file, as a repository holds them and others send them.

An archive is a tar file of record files in their folders. A results folder reads archived records as if each had a file
of its own; a file of the same place goes first.
"""

from __future__ import annotations

import io
import lzma
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

from .files import DamagedFile, write_atomic
from .marker import MARKER

ARCHIVE = ".tar.xz"
"""End of the name of an archive."""

FLOAT16 = ".float16.xz"
"""End of the name of a file with the clean test embeddings of a test in float16; before it is ``test-`` and the id."""

MOST_BYTES = 1 << 29
"""Largest size of an archive when it is unpacked."""

_MEMORY = 1 << 28
_PART = "[^/]{1,200}"
_RECORD = r"(train|test|rescore)-[0-9a-f]{16}/record|study-[0-9a-f]{16}/(study|trial-[0-9]{4})"
PLACE = re.compile(rf"{_PART}/{_PART}/{_PART}/({_RECORD})\.json|experiments/[0-9a-f]{{8}}\.toml|{re.escape(MARKER)}")
"""Places of the files that an archive may have."""


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
    """Write the contents of some files by their place as an archive; the same contents give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=6) as tar:
        for place, text in sorted(texts.items()):
            member = tarfile.TarInfo(place)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    write_atomic(path, buffer.getvalue())
