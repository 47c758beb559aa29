"""Reading MATLAB files (version 5) that are not trusted.

SciPy reserves what the header of an array claims, and follows nesting without end. Here the headers are read first:
https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

from .errors import DataError

LARGEST = 256_000_000
"""Largest size of an unpacked variable, bytes; the annotations of the whole Cars196 have some 10 MB."""

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_CELL, _STRUCTURE, _TEXT = 1, 2, 4
_NUMBERS = range(6, 16)
_DEEPEST = 4


def read_structures(path: Path, name: str) -> list[dict[str, Any]]:
    """A variable that is an array of structures of texts and numbers, one per image.

    Args:
        path: File of MATLAB, version 5 to 7.2.
        name: Name of the variable.

    Returns:
        The structures in the order of the array: text or one number by name of its field.

    Raises:
        DataError: If the file is damaged, or has no such variable.
    """
    from scipy.io import loadmat

    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    try:
        _check(content)
        rows = loadmat(path, variable_names=[name])[name].reshape(-1)
        return [{field: row[field].item() for field in rows.dtype.names if row[field].size == 1} for row in rows]
    except MemoryError:
        raise
    except Exception as error:  # SciPy's readers raise many kinds on a file that is no .mat file
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: not a MATLAB file with structures {name!r} ({reason})") from None


def _check(content: bytes) -> None:
    """Check every variable; a compressed one is unpacked for this, one at a time.

    Raises:
        ValueError: If one claims more than it holds, unpacks to too much, or is of a kind that is not read.
    """
    if len(content) < _HEADER or content[124:128] not in (b"\x00\x01IM", b"\x01\x00MI"):
        raise ValueError("not of version 5 to 7.2")
    order: Any = "little" if content[126:128] == b"IM" else "big"
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
        _check_array(data, order, 0)


def _check_array(data: bytes, order: Any, depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    _, flags, place = _element(data, 0, order)
    _, sizes, place = _element(data, place, order)
    _, _, place = _element(data, place, order)  # its name
    kind = int.from_bytes(flags[:4], order) & 255
    count = math.prod(int.from_bytes(sizes[i : i + 4], order) for i in range(0, len(sizes), 4))
    if kind not in (_CELL, _STRUCTURE, _TEXT, *_NUMBERS):
        raise ValueError(f"an array of class {kind}, neither numbers, texts, cells nor structures")
    if kind == _STRUCTURE:
        _, length, place = _element(data, place, order)
        _, names, place = _element(data, place, order)
        count *= max(1, len(names) // max(1, int.from_bytes(length, order)))
    if count * (8 if kind in (_CELL, _STRUCTURE) else 1) > len(data):
        raise ValueError(f"an array claims {count} values and has {len(data)} bytes")
    if kind in (_CELL, _STRUCTURE):
        while place < len(data):
            _, inner, place = _element(data, place, order)
            if inner:
                _check_array(inner, order, depth + 1)


def _element(data: bytes, place: int, order: Any) -> tuple[int, bytes, int]:
    """Type and bytes of a data element, and where the next one starts."""
    if place + 8 > len(data):
        raise ValueError("truncated")
    word = int.from_bytes(data[place : place + 4], order)
    if word >> 16:  # short: up to four bytes in the tag itself
        kind, size, start, step = word & 0xFFFF, word >> 16, place + 4, 8
        if size > 4:
            raise ValueError("a short element of more than 4 bytes")
    else:
        kind, size, start = word, int.from_bytes(data[place + 4 : place + 8], order), place + 8
        step = 8 + (size if kind == _COMPRESSED else -(-size // 8) * 8)
    if start + size > len(data):
        raise ValueError("truncated")
    return kind, data[start : start + size], place + step


__all__ = ["read_structures"]
