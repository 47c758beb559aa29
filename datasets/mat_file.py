"""Reading structures from MATLAB files (version 5 to 7.2) that are not trusted.

SciPy reserves what the header of an array claims, follows nesting without end, and ends the process on some damaged
files; so the little that annotations need is read here. The format:
https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from .errors import DataError

LARGEST = 64_000_000
"""Largest size of an unpacked variable, bytes; the annotations of the whole Cars196 have some 10 MB."""

MOST_STRUCTURES = 1_000_000
"""Largest number of structures in an array."""

Value = str | int | float
Order = Literal["little", "big"]

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_STRUCTURE, _TEXT = 2, 4
_NUMBERS = range(6, 16)
_CODES = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_ENCODINGS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}


def read_structures(path: Path, name: str) -> list[dict[str, Value]]:
    """Read a variable that is an array of structures, one per image: text or number by name of the field.

    Fields of another kind, or of several numbers, are left out.

    Raises:
        DataError: If the file is damaged, claims more than it holds, or has no such variable.
    """
    try:
        content = path.read_bytes()
        if len(content) < _HEADER or content[124:128] not in (b"\x00\x01IM", b"\x01\x00MI"):
            raise ValueError("it is not of version 5 to 7.2")
        order: Order = "little" if content[126:128] == b"IM" else "big"
        for array in _variables(content, order):
            if array.name == name and array.kind == _STRUCTURE:
                return array.structures()
        raise ValueError("there is none")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{path}: not a MATLAB file with structures {name!r} ({error})") from None


def _variables(content: bytes, order: Order) -> Iterator[_Array]:
    """All variables of a file; a compressed one is unpacked, up to the limit."""
    place = _HEADER
    while place < len(content):
        kind, data, place = _element(content, place, order)
        if kind == _COMPRESSED:
            unpacking = zlib.decompressobj()
            data = unpacking.decompress(data, LARGEST)
            if unpacking.unconsumed_tail:
                raise ValueError(f"a variable unpacks to more than {LARGEST // 10**6} MB")
            kind, data, _ = _element(data, 0, order)
        if kind != _MATRIX:
            raise ValueError(f"an element of type {kind} in the place of a variable")
        yield _Array(data, order)


class _Array:
    """Header of an array, from the content of its element; values are read when they are asked for."""

    def __init__(self, data: bytes, order: Order) -> None:
        self._data, self._order = data, order
        _, flags, place = _element(data, 0, order)
        _, sizes, place = _element(data, place, order)
        _, name, self._place = _element(data, place, order)
        self.kind = int.from_bytes(flags[:4], order) & 255
        self.count = math.prod(int.from_bytes(sizes[i : i + 4], order) for i in range(0, len(sizes), 4))
        self.name = name.decode("latin-1")

    def structures(self) -> list[dict[str, Value]]:
        """Structures in an array of them."""
        _, length, place = _element(self._data, self._place, self._order)
        _, joined, place = _element(self._data, place, self._order)
        size = int.from_bytes(length, self._order)
        if not 0 < size <= len(joined) or len(joined) % size:
            raise ValueError("names of fields that do not fit their length")
        names = [joined[i : i + size].split(b"\0")[0].decode("latin-1") for i in range(0, len(joined), size)]
        if len(set(names)) < len(names):
            raise ValueError("a field is there twice")
        if self.count > MOST_STRUCTURES or self.count * len(names) * 8 > len(self._data):
            raise ValueError(f"an array of {self.count} structures in {len(self._data)} bytes")
        rows: list[dict[str, Value]] = []
        for _ in range(self.count):
            row: dict[str, Value] = {}
            for name in names:
                _, data, place = _element(self._data, place, self._order)
                value = _Array(data, self._order)._value() if data else None
                if value is not None:
                    row[name] = value
            rows.append(row)
        return rows

    def _value(self) -> Value | None:
        """The text or the one number that it is, or None."""
        if self.kind == _TEXT:
            kind, data, _ = _element(self._data, self._place, self._order)
            encoding = _ENCODINGS.get(kind, "")
            if not encoding:
                raise ValueError(f"a text of type {kind}")
            return data.decode(encoding + ("" if encoding in ("latin-1", "utf-8") else f"-{self._order[0]}e"))
        if self.kind in _NUMBERS and self.count == 1:
            kind, data, _ = _element(self._data, self._place, self._order)
            if kind not in _CODES:
                raise ValueError(f"a number of type {kind}")
            number: int | float = struct.unpack(("<" if self._order == "little" else ">") + _CODES[kind], data)[0]
            return number
        return None


def _element(data: bytes, place: int, order: Order) -> tuple[int, bytes, int]:
    """Type and bytes of a data element, and where the next one starts."""
    if place + 8 > len(data):
        raise ValueError("truncated")
    word = int.from_bytes(data[place : place + 4], order)
    if word >> 16:  # up to four bytes in the tag itself
        kind, size, start, step = word & 0xFFFF, word >> 16, place + 4, 8
        if size > 4:
            raise ValueError("a short element of more than 4 bytes")
    else:
        kind, size, start = word, int.from_bytes(data[place + 4 : place + 8], order), place + 8
        step = 8 + (size if kind == _COMPRESSED else -(-size // 8) * 8)
    if start + size > len(data):
        raise ValueError("truncated")
    return kind, data[start : start + size], place + step


__all__ = ["Value", "read_structures"]
