"""Sizes of the pages of a Parquet file, added up from their headers without unpacking any.

A page of a few bytes may stand for billions of equal values, and its own header is the only place that says so. Headers
are Thrift structures in the compact protocol (https://parquet.apache.org/docs/file-format/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

from ..errors import BadInput

LONGEST_HEADER = 1 << 16
"""Longest header of a page that is read, bytes; most have less than 100."""

DELTA_BYTE_ARRAY = 7
"""The encoding of texts by their differences, whose size is known only after unpacking: it is refused."""

_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3

Fields = dict[int, Any]
"""Integers and structures of a Thrift structure by their number."""


@dataclass(frozen=True)
class Pages:
    """Sizes of the pages of a column in one row group.

    Attributes:
        values: Number of values, nulls and empty lists included.
        unpacked: Size of the uncompressed pages, bytes.
    """

    values: int
    unpacked: int


def read_pages(file: BinaryIO, start: int, length: int) -> Pages:
    """Add up the pages of a column in one row group.

    Args:
        file: The whole file.
        start: Offset of the first page.
        length: Bytes of all pages with their headers.

    Raises:
        BadInput: If a header is damaged, or a page has an encoding that tells nothing about its size.
    """
    values = unpacked = 0
    end = start + length
    while start < end:
        file.seek(start)
        header = _Header(file.read(min(LONGEST_HEADER, end - start)))
        fields = header.structure()
        unpacked_size, packed_size = fields.get(2, -1), fields.get(3, -1)
        start += header.place + packed_size
        if packed_size < 0 or unpacked_size < 0 or start > end:
            raise BadInput("a page claims more data than the file holds; damaged")
        unpacked += unpacked_size
        kind = fields.get(1)
        if kind in (_DATA, _DATA_V2):
            data = fields.get(5 if kind == _DATA else 8, {})
            count, encoding = data.get(1, -1), data.get(2 if kind == _DATA else 4)
            if count < 0:
                raise BadInput("a page without a number of values; damaged")
            if encoding == DELTA_BYTE_ARRAY:
                raise BadInput("a column has the encoding DELTA_BYTE_ARRAY, which is not read; write it with another")
            values += count
    return Pages(values, unpacked)


class _Header:
    """A Thrift structure in the compact protocol, read from the start of some bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def structure(self, depth: int = 0) -> Fields:
        if depth > 8:
            raise BadInput("a page header is nested too deeply; damaged")
        fields: Fields = {}
        number = 0
        while (byte := self._byte()) != 0:
            number = number + (byte >> 4) if byte >> 4 else self._integer()
            value = self._value(byte & 15, depth)
            if value is not None:
                fields[number] = value
        return fields

    def _value(self, kind: int, depth: int) -> int | Fields | None:
        """A value, or None for those that only have to be skipped."""
        if kind == _STRUCT:
            return self.structure(depth + 1)
        if kind in _INTEGERS:
            return self._integer()
        if kind in _LISTS:
            byte = self._byte()
            for _ in range(byte >> 4 if byte >> 4 < 15 else self._varint()):
                self._value(_BYTE if byte & 15 in _BOOLEANS else byte & 15, depth + 1)
        elif kind in (_BYTE, _DOUBLE, _BINARY):
            self._skip({_BYTE: 1, _DOUBLE: 8}.get(kind) or self._varint())
        elif kind not in _BOOLEANS:
            raise BadInput("a page header is damaged")
        return None

    def _byte(self) -> int:
        self._skip(1)
        return self._data[self.place - 1]

    def _skip(self, count: int) -> None:
        self.place += count
        if self.place > len(self._data):
            raise BadInput("a page header is damaged")

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise BadInput("a page header is damaged")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
