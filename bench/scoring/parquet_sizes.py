"""Sizes of the columns of a Parquet file, added up from its headers without unpacking any page.

A page of a few bytes may stand for billions of equal values, and its own header is the only place that says so. The
headers are Thrift structures in the compact protocol (https://parquet.apache.org/docs/file-format/). They are read here
because pyarrow reserves what they claim, and ends the process on some that are damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..errors import BadInput

LONGEST_HEADER = 1 << 16
"""Longest header of a page that is read, bytes; most have less than 100."""

MOST_STRUCTURES = 1_000_000
"""Largest number of structures in one header."""

DEEPEST_SCHEMA = 16
"""Largest number of levels of nested columns."""

WIDTHS = (1, 8, 8, 16, 8, 8, 64, 64)
"""Bytes of a value in memory, by number of its type in the file; of a text, those besides its characters."""

TEXT, FIXED = 6, 7
"""Types of the file: a text, and bytes of a fixed length."""

DELTA_BYTE_ARRAY = 7
"""The encoding of texts by their differences, whose size is known only after unpacking: it is refused."""

_MAGIC = b"PAR1"
_DATA, _DATA_V2 = 0, 3

Fields = dict[int, Any]
"""Fields of a Thrift structure by their number."""


@dataclass(frozen=True)
class Leaf:
    """A column of values, which may be nested in another.

    Attributes:
        column: Name of the column of the table.
        path: Names from that of the column down to its own, joined by dots.
        kind: Number of its type.
        width: Bytes of a value in memory.
    """

    column: str
    path: str
    kind: int
    width: int


@dataclass(frozen=True)
class Chunk:
    """The pages of a column of values in one row group."""

    leaf: Leaf
    rows: int
    values: int
    start: int
    length: int


@dataclass(frozen=True)
class Footer:
    """Contents of a file by its footer: the names of its columns, and all parts of them."""

    columns: tuple[str, ...]
    chunks: tuple[Chunk, ...]


def read_footer(file: BinaryIO) -> Footer:
    """Read the footer of a file.

    Raises:
        BadInput: If the footer is damaged.
    """
    whole = file.seek(0, 2)
    file.seek(max(0, whole - 8))
    length, magic = int.from_bytes(file.read(4), "little"), file.read(4)
    if magic != _MAGIC or length > whole - 12:
        raise BadInput("not a whole Parquet file: truncated or damaged, or encrypted")
    file.seek(whole - 8 - length)
    try:
        footer = _Thrift(file.read(length)).structure()
        columns, leaves = _schema(footer[2])
        return Footer(tuple(columns), tuple(chunk for group in footer[4] for chunk in _chunks(group, leaves)))
    except (KeyError, TypeError, IndexError, AttributeError, UnicodeDecodeError):
        raise BadInput("not a whole Parquet file: its footer is damaged") from None


def _schema(schema: list[Fields]) -> tuple[list[str], list[Leaf]]:
    """Columns of the table and of values in their order: a tree, listed from its root with the branches in turn."""
    columns: list[str] = []
    leaves: list[Leaf] = []
    open_branches: list[tuple[int, str]] = [(schema[0][5], "")]
    for element in schema[1:]:
        while open_branches[-1][0] == 0:
            open_branches.pop()
        left, above = open_branches.pop()
        open_branches.append((left - 1, above))
        name = element[4].decode()
        path = f"{above}.{name}" if above else name
        if len(open_branches) == 1:
            columns.append(name)
        if element.get(5, 0) > 0:
            open_branches.append((element[5], path))
            if len(open_branches) > DEEPEST_SCHEMA:
                raise BadInput(f"its columns are nested more than {DEEPEST_SCHEMA} levels deep")
        else:
            kind = element[1]
            width = WIDTHS[kind] + (max(0, element.get(2, 0)) if kind == FIXED else 0)
            leaves.append(Leaf(columns[-1], path, kind, width))
    return columns, leaves


def _chunks(group: Fields, leaves: list[Leaf]) -> Iterator[Chunk]:
    if len(group[1]) != len(leaves):
        raise BadInput(f"a row group has {len(group[1])} of {len(leaves)} columns; damaged")
    for leaf, described in zip(leaves, group[1]):
        fields = described[3]
        if fields[1] != leaf.kind:
            raise BadInput(f"{leaf.column} has two types; damaged")
        start, dictionary, rows, values, length = fields[9], fields.get(11, 0), group[3], fields[5], fields[7]
        if not all(isinstance(number, int) for number in (start, dictionary, rows, values, length)):
            raise TypeError
        yield Chunk(leaf, rows, values, dictionary if 0 < dictionary < start else start, length)


def unpacked_size(file: BinaryIO, chunk: Chunk) -> int:
    """Size in memory of one part of a column: its uncompressed pages and its values, bytes.

    Args:
        file: The whole file.
        chunk: The part of the column.

    Raises:
        BadInput: If a header is damaged, or a page has an encoding that tells nothing about its size.
    """
    name, values, unpacked = chunk.leaf.column, 0, 0
    start, end = chunk.start, chunk.start + chunk.length
    if min(start, chunk.length) < 0 or end > file.seek(0, 2):
        raise BadInput(f"{name} claims more data than the file holds; damaged")
    while start < end:
        file.seek(start)
        header = _Thrift(file.read(min(LONGEST_HEADER, end - start)))
        fields = header.structure()
        kind, claimed, packed = (fields.get(number) for number in (1, 2, 3))
        if not (isinstance(claimed, int) and isinstance(packed, int) and min(claimed, packed) >= 0):
            raise BadInput(f"{name} has a page without a size; damaged")
        start += header.place + packed
        if start > end:
            raise BadInput(f"{name} has a page that claims more data than the file holds; damaged")
        unpacked += claimed
        if kind in (_DATA, _DATA_V2):
            values += _values(fields, name)
    if values != chunk.values or not 0 <= chunk.rows <= values:
        raise BadInput(f"{name} has {values} values for {chunk.rows} rows; damaged")
    return unpacked + values * chunk.leaf.width


def _values(page: Fields, name: str) -> int:
    data = page.get(5 if page[1] == _DATA else 8)
    count, encoding = (data.get(1), data.get(2 if page[1] == _DATA else 4)) if isinstance(data, dict) else (None, None)
    if not isinstance(count, int) or count < 0:
        raise BadInput(f"{name} has a page without a number of values; damaged")
    if encoding == DELTA_BYTE_ARRAY:
        raise BadInput(f"{name} has the encoding DELTA_BYTE_ARRAY, which is not read; write it with another")
    return count


class _Thrift:
    """A structure in Thrift's compact protocol, read from the start of some bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._structures = 0
        self.place = 0

    def structure(self, depth: int = 0) -> Fields:
        """The fields of a structure: integers, bytes, lists and structures; others are left out."""
        self._structures += 1
        if depth > 16 or self._structures > MOST_STRUCTURES:
            raise BadInput("a header is nested too deeply or too long; damaged")
        fields: Fields = {}
        number = 0
        while (byte := self._byte()) != 0:
            number = number + (byte >> 4) if byte >> 4 else self._integer()
            fields[number] = None if byte & 15 in (1, 2) else self._value(byte & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 8:
            return self._bytes(self._varint())
        if kind == 12:
            return self.structure(depth + 1)
        if kind in (9, 10):
            if depth > 16:
                raise BadInput("a header is nested too deeply; damaged")
            byte = self._byte()
            count = byte >> 4 if byte >> 4 < 15 else self._varint()
            return [self._value(byte & 15, depth + 1) for _ in range(count)]
        if kind in (1, 2, 3):  # a boolean in a list is a byte
            return self._byte()
        if kind == 7:
            return self._bytes(8)
        raise BadInput("a header is damaged")

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, count: int) -> bytes:
        self.place += count
        if self.place > len(self._data):
            raise BadInput("a header is truncated; damaged")
        return self._data[self.place - count : self.place]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise BadInput("a header is damaged")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
