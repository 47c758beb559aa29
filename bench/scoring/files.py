"""Files of embeddings: ``.npz``, ``.safetensors`` and Parquet, to and from arrays by name.

Files are not trusted: nothing is unpickled, and no array is allocated before the file is known to contain its data, and
to unpack to no more than :func:`~bench.scoring.untrusted.check_unpacked` allows.
"""

from __future__ import annotations

import io
import json
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import BadInput, first_line, no_such
from ..store.files import write_atomic
from .embedding_set import KEYS, EmbeddingSet, numpy_of
from .parquet import check_pyarrow, read_parquet, write_parquet
from .untrusted import TEXT_BYTES, Arrays, check_unpacked, known_names, size

if TYPE_CHECKING:
    from torch import Tensor

MOST_DEFLATE = 1032
"""No deflate stream unpacks to more than this many times its size (zlib's technical details)."""

ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError)
"""What a damaged ``.npz`` file makes the standard library raise."""

MOST_DIMENSIONS = 64
"""Largest number of dimensions of a NumPy array."""


def read_embeddings(path: Path) -> tuple[Arrays, list[str]]:
    """Read the arrays of a file of embeddings by name, and the names of other arrays, which are not read.

    Raises:
        BadInput: If the file is missing, of another format or damaged, has less data than its header says, unpacks to
            too much, or the name of an array is repeated or looks mistyped. The message starts with the path.
    """
    try:
        check_format(path)
        return _format_of(path).read(path)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or 'cannot be read'}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: contains text that is not UTF-8; damaged?") from None
    except MemoryError:
        raise BadInput(f"{path}: does not fit into memory") from None


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


def check_format(path: Path) -> str:
    """Suffix of a file of a known format that is there and not empty, in lower case."""
    if path.is_dir():
        raise BadInput("is a folder; give a file")
    if not path.exists():
        raise BadInput(no_such(path))
    _format_of(path)
    if path.stat().st_size == 0:
        raise BadInput("is empty")
    return path.suffix.lower()


def write_embeddings(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file of embeddings, in the format of its suffix; a failure leaves no partial file."""
    write_atomic(path, _format_of(path).write(arrays))


def check_writable(path: Path) -> None:
    """Check that :func:`write_embeddings` can write a file, before hours are spent on its content."""
    if path.suffix.lower() not in _FORMATS:
        raise BadInput(f"{path} has no known suffix; known: {', '.join(_FORMATS)}")
    if _format_of(path) is _PARQUET:
        check_pyarrow()
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name a file")


def _format_of(path: Path) -> _Format:
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        hint = f"; convert it: {_CONVERTED[suffix].format(path.as_posix())}" if suffix in _CONVERTED else ""
        raise BadInput(f"no known suffix; known: {', '.join(_FORMATS)}{hint}")
    return _FORMATS[suffix]


def _read_npz(path: Path) -> tuple[Arrays, list[str]]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names = [info.filename.removesuffix(".npy") for info in members]
            wanted, others = known_names(names)
            chosen = {key: members[names.index(key)] for key in wanted}
            needed = sum(unpacked_size(archive, info, key) for key, info in chosen.items())
            check_unpacked(needed, path.stat().st_size)
            return {key: _read_npy(archive, info, key) for key, info in chosen.items()}, others
    except ZIP_ERRORS as error:
        raise BadInput(f"not a whole .npz file: truncated or damaged ({first_line(error, 160)})") from None


def unpacked_size(archive: zipfile.ZipFile, info: zipfile.ZipInfo, key: str) -> int:
    """Size of an array in memory by its header, which must fit what the file holds."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadInput(f"{key} is packed in a way that NumPy does not write")
    with archive.open(info) as file:
        shape, dtype, _ = npy_header(file, key)
        if dtype.hasobject:
            raise BadInput(f"{key} contains pickled Python objects, which are never read; save numbers or plain text")
        if len(shape) > MOST_DIMENSIONS:
            raise BadInput(f"{key} has {len(shape)} dimensions; damaged")
        count = math.prod(shape)
        claimed = count * dtype.itemsize
        packed = MOST_DEFLATE if info.compress_type == zipfile.ZIP_DEFLATED else 1
        left = info.file_size - file.tell()
    stored = min(left, packed * info.compress_size)
    if min(shape, default=0) < 0 or claimed > stored or claimed != left:
        raise BadInput(f"{key} claims {size(claimed)} of data and the file holds {size(max(0, stored))}; damaged")
    if count and not dtype.itemsize:
        raise BadInput(f"{key} has {size(0)} for every value; damaged")
    return count * (TEXT_BYTES + dtype.itemsize if dtype.kind in "US" else max(8, dtype.itemsize))


def npy_header(file: IO[bytes], key: str) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    """Shape and type of an array by its header, and whether it is stored by columns."""
    try:
        version = np.lib.format.read_magic(file)
        read = _NPY_HEADERS.get(version)
        if read is None:
            raise BadInput(f"{key} is an array of format {version}, which does not contain plain numbers")
        with warnings.catch_warnings(action="ignore"):
            shape, by_columns, dtype = read(file)
    except (BadInput, MemoryError, zipfile.BadZipFile, zlib.error, EOFError):
        raise
    except Exception as error:  # NumPy evaluates the header as Python: many kinds of errors
        if "'<f1'" in str(error):
            raise BadInput(f"{key} are float8, which NumPy saves and cannot read: {key}.astype(np.float32)") from None
        raise BadInput(f"{key} is not a NumPy array ({first_line(error, 160)})") from None
    return shape, dtype, by_columns


def _read_npy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, key: str) -> np.ndarray:
    with archive.open(info) as file, warnings.catch_warnings(action="ignore"):
        try:
            return np.lib.format.read_array(file, allow_pickle=False)
        except ValueError as error:
            raise BadInput(f"{key} is damaged ({first_line(error, 160)})") from None


_NPY_HEADERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _read_safetensors(path: Path) -> tuple[Arrays, list[str]]:
    tensors, texts, others = open_safetensors(path)
    arrays = {key: numpy_of(tensor) for key, tensor in tensors.items()}
    return arrays | {key: text_list(key, text) for key, text in texts.items() if key in _TEXTS}, others


def open_safetensors(
    path: Path, keys: Callable[[Sequence[str]], Sequence[str]] = lambda names: KEYS
) -> tuple[dict[str, Tensor], dict[str, str], list[str]]:
    """Tensors of a file that are read, mapped; the texts of its metadata that are; names of other tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        # The library checks that header and size of the file agree before it maps any of it.
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            wanted, others = known_names(names, keys(names))
            texts = {
                key: text
                for key, text in (file.metadata() or {}).items()
                if key in keys(names) and (key in _TEXTS or key not in wanted)
            }
            tensors = {}
            for key in wanted:
                try:
                    tensors[key] = file.get_tensor(key)
                    numpy_of(tensors[key].flatten()[:1])
                except (SafetensorError, NotImplementedError, TypeError):
                    dtype = file.get_slice(key).get_dtype()
                    raise BadInput(f"{key} are {dtype} numbers, which are not read; save {key}.float()") from None
    except (SafetensorError, TypeError) as error:
        raise BadInput(f"not a whole .safetensors file: truncated or damaged ({first_line(error, 160)})") from None
    for key in texts:
        if key in tensors:
            raise BadInput(f"{key} exists both as an array and in the metadata; keep one")
    return tensors, texts, others


def text_list(key: str, text: str) -> np.ndarray:
    """A JSON list of texts or integers as an array of texts, each kept once however long the longest is."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(type(item) in (str, int) for item in found):
        raise BadInput(f"its metadata {key!r} is not a JSON list of texts")
    return np.array([*map(str, found), None], dtype=object)[:-1]


_TEXTS = ("ids", "class_names")
"""Texts, for which safetensors have no arrays: they are in its metadata."""


def _write_npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _write_safetensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    from safetensors.numpy import save

    numbers = {key: np.require(value, requirements="C") for key, value in arrays.items() if key not in _TEXTS}
    return save(numbers, {key: json.dumps(arrays[key].tolist()) for key in _TEXTS if key in arrays})


class _Format(NamedTuple):
    read: Callable[[Path], tuple[Arrays, list[str]]]
    write: Callable[[Mapping[str, np.ndarray]], bytes]


_PARQUET = _Format(read_parquet, write_parquet)
_FORMATS = {
    ".npz": _Format(_read_npz, _write_npz),
    ".safetensors": _Format(_read_safetensors, _write_safetensors),
    ".parquet": _PARQUET,
    ".pq": _PARQUET,
}
_CONVERTED = {
    ".npy": "np.savez('x.npz', embeddings=np.load({!r}), labels=labels)",
    ".pt": "np.savez('x.npz', embeddings=torch.load({!r}).numpy(), labels=labels)",
    ".pth": "np.savez('x.npz', embeddings=torch.load({!r}).numpy(), labels=labels)",
    ".csv": "t = pd.read_csv({!r}); np.savez('x.npz', labels=t.pop('label'), embeddings=t.to_numpy())",
}
"""Lines of Python that make a file of other formats one of embeddings."""
