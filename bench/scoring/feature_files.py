"""Import of features that somebody has computed: from files that are not trusted to a mapped data set.

Arrays are checked and written block by block, so that a file may be larger than the memory. What the files hold is said
in :class:`~bench.datasets.features.FeatureImages`.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from ..datasets.corruptions.registry import CORRUPTIONS
from ..datasets.features import INDEX, LAYOUT
from ..errors import BadInput, shortened
from .columns import Column, held, open_columns, write_safetensors
from .embedding_set import MASKS, ids_of, junk_note, kind_of, labels_of, masks_of, names_of

Progress = Callable[[str, int, int], None]


class Entry(TypedDict):
    """What the index says of one split."""

    images: int
    bytes: int
    sha256: str
    corruptions: dict[str, list[float]]


@dataclass(frozen=True)
class Split:
    """One split that was imported: what the index says of it, and what is compared with the other splits."""

    entry: Entry
    width: int
    views: int
    about: str
    constant: int
    junk: str
    names: frozenset[str]
    ids: frozenset[str]
    groups: frozenset[str]
    rows: Mapping[bytes, int]


def import_features(name: str, files: Mapping[str, Path], root: Path, progress: Progress) -> list[str]:
    """Import files of features by split (``train``, ``test``, perhaps ``val``) as a data set; returns what to say.

    Raises:
        BadInput: If a file cannot be read, or the features do not fit the labels or each other.
    """
    root.mkdir(parents=True, exist_ok=True)
    # Hidden: what a killed import leaves behind is never found as a data set.
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as staging:
        folder = Path(staging) / name
        folder.mkdir()
        splits = {}
        for split, path in files.items():
            try:
                splits[split] = _Import(open_columns(path), split, folder, progress).run()
            except BadInput as error:
                said = str(error)
                raise BadInput(said if said.startswith(str(path)) else f"{path}: {said}") from None
        _check_together(splits, files)
        train = splits["train"]
        counts = " + ".join(str(splits[split].entry["images"]) for split in files)
        about = f"{counts} images, {train.width} features, {train.views} view{'s' if train.views > 1 else ''}"
        about += f", {train.about}" if train.about else ""
        index = {"layout": LAYOUT, "name": name, "about": about, "width": train.width, "views": train.views}
        index["splits"] = {split: found.entry for split, found in splits.items()}
        (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
        folder.rename(root / name)
    return [f"{name} is at {root / name}: {about}", *_remarks(splits)]


def _remarks(splits: Mapping[str, Split]) -> Iterator[str]:
    """Lines about what the features lack."""
    train = splits["train"]
    if train.views == 1:
        yield "one view of every image: heads are trained without augmentation (`bench embed --views 4` makes more)"
    if train.constant:
        yield f"{train.constant} of {train.width} features are the same for all training images: they say nothing"
    for split, found in splits.items():
        if found.junk:
            yield f"{split}: {found.junk}"
        if split != "train" and (both := found.rows.keys() & train.rows.keys()):
            row = min(found.rows[each] for each in both)
            yield (
                f"{len(both)} rows of {split} are also in train, such as row {row} (from 0) as row"
                f" {train.rows[next(each for each in both if found.rows[each] == row)]}: the same images?"
            )
    lacking = [split for split in splits if not splits[split].entry["corruptions"]]
    if lacking:
        yield (
            f"no corrupted features in {', '.join(lacking)}: nothing is tested on corrupted images"
            " (`bench embed --corruptions crop` makes some)"
        )


def _check_together(splits: Mapping[str, Split], files: Mapping[str, Path]) -> None:
    """Refuse splits of different widths, or that have images, classes or groups in common."""
    ordered = [*splits.items()]
    for number, (split, found) in enumerate(ordered):
        for other, before in ordered[:number]:
            pair = f"{files[other]} and {files[split]}"
            if found.width != before.width:
                raise BadInput(f"{pair}: {before.width} and {found.width} features; one network gives one width")
            for what, ours, theirs, advice in (
                ("ids", found.ids, before.ids, "an image is in one split only"),
                ("classes", found.names, before.names, "test classes are never trained on: number or name them apart"),
                ("groups", found.groups, before.groups, "a group is in one split only"),
            ):
                shared = sorted(ours & theirs)
                if shared:
                    advice = "-1, if it means no class, is left out: labels >= 0" if "-1" in ours & theirs else advice
                    some = ", ".join(shortened(each, 40) for each in shared[:3])
                    raise BadInput(f"{pair}: {len(shared)} {what} in both, such as {some}; {advice}")


def _alike(names: Sequence[str]) -> frozenset[str]:
    """Names in one form of Unicode: file systems differ in how they spell an accent."""
    return frozenset(unicodedata.normalize("NFC", name) for name in names)


def _digests(rows: np.ndarray) -> Iterator[bytes]:
    """Hashes of vectors ``[B, F]``, the same in float16 and float32."""
    whole = rows.astype(np.float32)
    exponent = np.frexp(np.abs(whole).max(1, keepdims=True))[1]
    for vector in np.ldexp(whole, -exponent).astype(np.float16):
        yield hashlib.blake2b(vector, digest_size=16).digest()


class _Import:
    """Import of one file: its checks, and the file of its split."""

    def __init__(self, columns: dict[str, Column], split: str, folder: Path, progress: Progress) -> None:
        self.columns, self.split, self.folder, self.progress = columns, split, folder, progress
        self.rows: dict[bytes, int] = {}
        self.of_images = "features"

    def run(self) -> Split:
        columns = self.columns
        if "features" not in columns and "embeddings" in columns:
            columns["features"] = columns.pop("embeddings")
        for key in ("features", "labels"):
            if key not in columns:
                raise BadInput(f"{key} missing (needs features [N, F] or [N, V, F] and labels [N])")
        features = columns["features"]
        if len(features.shape) not in (2, 3) or 0 in features.shape:
            raise BadInput(f"features have shape {[*features.shape]}; needed is [N, F] or [N, V, F] with V views")
        count, width = features.shape[0], features.shape[-1]
        views = features.shape[1] if len(features.shape) == 3 else 1
        kinds = self._kinds()
        labels, class_names = self._labels(count)
        ids = [*ids_of(columns["ids"].whole(), count)] if "ids" in columns else []
        groups = self._texts("groups", count)
        small: dict[str, np.ndarray] = {"labels": labels}
        if groups:
            small["groups"] = np.unique(groups, return_inverse=True)[1].astype(np.int64)
        severities = {}
        for kind in kinds:
            severity = self._numbers(f"severity_{kind}", count).astype(np.float64)
            if not (np.isfinite(severity).all() and severity.min() >= 0 and severity.max() <= 1):
                raise BadInput(f"severity_{kind} must be from 0 to 1 for every image")
            small[f"severity_{kind}"] = severity
            severities[kind] = [float(severity.min()), float(severity.max())]
        masks = {key: columns[key].whole() for key in MASKS if key in columns and self.split == "test"}
        if masks:
            checked = masks_of(masks, labels)
            small |= {key: checked[key] for key in masks}
        used = small.get("is_query", np.True_) | small.get("is_gallery", np.True_)
        junk = int((used & (labels == class_names.index("-1"))).sum()) if "-1" in class_names else 0
        note = junk_note(junk, columns["labels"].dtype.kind not in "iu", self.split == "test") if junk else ""
        large = {"features": (count, *features.shape[1:])}
        large |= {"embeddings": (count, width)} if "embeddings" in columns and views > 1 else {}
        self.of_images = [*large][-1]  # without augmentation, if the file has them so
        large |= {f"corrupted_{kind}": (count, width) for kind in kinds}
        for key, shape in large.items():
            if columns[key].shape != shape:
                raise BadInput(
                    f"{key} has shape {[*columns[key].shape]}; with features {[*features.shape]} it needs {[*shape]}"
                )
            if columns[key].dtype.kind != "f":
                kind = kind_of(np.empty(0, columns[key].dtype))
                raise BadInput(f"{key} are {kind}; save them as float16 or float32, {key}.astype(np.float32)")
        path = self.folder / f"{self.split}.safetensors"
        digest, constant = self._write(path, small, [*large])
        listed = {"class_names": class_names} | ({"ids": ids} if ids else {})
        (self.folder / f"{self.split}.json").write_text(json.dumps(listed), encoding="utf-8")
        entry = Entry(images=count, bytes=path.stat().st_size, sha256=digest, corruptions=severities)
        about = "".join(names_of("about", columns["about"].whole()))[:200] if "about" in columns else ""
        names, known, apart = map(_alike, (class_names, ids, groups))
        return Split(entry, width, views, about, constant, note, names, known, apart, self.rows)

    def _kinds(self) -> list[str]:
        """Corruptions that the file has images under; `corrupted` without a name is the centre crop."""
        for key in ("corrupted", "severity"):
            if key in self.columns:
                self.columns[f"{key}_crop"] = self.columns.pop(key)
        kinds = [key.partition("_")[2] for key in self.columns if key.startswith("corrupted_")]
        for kind in kinds:
            if kind not in CORRUPTIONS:
                raise BadInput(f"corrupted_{kind}: unknown corruption (known: {', '.join(CORRUPTIONS)})")
            if f"severity_{kind}" not in self.columns:
                raise BadInput(f"corrupted_{kind} needs severity_{kind} [N], in [0, 1]: of a crop, 1 - its side")
        return kinds

    def _numbers(self, key: str, count: int) -> np.ndarray:
        column = self.columns[key]
        if column.shape != (count,):
            raise BadInput(f"{key} has shape {[*column.shape]}; {count} images need [{count}]")
        if column.dtype.kind not in "biuf":
            raise BadInput(f"{key} must be numbers")
        return column.whole()

    def _texts(self, key: str, count: int) -> list[str]:
        if key not in self.columns:
            return []
        column = self.columns[key]
        if column.shape != (count,):
            raise BadInput(f"{key} has shape {[*column.shape]}; {count} images need [{count}]")
        return names_of(key, column.whole())

    def _labels(self, count: int) -> tuple[np.ndarray, list[str]]:
        """Labels from 0 in the order of the classes, and the name of each class."""
        column = self.columns["labels"]
        if column.shape != (count,):
            raise BadInput(f"labels have shape {[*column.shape]}; {count} images need [{count}]")
        if column.dtype.kind not in "iu":
            labels, classes = labels_of(column.whole())
            return labels, [*classes]
        found, labels = np.unique(column.whole(), return_inverse=True)
        names = names_of("labels", found)
        if "class_names" in self.columns:
            given = names_of("class_names", self.columns["class_names"].whole())
            if found.min() < 0 or found.max() >= len(given):
                raise BadInput(
                    f"labels are from {found.min()} to {found.max()}, and class_names has {len(given)} names, from 0"
                )
            names = [given[int(label)] for label in found]
        if len({*names}) < len(names):
            raise BadInput("class_names has the same name for several classes")
        return labels.astype(np.int64), names

    def _write(self, path: Path, small: Mapping[str, np.ndarray], large: Sequence[str]) -> tuple[str, int]:
        """Write the arrays; returns the SHA-256 of the file, and how many features are constant."""
        constant: dict[str, int] = {}
        columns = {key: held(value) for key, value in small.items()}
        columns |= {key: self._checked(key, constant) for key in large}
        return write_safetensors(path, columns, {}), constant["features"]

    def _checked(self, key: str, constant: dict[str, int]) -> Column:
        """An array as float16 or float32, whose numbers must be finite; adds how many of its features are constant."""
        column = self.columns[key]
        dtype = np.dtype(np.float16 if column.dtype == np.float16 else np.float32)
        of_images = key == self.of_images

        def blocks() -> Iterator[np.ndarray]:
            done, low, high = 0, np.float32(np.inf), np.float32(-np.inf)
            for block in column.blocks():
                with np.errstate(over="ignore"):
                    made = np.ascontiguousarray(block, dtype)
                bad = ~np.isfinite(made).reshape(len(made), -1).all(1)
                if bad.any():
                    row = done + int(bad.argmax())
                    raise BadInput(f"{key} of row {row} (from 0) are not finite as {dtype}; remove or repair such rows")
                flat = made.reshape(-1, made.shape[-1])
                for row, digest in enumerate(_digests(flat[:: len(flat) // len(made)]) if of_images else (), done):
                    self.rows.setdefault(digest, row)
                low, high = np.minimum(low, flat.min(0)), np.maximum(high, flat.max(0))
                done += len(made)
                self.progress(f"{self.split}: {key}", done, column.shape[0])
                yield made
            constant[key] = int((low == high).sum())
            if constant[key] == column.shape[-1]:
                raise BadInput(f"{key} are the same for all images")

        return Column(column.shape, dtype, blocks)
