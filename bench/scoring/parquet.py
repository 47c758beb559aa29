"""Files of embeddings in Parquet, to and from arrays by name."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadInput, first_line
from .parquet_sizes import TEXT, read_footer, unpacked_size
from .untrusted import Arrays, check_unpacked, known_names


def import_pyarrow() -> Any:
    """The package pyarrow, with its parts for Parquet.

    Raises:
        BadInput: If it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise BadInput("Parquet needs pyarrow: pip install 'bench[parquet]', or save an .npz file") from None
    return pyarrow


def read_parquet(path: Path) -> tuple[Arrays, list[str]]:
    """Read the arrays of a file by name, and the names of its other columns.

    Raises:
        BadInput: If the file is damaged, unpacks to too much, or has columns that do not fit together.
    """
    pyarrow = import_pyarrow()
    with path.open("rb") as raw:
        footer = read_footer(raw)
        names = [name for name in footer.columns if not name.startswith("__index_level_")]
        spread = _spread(names)
        scattered = {name for parts in spread.values() for name in parts.values()}
        wanted, others = known_names([name for name in names if name not in scattered] + list(spread))
        whole = [key for key in wanted if key not in spread]
        columns = [*whole, *sorted(scattered)]
        chunks = [chunk for chunk in footer.chunks if chunk.leaf.column in columns]
        check_unpacked(sum(unpacked_size(raw, chunk) for chunk in chunks), path.stat().st_size)
    texts = {chunk.leaf.path for chunk in chunks if chunk.leaf.kind == TEXT}
    try:
        # Equal texts are kept once.
        with pyarrow.parquet.ParquetFile(path, read_dictionary=sorted(texts)) as file:
            table = file.read(columns=columns)
            table.validate(full=True)  # pyarrow itself does not look at indices and bytes of texts
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"not a whole Parquet file: truncated or damaged ({first_line(error, 160)})") from None
    arrays = {key: _column(table.column(key), key) for key in whole}
    for key, parts in spread.items():
        if sorted(parts) != list(range(len(parts))):
            raise BadInput(f"columns {key}_0, {key}_1, .. must be numbered without gaps; found {len(parts)}")
        arrays[key] = np.stack([_column(table.column(parts[i]), key) for i in range(len(parts))], 1)
    if arrays.get("normalize", np.array(())).size:
        arrays["normalize"] = arrays["normalize"][0]
    return arrays, others


def _spread(names: list[str]) -> dict[str, dict[int, str]]:
    """Columns of one dimension each, by the array that they are part of and their number."""
    spread: dict[str, dict[int, str]] = {}
    for name in names:
        column = re.fullmatch(r"(embeddings|variance)[_.]([0-9]{1,9})", name)
        if column:
            parts = spread.setdefault(column[1], {})
            if int(column[2]) in parts:
                raise BadInput(f"columns {parts[int(column[2])]} and {name} are the same dimension; keep one")
            parts[int(column[2])] = name
    for key in spread:
        if key in names:
            raise BadInput(f"{key} exists both as one column and as one per dimension; keep one")
    return spread


def _column(column: Any, key: str) -> np.ndarray:
    pyarrow = import_pyarrow()
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
    pyarrow = import_pyarrow()
    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        texts = pyarrow.types.is_string(kind.value_type) or pyarrow.types.is_large_string(kind.value_type)
        if not texts:
            return _plain(column.cast(kind.value_type), key)
        parts = [
            np.array([*part.dictionary.to_pylist(), None], dtype=object)[part.indices.to_numpy()]
            for part in column.chunks
        ]
        return np.concatenate([np.array([], dtype=object), *parts])
    values: np.ndarray = column.to_numpy()
    if values.dtype.hasobject:
        raise BadInput(f"{key} is a column of {kind}; numbers are needed")
    return values


def write_parquet(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Content of a file of some arrays; names of classes, one per class and not per row, are left out."""
    pyarrow = import_pyarrow()
    count = len(arrays["embeddings"])
    columns = {}
    for key, value in arrays.items():
        if key == "class_names":
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
