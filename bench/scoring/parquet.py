"""Files of embeddings in Parquet, to and from arrays by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..datasets.guarded import Answer, allow_memory, guarded
from ..errors import BadInput, first_line
from .embedding_set import text_of
from .untrusted import TEXT_BYTES, Arrays, check_unpacked, keys_among, known_names

WIDTHS = {"BOOLEAN": 1, "INT96": 16, "BYTE_ARRAY": TEXT_BYTES, "FIXED_LEN_BYTE_ARRAY": TEXT_BYTES}
"""Bytes of a value in memory by its type in the file, others have 8; of a text, those besides its characters."""


def check_pyarrow() -> None:
    """Check that the package pyarrow is installed."""
    if find_spec("pyarrow") is None:
        raise BadInput("Parquet needs pyarrow: `pip install 'probembed[parquet]'`, or save an .npz file")


def read_parquet(path: Path, features: bool) -> tuple[Arrays, list[str]]:
    """Read the arrays of a file of embeddings, or features, by name, and the names of its other columns."""
    check_pyarrow()
    try:
        (others, texts), found = guarded(_read, path, "features" if features else "embeddings")
    except ValueError as error:
        raise BadInput(str(error)) from None
    # Equal texts are kept once.
    words = {key: np.array([*names, None], dtype=object) for key, names in texts.items()}
    return {key: words[key][value] if key in words else value for key, value in found.items()}, others


def _read(path: str, what: str) -> Answer:
    """In a process of its own: other names and the texts of each column; arrays by name, of texts their indices."""
    try:
        return _checked(path, what == "features")
    except (BadInput, MemoryError):
        raise
    except NotImplementedError as error:
        said = first_line(error, 160)
        raise BadInput(f"pyarrow cannot read it ({said}): written in a rare way, or damaged; save it anew") from None
    except Exception as error:  # pyarrow makes of a damaged file many kinds of errors
        raise BadInput(f"not a whole Parquet file: truncated or damaged ({first_line(error, 160)})") from None


def _checked(path: str, features: bool) -> Answer:
    import pyarrow.parquet

    metadata = pyarrow.parquet.read_metadata(path)
    names = [name for name in metadata.schema.to_arrow_schema().names if not name.startswith("__index_level_")]
    spread = _spread(names)
    scattered = {name for parts in spread.values() for name in parts.values()}
    listed = [name for name in names if name not in scattered] + list(spread)
    wanted, others = known_names(listed, keys_among(names, features))
    whole = [key for key in wanted if key not in spread]
    columns = [*whole, *sorted(scattered)]
    needed = _unpacked(metadata, columns)
    check_unpacked(needed, Path(path).stat().st_size)
    allow_memory(3 * needed)  # as pages, as a table and as arrays
    leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    texts = [
        leaf.path
        for i, leaf in enumerate(leaves)
        if leaf.physical_type == "BYTE_ARRAY"
        # pyarrow does not make a dictionary of texts that are stored one after another.
        and not any("DELTA_LENGTH_BYTE_ARRAY" in group.column(i).encodings for group in groups)
    ]
    with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
        table = file.read(columns=columns)
        table.validate(full=True)  # pyarrow itself does not look at indices and bytes of texts
    words: dict[str, list[str]] = {}
    arrays = {key: _column(table.column(key), key, words) for key in whole}
    for key, parts in spread.items():
        if sorted(parts) != list(range(len(parts))):
            raise BadInput(f"columns {key}_0, {key}_1, .. must be numbered without gaps; found {len(parts)}")
        arrays[key] = np.stack([_column(table.column(parts[i]), key, words) for i in range(len(parts))], 1)
        if key in words:
            raise BadInput(f"{key} has columns of text; numbers are needed")
    if arrays.get("normalize", np.array(())).size:
        arrays["normalize"] = arrays["normalize"][0]
    return [others, words], arrays


def _unpacked(metadata: Any, columns: list[str]) -> int:
    """Size of some columns in memory by the footer: pages of a few bytes may stand for billions of values."""
    size = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for place in range(group.num_columns):
            chunk, leaf = group.column(place), metadata.schema.column(place)
            name = leaf.path if leaf.path in columns else leaf.path.split(".")[0]  # `embeddings.0` is one, too
            if name in columns:
                if "DELTA_BYTE_ARRAY" in chunk.encodings:
                    raise BadInput(
                        f"{name} has the encoding DELTA_BYTE_ARRAY, which is not read; write it with another"
                    )
                width = WIDTHS.get(chunk.physical_type, 8) + max(0, leaf.length)
                size += max(0, chunk.total_uncompressed_size) + max(0, chunk.num_values) * width
    return size


def _spread(names: list[str]) -> dict[str, dict[int, str]]:
    """Columns of one dimension each, by the array that they are part of and their number."""
    spread: dict[str, dict[int, str]] = {}
    for name in names:
        column = re.fullmatch(r"(embeddings|variance|features)[_.]([0-9]{1,9})", name)
        if column:
            parts = spread.setdefault(column[1], {})
            if int(column[2]) in parts:
                raise BadInput(f"columns {parts[int(column[2])]} and {name} are the same dimension; keep one")
            parts[int(column[2])] = name
    for key in spread:
        if key in names:
            raise BadInput(f"{key} exists both as one column and as one per dimension; keep one")
    return spread


def _column(column: Any, key: str, words: dict[str, list[str]]) -> np.ndarray:
    from pyarrow import BaseExtensionType, compute, types

    if column.null_count:
        row = compute.index(compute.is_null(column), True).as_py()
        raise BadInput(f"{key} has {column.null_count} empty cells, first in row {row}: leave such rows out")
    flat, shape, kind, in_order = column, [len(column)], column.type, True
    while True:
        if isinstance(kind, BaseExtensionType) and hasattr(kind, "shape"):
            in_order = kind.permutation is None or sorted(kind.permutation) == [*kind.permutation]
            shape += kind.shape
            flat = flat.cast(kind.storage_type)
        elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            lengths = compute.list_value_length(flat).unique().to_pylist()
            if len(lengths) > 1:
                raise BadInput(f"{key} has rows of {len(lengths)} different lengths")
            shape += lengths
        else:
            break
        flat = compute.list_flatten(flat)
        kind = flat.type
        if flat.null_count:
            raise BadInput(f"{key} has {flat.null_count} empty values")
    wide = [size for size in shape[1:] if size != 1]
    if len(wide) > 1 and not (key == "features" and in_order):
        raise BadInput(f"{key} has rows of the shape {shape[1:]}; write lists of one dimension")
    if len(shape) > 2 and key != "features":
        shape = [len(column), *(wide or [1])]
    return _plain(flat, key, words).reshape(shape)


def _plain(column: Any, key: str, words: dict[str, list[str]]) -> np.ndarray:
    """The numbers of a column; of texts the indices of those that are added to ``words``."""
    from pyarrow import types

    texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary,
             types.is_binary_view, types.is_fixed_size_binary)  # fmt: skip
    kind = column.type
    if types.is_dictionary(kind) and not any(is_text(kind.value_type) for is_text in texts):
        return _plain(column.cast(kind.value_type), key, words)
    if types.is_dictionary(kind) or any(is_text(kind) for is_text in texts):
        whole = column.dictionary_encode().unify_dictionaries().combine_chunks()
        words[key] = [*map(text_of, whole.dictionary.to_pylist())]
        indices: np.ndarray = whole.indices.to_numpy()
        return indices
    values: np.ndarray = column.to_numpy()
    if values.dtype.hasobject:
        raise BadInput(f"{key} is a column of {kind}; write numbers or text")
    return values


def write_parquet(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Write some arrays as a file; names of classes, one per class and not per row, are left out."""
    import pyarrow.parquet

    count = len(arrays["embeddings"])
    columns = {}
    for key, value in arrays.items():
        if key != "class_names":
            rows = np.broadcast_to(value, (count,)) if value.ndim == 0 else value
            columns[key] = (
                pyarrow.array(rows)
                if rows.ndim == 1
                else pyarrow.FixedSizeListArray.from_arrays(rows.reshape(-1), rows.shape[1])
            )
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
