"""Packs: files with all records of a cell, compressed, as a repository holds them.

A pack lies in the folder of its cell (protocol, data set, method) and is named after its contributor. It has a line per
record: the place of the record in the folder, its provenance, and the record, separated by tabs. A results folder reads
packed records as if each had a file of its own; a file of the same place goes first.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from .files import DamagedFile, write_atomic
from .strict_json import read_json

PACK = ".records.xz"
"""End of the name of a pack; before it is its label, made of the contributor's name."""

FLOAT16 = ".float16.xz"
"""End of the name of a file with the clean test embeddings of a test in float16; before it is ``test-`` and the id."""

MOST_BYTES = 1 << 29
"""Largest size of a pack when it is unpacked."""

MOST_TEXT = 200
"""Largest length of a text about the origin of a record, such as the name of a contributor."""

_MEMORY = 1 << 28
_PLACE = re.compile(r"((train|test|rescore)-[0-9a-f]{16}/record|study-[0-9a-f]{16}/(study|trial-[0-9]{4}))\.json")

Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=MOST_TEXT)]


class Provenance(BaseModel):
    """Origin of a packed record.

    Attributes:
        by: Who ran it.
        where: Machine that it ran on.
        commit: Git commit of the code; empty if it is not known.
        float16: SHA-256 of the file with its embeddings in float16; empty if there is none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: Text
    where: Text
    commit: Text
    float16: Text = ""


class Packed(NamedTuple):
    """A line of a pack.

    Attributes:
        provenance: Who made the record, where and with which commit.
        text: The record as JSON.
    """

    provenance: Provenance
    text: bytes


def label_of(by: str) -> str:
    """Label of the packs of a contributor: the name in lower-case letters and digits.

    Example:
        >>> label_of("Jane Doe, Lab 3")
        'jane_doe_lab_3'
    """
    return re.sub(r"[^a-z0-9]+", "_", by.lower()).strip("_")[:40]


def unpacked(path: Path) -> bytes:
    """Content of an .xz file.

    Raises:
        DamagedFile: If it is damaged, or unpacks to more than :data:`MOST_BYTES`.
    """
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


def read_pack(path: Path) -> dict[str, Packed]:
    """Lines of a pack by the place of the record in the folder of the cell, such as ``train-ID/record.json``.

    The records themselves are not checked.

    Raises:
        DamagedFile: If the file is damaged, or a line is not that of a pack.
    """
    lines: dict[str, Packed] = {}
    known: dict[bytes, Provenance] = {}
    for number, line in enumerate(unpacked(path).splitlines(), 1):
        parts = line.split(b"\t")
        try:
            place = parts[0].decode("ascii")
            if len(parts) != 3 or not _PLACE.fullmatch(place) or place in lines:
                raise ValueError
            if parts[1] not in known:
                known[parts[1]] = Provenance.model_validate(read_json(parts[1]))
        except (ValueError, ValidationError):
            raise DamagedFile(f"{path} is damaged: line {number} is not that of a record") from None
        lines[place] = Packed(known[parts[1]], parts[2])
    return lines


def write_pack(path: Path, lines: Mapping[str, Packed]) -> None:
    """Write a pack; the same lines give the same bytes.

    Args:
        path: File whose name ends with :data:`PACK`.
        lines: Records with their provenance, by place in the folder of the cell.
    """
    write_atomic(path, lzma.compress(b"".join(_texts(lines)), preset=6))


def _texts(lines: Mapping[str, Packed]) -> Iterable[bytes]:
    for place, line in sorted(lines.items()):
        yield b"\t".join([place.encode(), line.provenance.model_dump_json().encode(), line.text]) + b"\n"
