"""Arrays of files that are read and written in blocks of rows, so that a file may be larger than the memory."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadInput, first_line
from ..store.files import atomic_file
from .embedding_set import MASKS, numpy_of
from .files import ZIP_ERRORS, check_format, npy_header, open_safetensors, text_list, unpacked_size
from .parquet import read_feature_columns
from .untrusted import known_names

if TYPE_CHECKING:
    from torch import Tensor

KEYS = ("features", "embeddings", "labels", "groups", "ids", "class_names", "about", *MASKS)
"""Names of the arrays of a file of features, besides those of corrupted images."""

BLOCK = 1 << 24
"""Bytes that are read at a time."""

TEXTS = ("ids", "class_names", "about")
"""Texts, which safetensors have in their metadata."""


@dataclass(frozen=True)
class Column:
    """An array of a file: its shape, its type, and a function that reads it in blocks of rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Callable[[], Iterator[np.ndarray]]

    def whole(self) -> np.ndarray:
        """The array in memory."""
        blocks = [*self.blocks()]
        return np.concatenate(blocks) if blocks else np.empty(self.shape, self.dtype)


def rows_per_block(shape: Sequence[int], itemsize: int) -> int:
    """Rows of an array that are read at a time."""
    return max(1, BLOCK // max(1, itemsize * int(np.prod(shape[1:], dtype=np.int64))))


def open_columns(path: Path) -> dict[str, Column]:
    """Open the arrays of a file by name; rows are read later.

    Raises:
        BadInput: If the file is missing, damaged, or has an array whose name looks mistyped.
    """
    suffix = check_format(path)
    try:
        if suffix == ".npz":
            return _of_npz(path)
        if suffix == ".safetensors":
            return _of_safetensors(path)
        return {key: held(value) for key, value in read_feature_columns(path).items()}
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or 'cannot be read'}") from None


def keys_among(names: Sequence[str]) -> tuple[str, ...]:
    """Names of the arrays that are read, given all names of a file: those of corrupted images have their kind."""
    return (*KEYS, *(name for name in names if name.partition("_")[0] in ("corrupted", "severity")))


def _of_npz(path: Path) -> dict[str, Column]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
            wanted, _ = known_names(names, keys_among(names))
            return {key: _member(path, archive, members[key], key) for key in wanted}
    except ZIP_ERRORS as error:
        raise BadInput(f"not a whole .npz file: truncated or damaged ({first_line(error, 160)})") from None


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, key: str) -> Column:
    unpacked_size(archive, info, key)
    with archive.open(info) as file:
        shape, dtype, by_columns = npy_header(file, key)
    if by_columns and len(shape) > 1:
        raise BadInput(f"{key} is stored by columns; save np.ascontiguousarray({key})")

    def blocks() -> Iterator[np.ndarray]:
        rows = rows_per_block(shape, dtype.itemsize)
        with zipfile.ZipFile(path) as opened, opened.open(info) as stream:
            npy_header(stream, key)
            if not shape:
                yield np.frombuffer(stream.read(), dtype).reshape(())[None]
                return
            for start in range(0, shape[0], rows):
                count = min(rows, shape[0] - start)
                content = stream.read(count * dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64)))
                yield np.frombuffer(content, dtype).reshape(count, *shape[1:])

    return Column(shape, dtype, blocks)


def _of_safetensors(path: Path) -> dict[str, Column]:
    tensors, texts, _ = open_safetensors(path, keys_among)

    def column(tensor: Tensor) -> Column:
        rows = rows_per_block(tensor.shape, tensor.element_size())
        whole = tensor if tensor.dim() else tensor[None]
        return Column(tuple(tensor.shape), numpy_of(whole[:0]).dtype, lambda: map(numpy_of, whole.split(rows)))

    columns = {key: column(tensor) for key, tensor in tensors.items()}
    return columns | {
        key: held(np.array([text]) if key == "about" else text_list(key, text)) for key, text in texts.items()
    }


def held(value: np.ndarray) -> Column:
    """A column of an array in memory."""
    return Column(value.shape, value.dtype, lambda: iter([value]))


def write_columns(path: Path, columns: Mapping[str, Column]) -> None:
    """Write a .npz or .safetensors file, block by block, as a whole or not at all."""
    if path.suffix.lower() == ".safetensors":
        texts = {key: column.whole() for key, column in columns.items() if key in TEXTS}
        metadata = {
            key: str(value[0]) if key == "about" else json.dumps(value.tolist()) for key, value in texts.items()
        }
        write_safetensors(path, {key: column for key, column in columns.items() if key not in TEXTS}, metadata)
    else:
        with atomic_file(path) as file, zipfile.ZipFile(file, "w") as archive:
            for key, column in columns.items():
                _write_npy(archive, key, column)


def _write_npy(archive: zipfile.ZipFile, key: str, column: Column) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(column.dtype), "fortran_order": False, "shape": column.shape}
    start = io.BytesIO()
    np.lib.format.write_array_header_1_0(start, header)
    with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
        member.write(start.getvalue())
        for block in column.blocks():
            member.write(np.ascontiguousarray(block).tobytes())


_KINDS = {"int64": "I64", "float64": "F64", "bool": "BOOL", "float16": "F16", "float32": "F32"}


def write_safetensors(path: Path, columns: Mapping[str, Column], metadata: Mapping[str, str]) -> str:
    """Write arrays of numbers to a ``.safetensors`` file; returns its SHA-256."""
    # Wide types first, so that every array begins at a multiple of its type's size.
    order = sorted(columns, key=lambda key: -columns[key].dtype.itemsize)
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    for key in order:
        shape, dtype = columns[key].shape, columns[key].dtype
        end = place + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        header[key] = {"dtype": _KINDS[dtype.name], "shape": [*shape], "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with atomic_file(path) as file:
        for content in (len(text).to_bytes(8, "little"), text):
            digest.update(content)
            file.write(content)
        for key in order:
            for block in columns[key].blocks():
                content = np.ascontiguousarray(block).tobytes()
                digest.update(content)
                file.write(content)
    return digest.hexdigest()
