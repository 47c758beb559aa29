"""Checked sets of embeddings with labels. Every row has an identity that does not depend on the order of the rows."""

from __future__ import annotations

import operator
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Self
from unicodedata import normalize

import numpy as np

from ..errors import BadInput, first_line, shortened

FLOATS = {"confidence": "[N]", "variance": "[N] or [N, D]", "concentration": "[N]", "quality": "[N]"}
MASKS = ("is_query", "is_gallery")
MOST_CONCENTRATED = 1e30
"""Squares of concentrations have to be numbers."""

TRAIN = {"embeddings": "train_embeddings", "labels": "train_labels"}
"""Arrays of the training images of the network, by what they are of it."""

SET_UP = "set_up"
"""Name of the mask of the images whose classes choose operating points."""

OTHERS = ("groups", "ignore", SET_UP, *TRAIN.values(), "ids")

KEYS = ("embeddings", "labels", *FLOATS, *MASKS, *OTHERS, "normalize", "class_names")
"""Names of the arrays in a file; ``normalize`` and ``class_names`` are notes of ``bench embed``."""

BLOCK_BYTES = 1 << 20
"""Size of a block of rows in float64."""


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of a matrix ``[N, D]`` in an order of their own, which become float64 when they are read.

    There is no sorted or float64 copy of the matrix.
    """

    stored: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, stored: np.ndarray) -> Self:
        """The rows of a matrix ``[N, D]`` in their stored order."""
        return cls(stored, np.arange(len(stored)))

    def __len__(self) -> int:
        return len(self.order)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return len(self.order), self.stored.shape[1]

    def __getitem__(self, index: np.ndarray | slice) -> np.ndarray:
        """Some rows, a new float64 array ``[B, D]`` without negative zeros: equal rows have equal bytes."""
        rows: np.ndarray = self.stored[self.order[index]].astype(np.float64)
        rows += 0.0
        return rows

    def reordered(self, order: np.ndarray) -> Self:
        """Copy of the rows in another order; ``order`` has the present place of each."""
        return type(self)(self.stored, self.order[order])

    def named(self, which: np.ndarray, what: str) -> str:
        """Number of some rows, and the first of them in the matrix."""
        return f"{int(which.sum())} rows {what}, first in row {int(self.order[which].min())}"

    def blocks(self) -> Iterator[np.ndarray]:
        """Blocks of consecutive rows, float64."""
        size = max(1, BLOCK_BYTES // (8 * self.shape[1]))
        for start in range(0, len(self), size):
            yield self[start : start + size]


@dataclass(frozen=True)
class EmbeddingSet:
    """Embeddings of N labelled images, with everything else that is known about the images; all arrays are checked.

    Attributes:
        embeddings: Rows ``[N, D]`` as given, which become float64 when they are read.
        labels: int64 ``[N]``, as given.
        ids: N different names. Random numbers are drawn per name, not per position. Without ``ids`` in the input, a row
            is named by a hash of its embedding; rows with equal embeddings are numbered.
        named: Whether ``ids`` were given in the input.
        is_query: bool ``[N]``, whether an image is a query.
        is_gallery: bool ``[N]``, whether an image is searched.
        groups: int64 ``[N]`` from 0, in the order of their names; a query's gallery has none of its class and group.
        confidence: float64 ``[N]``, higher = more confident.
        variance: float64 ``[N]`` or ``[N, D]``, positive: variance per dimension, if an embedding is the mean of a
            normal.
        concentration: float64 ``[N]``, not negative, if an embedding is the direction of a von Mises-Fisher.
        quality: float64 ``[N]``, known quality of the images, higher = better.
        set_up: bool ``[N]``, whether an image is of a class that chooses operating points.
        classes: Names of the classes in the order of their numbers, if labels were given as text; else empty.
        class_names: Names of the classes by their numbers, if they are known and labels are numbers.
        train: Training images of the network, sorted by identity, if they are known: of other classes, and of no part
            in rankings.
    """

    embeddings: StoredRows
    labels: np.ndarray
    ids: tuple[str, ...]
    named: bool
    is_query: np.ndarray
    is_gallery: np.ndarray
    groups: np.ndarray | None = None
    confidence: np.ndarray | None = None
    variance: np.ndarray | None = None
    concentration: np.ndarray | None = None
    quality: np.ndarray | None = None
    set_up: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    train: EmbeddingSet | None = None

    @classmethod
    def of(cls, arrays: Mapping[str, Any], unknown: bool = False) -> EmbeddingSet:
        """Make a set from numpy arrays, tensors or lists by name, and check them; None counts as not given.

        One that is ``unknown`` has queries alone, and need not have labels: then each is of a class of its own.

        Raises:
            BadInput: If an array is missing or wrong; the message is one line and says what to do.
        """
        inputs = {key: _array(key, value) for key, value in arrays.items() if value is not None and key in KEYS}
        for key in ("embeddings", "labels"):
            if key not in inputs and not (unknown and key == "labels"):
                raise BadInput(f"{key} missing: a set needs arrays named embeddings [N, D] and labels [N]")
        embeddings = _stored("embeddings", inputs["embeddings"])
        if embeddings.ndim != 2 or 0 in embeddings.shape:
            raise BadInput(f"embeddings must have the shape [N, D], not {[*embeddings.shape]}")
        count, dim = embeddings.shape
        inputs.setdefault("labels", np.arange(count))
        labels, classes = labels_of(inputs["labels"])
        _check_length("labels", labels, count)
        floats = {key: _numbers(key, inputs[key]) for key in FLOATS if key in inputs}
        for key, values in floats.items():
            if key == "variance" and values.ndim == 2:
                if values.shape not in ((count, dim), (count, 1)):
                    raise BadInput(f"variance must have the shape [{count}] or [{count}, {dim}], not {[*values.shape]}")
            else:
                _check_length(key, values, count)
        for key in ("confidence", "quality"):
            if key in floats and len(np.unique(floats[key])) < len(np.unique(inputs[key])):
                raise BadInput(f"{key} has different numbers that are equal in float64: give {key} - {key}.min()")
        if "variance" in floats and floats["variance"].shape == (count, 1):
            floats["variance"] = floats["variance"][:, 0]
        _check_spread(floats)
        groups = _groups(inputs["groups"], count) if "groups" in inputs else None
        left = ~_mask("ignore", inputs["ignore"], count) if "ignore" in inputs else np.ones(count, dtype=bool)
        if not left.any():
            raise BadInput("ignore is True everywhere; mark only the images that no ranking counts")
        queries_alone = {"is_query": np.ones(count, dtype=bool), "is_gallery": np.zeros(count, dtype=bool)}
        known = floats | (queries_alone if unknown else masks_of(inputs, labels, groups, left))
        known |= {SET_UP: _mask(SET_UP, inputs[SET_UP], count)} if SET_UP in inputs else {}
        named = "ids" in inputs
        ids = ids_of(inputs["ids"], count) if named else ("",) * count
        train = _training_set(inputs, dim)
        listed = () if classes or "class_names" not in inputs else tuple(names_of("class_names", inputs["class_names"]))
        rows = StoredRows.of(embeddings)
        made = cls(rows, labels, ids, named, groups=groups, classes=classes, class_names=listed, train=train, **known)
        made = made if left.all() else made._rows(np.flatnonzero(left))
        return made if named else replace(made, ids=made._content_ids())

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def notes(self) -> list[str]:
        """Notes on labels that were given as text, and on rows that other tools mean to be of no class."""
        text = f"labels are text: {len(self.classes)} classes are numbered in alphabetical order"
        junk = self.labels == (self.classes.index("-1") if "-1" in self.classes else -1)
        count = int((junk & (self.is_query | self.is_gallery)).sum())
        known = {*self.train._row_keys()} if self.train else set()
        seen = sum(key in known for key in self._row_keys()) if known else 0
        trained_on = f"{seen} rows are among train_embeddings: as near to the training data as can be"
        return (
            [text] * bool(self.classes)
            + [junk_note(count, bool(self.classes))] * bool(count)
            + [trained_on] * bool(seen)
        )

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """All arrays except the embeddings and the identities, by name."""
        names = ("labels", *MASKS, "groups", *FLOATS, SET_UP)
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def unknown(self) -> np.ndarray:
        """Queries of which the gallery has no image of the class, bool ``[Q]``."""
        return ~np.isin(self.labels[self.is_query], self.labels[self.is_gallery])

    def in_order(self) -> EmbeddingSet:
        """The set with rows sorted by identity (``ids``), so that results do not depend on their stored order."""
        if all(map(operator.lt, self.ids, self.ids[1:])):
            return self
        return self._rows(np.array(sorted(range(len(self)), key=self.ids.__getitem__)))

    def _rows(self, order: np.ndarray) -> EmbeddingSet:
        ids = tuple(map(self.ids.__getitem__, order.tolist()))
        columns: dict[str, Any] = {name: value[order] for name, value in self.columns.items()}
        return replace(self, embeddings=self.embeddings.reordered(order), ids=ids, **columns)

    def with_unknown(self, arrays: Mapping[str, Any]) -> EmbeddingSet:
        """The set with the rows of another one, given as arrays, as further queries of which the gallery has no class.

        Raises:
            BadInput: If the other one is no such set, or lacks an array that tells how certain an embedding is.
        """
        other = EmbeddingSet.of(arrays, unknown=True)
        if other.embeddings.shape[1] != self.embeddings.shape[1]:
            raise BadInput(f"{other.embeddings.shape[1]} dimensions, and the gallery has {self.embeddings.shape[1]}")
        refuse_zeros("embeddings", other.embeddings)
        both = (self, other)
        named = all(each.classes or each.class_names for each in both)
        searched, asked = (each._class_names(named) for each in both)
        seen = np.isin(asked, searched[self.is_gallery]) if "labels" in arrays else np.zeros(len(other), dtype=bool)
        if seen.any():
            raise BadInput(
                f"{int(seen.sum())} of {len(other)} rows are of classes that the gallery has, such as"
                f" {shortened(str(asked[seen][0]), 60)}: drop them, or leave out labels that are numbered apart"
            )
        kept = [key for key in self.columns if key not in ("labels", "groups", "quality")]
        for key in kept:
            if key not in other.columns or other.columns[key].ndim != self.columns[key].ndim:
                raise BadInput(f"{key} missing, or of other dimensions than in the set that it is added to")
        columns: dict[str, Any] = {key: np.concatenate([each.columns[key] for each in both]) for key in kept}
        places = [np.unique(each.labels, return_inverse=True)[1] for each in both]
        columns["labels"] = np.concatenate([places[0], places[0].max() + 1 + places[1]])
        if self.groups is not None:
            columns["groups"] = np.concatenate([self.groups, np.zeros_like(places[1])])
        order = np.concatenate([self.embeddings.order, len(self.embeddings.stored) + other.embeddings.order])
        rows = StoredRows(np.concatenate([each.embeddings.stored for each in both]), order)
        ids = (*self.ids, *(f"unknown {name}" for name in other.ids))
        return replace(self, quality=None, classes=(), embeddings=rows, ids=ids, **columns)

    def _class_names(self, named: bool) -> np.ndarray:
        """The class of each image, by its name or else by its number."""
        names = (self.classes or self.class_names) if named else ()
        return np.array([names[label] if 0 <= label < len(names) else str(label) for label in self.labels.tolist()])

    def aligned_with(self, other: EmbeddingSet) -> EmbeddingSet:
        """Return a copy in the row order of another set of the same images, with the identities of that set.

        Rows are matched by identity (``ids``) if both sets were given identities, otherwise by position; labels,
        queries, gallery images and groups must not differ.
        """
        mine = self
        if self.named and other.named:
            if set(self.ids) != set(other.ids):
                strange = sorted(set(self.ids) ^ set(other.ids))
                common = len(set(self.ids) & set(other.ids))
                keep = f"; {common} are in both: keep the rows np.isin(ids, other['ids'])" if common else ""
                raise BadInput(f"ids differ: {len(strange)} are in one file only, such as {strange[0]!r}{keep}")
            place = {name: i for i, name in enumerate(self.ids)}
            mine = self._rows(np.array([place[name] for name in other.ids]))
        if len(mine) != len(other):
            raise BadInput(f"{len(mine)} images against {len(other)}; files of the same images are compared")
        if mine.classes and other.classes and mine.classes != other.classes:
            strange = sorted(set(mine.classes) ^ set(other.classes))
            raise BadInput(f"labels differ: {strange[0]!r} is in one file only; files of the same images are compared")
        if not (self.named and other.named) and (mine.embeddings.order != other.embeddings.order).any():
            raise BadInput("ignore leaves other rows than in the first file; give both ids, or the same ignore")
        for key in ("labels", *MASKS, "groups"):
            differing = int((np.asarray(getattr(mine, key)) != np.asarray(getattr(other, key))).sum())
            if differing:
                raise BadInput(
                    f"{key} differ in {differing} of {len(mine)} rows; files of the same images are compared"
                )
        return replace(mine, ids=other.ids)

    def digest(self) -> str:
        """Hash of the content as 16 hexadecimal digits, independent of the order of the rows."""
        state = blake2b(digest_size=8)
        ordered = self.in_order()
        state.update(f"embeddings{ordered.embeddings.shape}".encode())
        for block in ordered.embeddings.blocks():
            state.update(block.data)
        for name, value in ordered.columns.items():
            state.update(f"{name}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        state.update("\n".join(ordered.ids).encode())
        state.update(self.train.digest().encode() if self.train else b"")
        return state.hexdigest()

    def _row_keys(self) -> list[str]:
        """Hash of each embedding as it is stored."""
        return [blake2b(row, digest_size=16).hexdigest() for block in self.embeddings.blocks() for row in block]

    def _content_ids(self) -> tuple[str, ...]:
        keys = self._row_keys()
        repeated = {key for key, times in Counter(keys).items() if times > 1}
        if not repeated:
            return tuple(keys)
        # Equal embeddings are numbered in the order of the rest of their rows, so that equal rows are equal in all,
        # then in that of the contents of their classes, whose numbers mean nothing.
        rest = [value for name, value in self.columns.items() if name != "labels"]

        def content(i: int) -> bytes:
            return keys[i].encode() + b"".join(value[i].tobytes() for value in rest)

        twins = [i for i, key in enumerate(keys) if key in repeated]
        members: dict[int, list[bytes]] = defaultdict(list)
        for i in np.flatnonzero(np.isin(self.labels, self.labels[twins])).tolist():
            members[int(self.labels[i])].append(blake2b(content(i)).digest())
        classes = {label: (blake2b(b"".join(sorted(rows))).digest(), label) for label, rows in members.items()}
        twins.sort(key=lambda i: (content(i), classes[int(self.labels[i])]))
        seen: Counter[str] = Counter()
        for i in twins:
            key = keys[i]
            seen[key] += 1
            keys[i] = f"{key}-{seen[key]:09d}"
        return tuple(keys)


def _training_set(inputs: Mapping[str, np.ndarray], dim: int) -> EmbeddingSet | None:
    """Checked training images of the network, if they are given; queries and gallery mean nothing there."""
    given = {key: inputs[name] for key, name in TRAIN.items() if name in inputs}
    if not given:
        return None
    for key, name in TRAIN.items():
        if key not in given:
            raise BadInput(f"{name} missing: training images have train_embeddings [M, {dim}] and train_labels [M]")
    embeddings = _stored("train_embeddings", given["embeddings"])
    if embeddings.shape[1:] != (dim,) or not len(embeddings):
        raise BadInput(f"train_embeddings must have the shape [M, {dim}], as embeddings, not {[*embeddings.shape]}")
    labels, classes = labels_of(given["labels"], "train_labels")
    _check_length("train_labels", labels, len(embeddings), "train_embeddings")
    rows, none = StoredRows.of(embeddings), np.zeros(len(labels), dtype=bool)
    refuse_zeros("train_embeddings", rows)
    made = EmbeddingSet(rows, labels, (), False, none, none, classes=classes)
    return replace(made, ids=made._content_ids()).in_order()


def refuse_zeros(key: str, rows: StoredRows) -> None:
    """Raise BadInput if a row is zero."""
    zero = np.concatenate([(block == 0).all(1) for block in rows.blocks()])
    if zero.any():
        raise BadInput(f"{key} has {rows.named(zero, 'of zeros')}, which have no direction; drop them")


def _array(key: str, value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        try:
            value = numpy_of(value.detach().cpu())
        except Exception as error:  # torch has an error of its own for every kind of tensor, which says what to do
            raise BadInput(f"{key} is no plain tensor: {first_line(error, 160)}") from None
    if hasattr(value, "toarray"):
        raise BadInput(f"{key} is sparse; give {key}.toarray()")
    if isinstance(value, list | tuple) and any(map(np.ma.isMaskedArray, value)):
        value = np.ma.asarray(value)
    if np.ma.is_masked(value):
        masked = np.atleast_1d(np.ma.getmaskarray(value))
        rows = masked.reshape(len(masked), -1).any(1)
        raise BadInput(
            f"{key} is a masked array with {int(rows.sum())} masked rows, first row {int(rows.argmax())}; leave them"
            f" out of all arrays: keep = ~np.ma.getmaskarray({key}).reshape(len({key}), -1).any(1)"
        )
    try:
        found = np.asarray(value)
    except UnicodeDecodeError:  # a list of texts and bytes
        return np.array(value, dtype=object)
    except Exception as error:  # arrays of other packages raise errors of their own
        ragged = "inhomogeneous" in str(error)
        what = "its rows have different lengths" if ragged else first_line(error, 160)
        raise BadInput(f"{key} is not an array: {what}") from None
    # Types that another package adds to NumPy, such as bfloat16 and float8.
    return found.astype(np.float32) if found.dtype.isbuiltin == 2 and found.dtype.kind in "Vf" else found


def numpy_of(tensor: Any) -> np.ndarray:
    """A tensor as an array; types that NumPy lacks, such as bfloat16 and float8, become float32, which holds them."""
    known = not tensor.is_floating_point() or str(tensor.dtype) in ("torch.float16", "torch.float32", "torch.float64")
    array: np.ndarray = (tensor if known else tensor.float()).resolve_conj().resolve_neg().numpy()
    return array


def _stored(key: str, values: np.ndarray) -> np.ndarray:
    """Checked numbers as they are, if float64 represents them exactly and they are stored as this machine does."""
    if values.dtype.kind != "f" or values.dtype.itemsize > 8 or not values.dtype.isnative or values.ndim != 2:
        return _numbers(key, values)
    size = max(1, BLOCK_BYTES // max(1, values[:1].nbytes))
    for i in range(0, len(values), size):
        _refuse(key, values[i : i + size], i, values)
    return values


def _numbers(key: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "fiu":
        plain = values.dtype.kind in "bO" or values.dtype.str in _UNKNOWN
        line = f": {key}.astype(np.float32)" * (plain and not _is_text(values))
        raise BadInput(f"{key} must be numbers, not {kind_of(values, int, float, np.number)}{line}")
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = values.astype(np.float64)
    _refuse(key, numbers)
    return numbers + 0.0  # no negative zeros: equal rows have equal bytes


def _refuse(key: str, block: np.ndarray, start: int = 0, values: np.ndarray | None = None) -> None:
    """Refuse a block of values that begins at a row, if one of it is not finite; the message counts in all values."""
    finite = np.isfinite(block)
    if not finite.all():
        bad = int((~np.isfinite(block if values is None else values)).sum())
        rows = f", first in row {start + int(np.argwhere(~finite)[0, 0])}" if block.ndim else ""
        raise BadInput(
            f"{key} holds {bad} values that are not finite (NaN or infinite){rows}; drop those rows or fix them"
        )


def kind_of(values: np.ndarray, *fine: type) -> str:
    """What an array holds, in words; of Python objects the first that is of none of the types that are ``fine``."""
    if _is_text(values):
        return "text"
    if values.dtype.str in _UNKNOWN:
        return f"{values.dtype} (as NumPy saves {_UNKNOWN[values.dtype.str]})"
    if values.dtype.kind == "O":
        odd = [(place, type(value)) for place, value in np.ndenumerate(values) if not isinstance(value, fine)][:1]
        return "Python objects" + "".join(f", such as {kind.__name__} in row {(*place, 0)[0]}" for place, kind in odd)
    kinds = {"b": "booleans", "c": "complex numbers"}
    return kinds.get(values.dtype.kind, str(values.dtype))


_UNKNOWN = {"|V1": "float8", "|V2": "bfloat16"}
"""Types of other packages, whose names NumPy does not save."""


def _is_text(values: np.ndarray) -> bool:
    kind = values.dtype.kind
    return kind in "UST" or (kind == "O" and all(isinstance(value, str | bytes) for value in values.flat))


def text_of(value: object) -> str:
    """A name as text: nothing else decodes bytes, so that equal names are equal; :func:`names_of` refuses others."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def names_of(key: str, values: np.ndarray) -> list[str]:
    """Text, bytes of UTF-8 or integers as texts.

    Raises:
        BadInput: If they are of another kind, or bytes are not UTF-8.
    """
    if values.dtype.kind not in "iu" and not _is_text(values):
        raise BadInput(f"{key} must be text or integers, not {kind_of(values)}")
    if values.dtype.kind == "U" and values.size and values.dtype.itemsize:
        codes = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("="), copy=False).view(np.uint32)
        if int(codes.max()) > sys.maxunicode:
            raise BadInput(f"{key} has characters that Unicode does not have; damaged")
    names = [*map(text_of, values.ravel().tolist())]
    for row, name in enumerate(names):
        if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
            raise BadInput(
                f"{key} has characters that Unicode does not have, first in row {row}, {shortened(ascii(name), 60)}:"
                f" bytes of another encoding than UTF-8 (np.char.decode({key}, 'latin-1')), or damaged"
            )
    if names and all(name[:2] in ("b'", 'b"') and name[-1] == name[1] for name in names):
        raise BadInput(
            f"{key} are str() of bytes, such as {shortened(names[0], 60)}: [x.decode() for x in {key}] is text"
        )
    return names


def labels_of(values: np.ndarray, key: str = "labels") -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as numbers, and the names of the classes if they are text."""
    kind = values.dtype.kind
    if values.size and _is_text(values):
        # File systems and editors differ in how they spell an accent.
        names = [normalize("NFC", name) for name in names_of(key, values)]
        number = {name: place for place, name in enumerate(sorted({*names}))}
        return np.array([number[name] for name in names], dtype=np.int64).reshape(values.shape), tuple(number)
    if kind == "f":
        odd = np.argwhere((np.floor(values) != values) | np.isinf(values))
        what = f"row {odd[0, 0]} has {values[tuple(odd[0])]}" if len(odd) else f"{key}.astype(int)"
        raise BadInput(f"{key} are {values.dtype} numbers, they must be integers: {what}")
    if kind not in "iu":
        raise BadInput(
            f"{key} are {kind_of(values, int, np.integer, str, bytes)}, they must be integers:"
            f" np.unique({key}, return_inverse=True)[1] numbers them"
        )
    if values.size and int(values.max()) > np.iinfo(np.int64).max:
        raise BadInput(f"{key} beyond 2**63: np.unique({key}, return_inverse=True)[1] numbers them")
    return values.astype(np.int64), ()


def junk_note(count: int, text: bool = False, roles: bool = True) -> str:
    """Note on some rows with the label -1, which are left out as queries and gallery, or altogether."""
    line = f"{'is_query = is_gallery' if roles else 'keep'} = labels {'!= ' + repr('-1') if text else '>= 0'}"
    return f"{count} rows have the label -1, which counts as a class; if it means none, leave them out: {line}"


def _check_length(key: str, values: np.ndarray, count: int, rows: str = "embeddings") -> None:
    if values.shape != (count,):
        raise BadInput(f"{key} must have the shape [{count}], one per row of {rows}, not {[*values.shape]}")


def _check_spread(floats: Mapping[str, np.ndarray]) -> None:
    if "variance" in floats and "concentration" in floats:
        raise BadInput("variance (a normal) and concentration (a von Mises-Fisher) exclude each other; give one")
    if "variance" in floats and bool((floats["variance"] <= 0).any()):
        raise BadInput(f"variance must be positive; {int((floats['variance'] <= 0).sum())} values are not")
    if "concentration" in floats and bool((floats["concentration"] < 0).any()):
        raise BadInput(f"concentration must not be negative; {int((floats['concentration'] < 0).sum())} values are")
    if "concentration" in floats and bool((floats["concentration"] > MOST_CONCENTRATED).any()):
        raise BadInput(f"concentration has values beyond {MOST_CONCENTRATED:g}, too large to compute with")


def masks_of(
    inputs: Mapping[str, np.ndarray],
    labels: np.ndarray,
    groups: np.ndarray | None = None,
    counted: np.ndarray | slice = slice(None),
) -> dict[str, np.ndarray]:
    """Queries and gallery, bool ``[N]`` each, all images if not given.

    Raises:
        BadInput: If a mask has other values than booleans, or 0 and 1, or they leave nothing to find among the images
            that are ``counted``.
    """
    count = len(labels)
    masks = {key: _mask(key, inputs[key], count) if key in inputs else np.ones(count, dtype=bool) for key in MASKS}
    of_counted = {key: mask[counted] for key, mask in masks.items()}
    _check_roles(labels[counted], None if groups is None else groups[counted], **of_counted)
    return masks


def _mask(key: str, values: np.ndarray, count: int) -> np.ndarray:
    _check_length(key, values, count)
    if values.dtype.kind == "b":
        if int(values.view(np.uint8).max(initial=0)) > 1:
            raise BadInput(f"{key} has bytes other than 0 and 1, which are no booleans; damaged")
        return values
    if values.dtype.kind not in "fiu":
        line = f"{key} == 'True'" if _is_text(values) else f"np.array([value is True for value in {key}])"
        raise BadInput(f"{key} must be booleans, not {kind_of(values, bool, np.bool_)}: {line}")
    odd = (values != 0) & (values != 1)
    if odd.any():
        row = int(odd.argmax())
        raise BadInput(f"{key} must be booleans, or 0 and 1: row {row} has {values[row]}; {key} == 1 makes booleans")
    mask: np.ndarray = values == 1
    return mask


def _check_roles(labels: np.ndarray, groups: np.ndarray | None, is_query: np.ndarray, is_gallery: np.ndarray) -> None:
    if len(np.unique(labels)) < 2:
        raise BadInput("labels are of one class only; retrieval needs at least two")
    if not is_query.any():
        raise BadInput("is_query is False everywhere; at least one image must be a query")
    if is_gallery.sum() < 2:
        raise BadInput(f"is_gallery leaves {int(is_gallery.sum())} images to search; at least two are needed")
    place = np.unique(labels, return_inverse=True)[1]
    own = np.arange(len(labels))
    if groups is not None:
        own = np.unique(place * (groups.max() + 1) + groups, return_inverse=True)[1]
    same, left_out = (np.bincount(each[is_gallery], minlength=each.max() + 1)[each] for each in (place, own))
    if not same[is_query].any():
        raise BadInput(
            f"all {int(is_query.sum())} queries are of classes that the gallery lacks; are labels the same in both?"
        )
    if not (same > left_out)[is_query].any():
        lacking = "class" if groups is None else "class and of another group"
        instead = "; groups are cameras, bursts or sessions, not classes" if groups is not None else ""
        raise BadInput(f"no query has another image of its {lacking} in the gallery; there is nothing to find{instead}")
    if (left_out == is_gallery.sum())[is_query].any():
        raise BadInput("the gallery is one class and group, and empty for its own queries; add other images to it")


def _groups(values: np.ndarray, count: int) -> np.ndarray:
    """Groups, given as text or integers, as numbers from 0 in the order of their names."""
    _check_length("groups", values, count)
    number: np.ndarray = np.unique(names_of("groups", values), return_inverse=True)[1].astype(np.int64)
    return number


def ids_of(values: np.ndarray, count: int) -> tuple[str, ...]:
    """Identities of N images; a BadInput if they are no names, or not N different ones."""
    names = tuple(names_of("ids", values))
    _check_length("ids", values, count)
    if len(set(names)) < count:
        repeated = next(name for name, times in Counter(names).items() if times > 1)
        raise BadInput(f"ids repeat, such as {shortened(repeated, 100)!r}; they must name every image once")
    return names
