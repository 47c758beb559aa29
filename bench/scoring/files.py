"""Files of embeddings and features: ``.npz``, ``.safetensors`` and Parquet, to and from arrays by name.

Files are not trusted: nothing is unpickled, and no array is allocated before the file is known to contain its data. An
array is read and written in blocks of rows, so that a file of features may be larger than the memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.filesize import decimal as size

from ..errors import BadInput, first_line, no_such
from ..store.files import atomic_file
from .embedding_set import EmbeddingSet, numpy_of
from .parquet import check_pyarrow, read_parquet, write_parquet
from .untrusted import TEXT_BYTES, Arrays, check_unpacked, keys_among, known_names

BLOCK = 1 << 24
"""Bytes that are read at a time."""

MOST_DEFLATE = 1032
"""No deflate stream unpacks to more than this many times its size (zlib's technical details)."""

ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError)
"""What a damaged ``.npz`` file makes the standard library raise."""

MOST_DIMENSIONS = 64
"""Largest number of dimensions of a NumPy array."""

_TEXTS = ("ids", "groups", "class_names", "about")
"""Texts, for which safetensors have no arrays: they are in its metadata."""

_PARQUET = (".parquet", ".pq")

_FORMATS = (".npz", ".safetensors", *_PARQUET)

_CONVERTED = {
    ".npy": "np.savez('x.npz', embeddings=np.load({!r}), labels=labels)",
    ".pt": "np.savez('x.npz', embeddings=torch.load({!r}).numpy(), labels=labels)",
    ".pth": "np.savez('x.npz', embeddings=torch.load({!r}).numpy(), labels=labels)",
    ".csv": "t = pd.read_csv({!r}); np.savez('x.npz', labels=list(t.pop('label')), embeddings=t.to_numpy())",
}
"""Lines of Python that make a file of other formats one of embeddings."""


@dataclass(frozen=True)
class Column:
    """An array of a file: its shape, its type, and a function that reads it in blocks of rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Callable[[], Iterator[np.ndarray]]

    def whole(self) -> np.ndarray:
        """The array in memory."""
        whole, start = np.empty(self.shape, self.dtype), 0
        for block in self.blocks():
            if block.shape == self.shape:
                return block
            whole[start : (start := start + len(block))] = block
        return whole


def held(value: np.ndarray) -> Column:
    """A column of an array in memory."""
    return Column(value.shape, value.dtype, lambda: iter([value]))


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name a file in errors of bad input, and make such errors of those of reading it."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or 'cannot be read'}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: contains text that is not UTF-8; damaged?") from None
    except MemoryError:
        raise BadInput(f"{path}: does not fit into memory") from None


def read_embeddings(path: Path) -> tuple[Arrays, list[str]]:
    """Read the arrays of a file of embeddings by name, and the names of other arrays, which are not read.

    Raises:
        BadInput: If the file is missing, of another format or damaged, has less data than its header says, unpacks to
            too much, or the name of an array is repeated or looks mistyped. The message starts with the path.
    """
    with reading(path):
        columns, others = open_columns(path)
        return {key: column.whole() for key, column in columns.items()}, others


def open_columns(path: Path, features: bool = False) -> tuple[dict[str, Column], list[str]]:
    """Open the arrays of a file of embeddings, or features, by name, and the names of others; rows are read later.

    Raises:
        BadInput: If the file is missing, damaged, or has an array whose name looks mistyped.
    """
    if path.is_dir():
        raise BadInput("is a folder; give a file")
    if not path.exists():
        raise BadInput(no_such(path))
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        hint = f"; convert it: {_CONVERTED[suffix].format(path.as_posix())}" if suffix in _CONVERTED else ""
        raise BadInput(f"no known suffix; known: {', '.join(_FORMATS)}{hint}")
    if path.stat().st_size == 0:
        raise BadInput("is empty")
    if suffix in _PARQUET:
        arrays, others = read_parquet(path, features)
        return {key: held(value) for key, value in arrays.items()}, others
    return (_of_npz if suffix == ".npz" else _of_safetensors)(path, features)


def read_set(path: Path, more: Mapping[str, Any] | None = None) -> tuple[EmbeddingSet, bool, list[str]]:
    """Read a file of embeddings as a checked set.

    Args:
        path: The file.
        more: Arrays by name that are taken in place of those of the file.

    Returns:
        The set; whether the file wants embeddings to be normalised; notes on what was not read or was changed.

    Raises:
        BadInput: As :func:`read_embeddings`, or if an array is missing or wrong. The message starts with the path.
    """
    arrays, others = read_embeddings(path)
    return set_of(path, {**arrays, **(more or {})}, others)


def extended_by(images: EmbeddingSet, unknown: Any) -> EmbeddingSet:
    """The set with rows of a file, or of an array, as further queries of unknown classes; errors name the file."""
    path = Path(unknown) if isinstance(unknown, str | PathLike) else None
    arrays = {"embeddings": unknown} if path is None else read_embeddings(path)[0]
    with reading(path or Path("unknown")):
        return images.with_unknown(arrays)


def set_of(path: Path, arrays: Mapping[str, Any], others: list[str]) -> tuple[EmbeddingSet, bool, list[str]]:
    """Check the arrays of a file or folder; the result is that of :func:`read_set`."""
    unread = ", ".join(ascii(name)[1:-1] for name in others)
    try:
        normalized = np.asarray(arrays.get("normalize", True))
        if normalized.shape or normalized.dtype.kind != "b":
            raise BadInput("normalize must be one boolean")
        images = EmbeddingSet.of(arrays)
    except BadInput as error:
        found = f"; not read: {unread}" if unread and not {"embeddings", "labels"} <= arrays.keys() else ""
        raise BadInput(f"{path}: {error}{found}") from None
    notes = [f"not read: {unread}"] if others else []
    return images, bool(normalized), [f"{path}: {note}" for note in (*notes, *images.notes)]


@contextlib.contextmanager
def _whole_npz() -> Iterator[None]:
    try:
        yield
    except ZIP_ERRORS as error:
        raise BadInput(f"not a whole .npz file: truncated or damaged ({first_line(error, 160)})") from None


def _of_npz(path: Path, features: bool) -> tuple[dict[str, Column], list[str]]:
    with _whole_npz(), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        names = [info.filename.removesuffix(".npy") for info in members]
        wanted, others = known_names(names, keys_among(names, features))
        found = {key: _member(path, archive, members[names.index(key)], key, features) for key in wanted}
        if not features:  # which are read in blocks
            check_unpacked(sum(map(_unpacked_size, found.values())), path.stat().st_size)
        return found, others


def _unpacked_size(column: Column) -> int:
    """Size of an array in memory, bytes."""
    width = column.dtype.itemsize
    return math.prod(column.shape) * (TEXT_BYTES + width if column.dtype.kind in "US" else max(8, width))


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, key: str, features: bool) -> Column:
    """Array of a file, whose header must fit what the file holds."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadInput(f"{key} is packed in a way that NumPy does not write")
    with archive.open(info) as file:
        shape, dtype, by_columns = _npy_header(file, key)
        if dtype.hasobject:
            raise BadInput(f"{key} contains pickled Python objects, which are never read; save numbers or plain text")
        if len(shape) > MOST_DIMENSIONS:
            raise BadInput(f"{key} has {len(shape)} dimensions; damaged")
        claimed = math.prod(shape) * dtype.itemsize
        packed = MOST_DEFLATE if info.compress_type == zipfile.ZIP_DEFLATED else 1
        left = info.file_size - file.tell()
    stored = min(left, packed * info.compress_size)
    if min(shape, default=0) < 0 or claimed > stored or claimed != left:
        raise BadInput(f"{key} claims {size(claimed)} of data and the file holds {size(max(0, stored))}; damaged")
    if not dtype.itemsize:
        raise BadInput(f"{key} has {size(0)} for every value; damaged")
    if features and by_columns and len(shape) > 1:
        raise BadInput(f"{key} is stored by columns; save np.ascontiguousarray({key})")

    def blocks() -> Iterator[np.ndarray]:
        with _whole_npz(), zipfile.ZipFile(path) as opened, opened.open(info) as stream:
            _npy_header(stream, key)
            if by_columns or not shape:
                content = stream.read()
                yield np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C").copy("C")
                return
            row = math.prod(shape[1:]) * dtype.itemsize
            rows = max(1, BLOCK // max(1, row))
            for start in range(0, shape[0], rows):
                count = min(rows, shape[0] - start)
                yield np.frombuffer(bytearray(stream.read(count * row)), dtype).reshape(count, *shape[1:])
            stream.read(1)  # checks the sum of all of it

    return Column(shape, dtype, blocks)


def _npy_header(file: IO[bytes], key: str) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    """Shape and type of an array by its header, and whether it is stored by columns."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise BadInput(f"{key} is an array of format {version}, which does not contain plain numbers")
        first = version == (1, 0)
        with warnings.catch_warnings(action="ignore"):
            read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, by_columns, dtype = read(file)
    except (BadInput, MemoryError, zipfile.BadZipFile, zlib.error, EOFError):
        raise
    except Exception as error:  # NumPy evaluates the header as Python: many kinds of errors
        if "'<f1'" in str(error):
            raise BadInput(f"{key} are float8, which NumPy saves and cannot read: {key}.astype(np.float32)") from None
        raise BadInput(f"{key} is not a NumPy array ({first_line(error, 160)})") from None
    return shape, dtype, by_columns


def _of_safetensors(path: Path, features: bool) -> tuple[dict[str, Column], list[str]]:
    from safetensors import SafetensorError, safe_open

    columns: dict[str, Column] = {}
    try:
        # The library checks that header and size of the file agree before it maps any of it.
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            known = keys_among(names, features)
            wanted, others = known_names(names, known)
            metadata = file.metadata() or {}
            for key in wanted:
                if key in _TEXTS and key in metadata:
                    raise BadInput(f"{key} exists both as an array and in the metadata; keep one")
                try:
                    columns[key] = _of_tensor(file.get_tensor(key))
                except (SafetensorError, NotImplementedError, TypeError):
                    dtype = file.get_slice(key).get_dtype()
                    raise BadInput(f"{key} are {dtype} numbers, which are not read; save {key}.float()") from None
    except (SafetensorError, TypeError) as error:
        raise BadInput(f"not a whole .safetensors file: truncated or damaged ({first_line(error, 160)})") from None
    texts = {key: metadata[key] for key in _TEXTS if key in metadata and key in known}
    if "about" in texts:
        columns["about"] = held(np.array([texts.pop("about")]))
    return columns | {key: held(_text_list(key, text)) for key, text in texts.items()}, others


def _of_tensor(tensor: Any) -> Column:
    first = numpy_of(tensor.flatten()[:1])  # an error if NumPy has no such type
    if not tensor.dim():
        return held(first.reshape(()))
    rows = max(1, BLOCK // max(1, tensor.element_size() * math.prod(tensor.shape[1:])))
    return Column(tuple(tensor.shape), first.dtype, lambda: map(numpy_of, tensor.split(rows)))


def _text_list(key: str, text: str) -> np.ndarray:
    """A JSON list of texts or integers as an array of texts, each kept once however long the longest is."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(type(item) in (str, int) for item in found):
        raise BadInput(f"its metadata {key!r} is not a JSON list of texts")
    return np.array([*map(str, found), None], dtype=object)[:-1]


def check_writable(path: Path) -> None:
    """Check that :func:`write_columns` can write a file, before hours are spent on its content."""
    if path.suffix.lower() not in _FORMATS:
        raise BadInput(f"{path} has no known suffix; known: {', '.join(_FORMATS)}")
    if path.suffix.lower() in _PARQUET:
        check_pyarrow()
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name a file")


def write_embeddings(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file of embeddings, in the format of its suffix; a failure leaves no partial file."""
    write_columns(path, {key: held(value) for key, value in arrays.items()})


def write_columns(path: Path, columns: Mapping[str, Column]) -> None:
    """Write columns, block by block (Parquet: at once), in the format of the suffix, as a whole or not at all."""
    check_writable(path)
    if path.suffix.lower() == ".safetensors":
        texts = {key: columns[key].whole().tolist() for key in _TEXTS if key in columns}
        metadata = {key: value[0] if key == "about" else json.dumps(value) for key, value in texts.items()}
        write_safetensors(path, {key: column for key, column in columns.items() if key not in texts}, metadata)
        return
    with atomic_file(path) as file:
        if path.suffix.lower() in _PARQUET:
            write_parquet(file, {key: column.whole() for key, column in columns.items()})
            return
        with zipfile.ZipFile(file, "w") as archive:
            for key, column in columns.items():
                _write_npy(archive, key, column)


def _write_npy(archive: zipfile.ZipFile, key: str, column: Column) -> None:
    if column.dtype.hasobject:
        raise TypeError(f"{key} are Python objects, which no reader of files that are not trusted reads")
    header = {"descr": np.lib.format.dtype_to_descr(column.dtype), "fortran_order": False, "shape": column.shape}
    start = io.BytesIO()
    np.lib.format.write_array_header_1_0(start, header)
    with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
        member.write(start.getvalue())
        for block in column.blocks():
            member.write(np.ascontiguousarray(block).tobytes())


def write_safetensors(path: Path, columns: Mapping[str, Column], metadata: Mapping[str, str]) -> str:
    """Write arrays of numbers to a ``.safetensors`` file; returns its SHA-256."""
    # Wide types first, so that every array begins at a multiple of its type's size.
    order = sorted(columns, key=lambda key: -columns[key].dtype.itemsize)
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    for key in order:
        shape, dtype = columns[key].shape, columns[key].dtype
        end = place + math.prod(shape) * dtype.itemsize
        kind = "BOOL" if dtype.kind == "b" else f"{dtype.kind.upper()}{8 * dtype.itemsize}"
        header[key] = {"dtype": kind, "shape": [*shape], "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with atomic_file(path) as file:

        def write(content: bytes) -> None:
            digest.update(content)
            file.write(content)

        write(len(text).to_bytes(8, "little") + text)
        for key in order:
            for block in columns[key].blocks():
                write(np.ascontiguousarray(block).tobytes())
    return digest.hexdigest()
