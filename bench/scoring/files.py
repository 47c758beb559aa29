"""Files of embeddings: ``.npz``, ``.safetensors`` and Parquet, to and from arrays by name.

Files are not trusted: nothing is unpickled, and no array is allocated before the file is known to contain its data.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadInput
from ..store.files import write_atomic
from .embedding_set import KEYS

MOST_DEFLATE = 1032
"""No deflate stream unpacks to more than this many times its size (zlib's technical details)."""

Arrays = dict[str, np.ndarray]


def read_embeddings(path: Path) -> tuple[Arrays, list[str]]:
    """Read the arrays of a file of embeddings by name.

    Args:
        path: File with the suffix ``.npz``, ``.safetensors``, ``.parquet`` or ``.pq``.

    Returns:
        The arrays with known names, such as ``embeddings`` and ``labels`` (:data:`KEYS`), and the names of the other
        arrays, which were not read.

    Raises:
        BadInput: If the file is missing, of another format or damaged, has less data than its header says, or the name
            of an array looks mistyped. The message starts with the path.
    """
    try:
        if path.is_dir():
            raise BadInput("is a folder; give a file")
        if not path.exists():
            raise BadInput("no such file")
        _check_suffix(path)
        if path.stat().st_size == 0:
            raise BadInput("is empty")
        return _READERS[path.suffix.lower()](path)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or 'cannot be read'}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: contains text that is not UTF-8; damaged?") from None
    except MemoryError:
        raise BadInput(f"{path}: does not fit into memory") from None


def write_embeddings(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file of embeddings; a failure leaves no partial file.

    Args:
        path: File; its suffix ``.npz``, ``.safetensors``, ``.parquet`` or ``.pq`` decides on the format.
        arrays: Arrays by name, such as ``embeddings`` and ``labels``.

    Raises:
        BadInput: If the suffix is none of these.
    """
    _check_suffix(path)
    write_atomic(path, _WRITERS[path.suffix.lower()](arrays))


def check_writable(path: Path) -> None:
    """Check that :func:`write_embeddings` can write a file, before hours are spent on its content.

    Raises:
        BadInput: If the suffix names no format, the library for it is missing, or the path is a folder.
    """
    _check_suffix(path)
    if _WRITERS[path.suffix.lower()] is _write_parquet:
        _pyarrow()
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name a file")


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in _READERS:
        raise BadInput(f"{path.name} has no known suffix; known: {', '.join(_READERS)}")


def _known(names: list[str]) -> tuple[list[str], list[str]]:
    """The names that are read and those that are not.

    A name close to one that is absent is refused: a mistyped ``confidence`` must not look like none.
    """
    wanted = [name for name in names if name in KEYS]
    others = [name for name in names if name not in KEYS]
    absent = [key for key in KEYS if key not in wanted]
    for name in others:
        near = get_close_matches(name.lower(), absent, n=1, cutoff=0.75)
        if near:
            raise BadInput(f"unknown key {name!r}; did you mean {near[0]!r}? (known: {', '.join(KEYS)})")
    return wanted, others


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _read_npz(path: Path) -> tuple[Arrays, list[str]]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted, others = _known(list(members))
            return {key: _read_npy(archive, members[key], key) for key in wanted}, others
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise BadInput(f"not a whole .npz file: truncated or damaged ({_first_line(error)})") from None


def _read_npy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, key: str) -> np.ndarray:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadInput(f"{key} is packed in a way that NumPy does not write")
    with archive.open(info) as file:
        try:
            version = np.lib.format.read_magic(file)
            if version not in _NPY_HEADERS:
                raise BadInput(f"{key} is an array of format {version}, which does not contain plain numbers")
            shape, _, dtype = _NPY_HEADERS[version](file)
        except ValueError as error:
            raise BadInput(f"{key} is not a NumPy array ({_first_line(error)})") from None
        if dtype.hasobject:
            raise BadInput(f"{key} contains pickled Python objects, which are never read; save numbers or plain text")
        claimed = math.prod(shape) * dtype.itemsize
        packed = MOST_DEFLATE if info.compress_type == zipfile.ZIP_DEFLATED else 1
        stored = min(info.file_size - file.tell(), packed * info.compress_size)
        if min(shape, default=0) < 0 or claimed > stored or claimed != info.file_size - file.tell():
            raise BadInput(f"{key} claims {_size(claimed)} of data and the file holds {_size(max(0, stored))}; damaged")
        file.seek(0)
        try:
            return np.lib.format.read_array(file, allow_pickle=False)
        except ValueError as error:
            raise BadInput(f"{key} is damaged ({_first_line(error)})") from None


_NPY_HEADERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _read_safetensors(path: Path) -> tuple[Arrays, list[str]]:
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        # The library checks that header and size of the file agree before it maps any of it.
        with safe_open(path, "pt") as file:
            texts = {key: value for key, value in (file.metadata() or {}).items() if key in _TEXTS}
            wanted, others = _known(list(file.keys()))
            arrays: Arrays = {}
            for key in wanted:
                value = file.get_tensor(key)
                arrays[key] = (value.double() if value.dtype == torch.bfloat16 else value).numpy()
    except (SafetensorError, TypeError) as error:
        raise BadInput(f"not a whole .safetensors file: truncated or damaged ({_first_line(error)})") from None
    for key, text in texts.items():
        try:
            arrays.setdefault(key, np.array(json.loads(text), dtype=str))
        except ValueError:
            raise BadInput(f"its metadata {key!r} is not a JSON list of texts") from None
    return arrays, others


_TEXTS = ("ids", "class_names")
"""Texts, for which safetensors have no arrays: they are in its metadata."""


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise BadInput("Parquet needs pyarrow: pip install 'bench[parquet]', or save an .npz file") from None
    return pyarrow


def _read_parquet(path: Path) -> tuple[Arrays, list[str]]:
    pyarrow = _pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
            spread: dict[str, dict[int, str]] = {}
            for name in columns:
                column = re.fullmatch(r"(embeddings|variance)[_.](\d+)", name)
                if column:
                    spread.setdefault(column[1], {})[int(column[2])] = name
            scattered = {name for parts in spread.values() for name in parts.values()}
            wanted, others = _known([name for name in columns if name not in scattered] + list(spread))
            whole = [key for key in wanted if key not in spread]
            table = file.read(columns=[*whole, *sorted(scattered)])
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"not a whole Parquet file: truncated or damaged ({_first_line(error)})") from None
    arrays = {key: _column(table.column(key), key) for key in whole}
    for key, parts in spread.items():
        if sorted(parts) != list(range(len(parts))):
            raise BadInput(f"columns {key}_0, {key}_1, .. must be numbered without gaps; found {len(parts)}")
        if key in whole:
            raise BadInput(f"{key} exists both as one column and as one per dimension; keep one")
        arrays[key] = np.stack([_column(table.column(parts[i]), key) for i in range(len(parts))], 1)
    if arrays.get("normalize", np.array(())).size:
        arrays["normalize"] = arrays["normalize"][0]
    return arrays, others


def _column(column: Any, key: str) -> np.ndarray:
    pyarrow = _pyarrow()
    if column.null_count:
        raise BadInput(f"{key} has {column.null_count} empty cells")
    kind = column.type
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        lengths = pyarrow.compute.list_value_length(column).unique().to_pylist()
        if len(lengths) > 1:
            raise BadInput(f"{key} has rows of {len(lengths)} different lengths")
        flat = pyarrow.compute.list_flatten(column)
        if flat.null_count:
            raise BadInput(f"{key} has {flat.null_count} empty values")
        return _plain(flat, key).reshape(len(column), *lengths)
    return _plain(column, key)


def _plain(column: Any, key: str) -> np.ndarray:
    pyarrow = _pyarrow()
    kind = column.type
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_dictionary(kind):
        return np.array([str(value) for value in column.to_pylist()], dtype=str)
    values: np.ndarray = column.to_numpy()
    if values.dtype.hasobject:
        raise BadInput(f"{key} is a column of {kind}; numbers are needed")
    return values


def _write_npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _write_safetensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    from safetensors.numpy import save

    numbers = {key: np.require(value, requirements="C") for key, value in arrays.items() if key not in _TEXTS}
    return save(numbers, {key: json.dumps(arrays[key].tolist()) for key in _TEXTS if key in arrays})


def _write_parquet(arrays: Mapping[str, np.ndarray]) -> bytes:
    pyarrow = _pyarrow()
    count = len(arrays["embeddings"])
    columns = {}
    for key, value in arrays.items():
        if key == "class_names":  # one per class, not one per image
            continue
        value = np.broadcast_to(value, (count,)) if value.ndim == 0 else value
        columns[key] = (
            pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(value.reshape(-1)), value.shape[1])
            if value.ndim == 2
            else pyarrow.array(value)
        )
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


_READERS: dict[str, Callable[[Path], tuple[Arrays, list[str]]]] = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
    ".pq": _read_parquet,
}
_WRITERS: dict[str, Callable[[Mapping[str, np.ndarray]], bytes]] = {
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
    ".parquet": _write_parquet,
    ".pq": _write_parquet,
}
