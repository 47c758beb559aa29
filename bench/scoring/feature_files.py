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
from pathlib import Path

import numpy as np

from ..datasets.corruptions.registry import CORRUPTIONS
from ..datasets.features import INDEX, LAYOUT
from ..errors import BadInput, shortened
from .embedding_set import MASKS, ids_of, junk_note, kind_of, labels_of, masks_of, names_of
from .files import Column, held, open_columns, reading, write_safetensors

Progress = Callable[[str, int, int], None]


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
            with reading(path):
                splits[split] = _Split(open_columns(path, features=True)[0], split, folder, progress)
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


def _remarks(splits: Mapping[str, _Split]) -> Iterator[str]:
    """Lines about what the features lack."""
    train = splits["train"]
    if train.views == 1:
        yield "one view of every image: heads are trained without augmentation (`bench embed --views 4` makes more)"
    if constant := train.constant["features"]:
        yield f"{constant} of {train.width} features are the same for all training images: they say nothing"
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


def _check_together(splits: Mapping[str, _Split], files: Mapping[str, Path]) -> None:
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


class _Split:
    """Import of the file of one split: its checks, its file in the data set, and what is compared with other splits."""

    def __init__(self, columns: dict[str, Column], split: str, folder: Path, progress: Progress) -> None:
        self.columns, self.split, self.progress = columns, split, progress
        self.rows: dict[bytes, int] = {}  # of vectors, by their hashes
        if "features" not in columns and "embeddings" in columns:
            columns["features"] = columns.pop("embeddings")
        for key in ("features", "labels"):
            if key not in columns:
                raise BadInput(f"{key} missing (needs features [N, F] or [N, V, F] and labels [N])")
        shape = columns["features"].shape
        if len(shape) not in (2, 3) or 0 in shape:
            raise BadInput(f"features have shape {[*shape]}; needed is [N, F] or [N, V, F] with V views")
        count, self.width = shape[0], shape[-1]
        self.count, self.views = count, shape[1] if len(shape) == 3 else 1
        kinds = self._kinds()
        labels, class_names = self._labels()
        ids = [*ids_of(columns["ids"].whole(), count)] if "ids" in columns else []
        groups = names_of("groups", self._of_images("groups")) if "groups" in columns else []
        small = {"labels": labels}
        if groups:
            small["groups"] = np.unique(groups, return_inverse=True)[1].astype(np.int64)
        severities = {}
        for kind in kinds:
            severity = self._severity(f"severity_{kind}")
            small[f"severity_{kind}"] = severity
            severities[kind] = [float(severity.min()), float(severity.max())]
        masks = {key: columns[key].whole() for key in MASKS if key in columns and split == "test"}
        if masks:
            checked = masks_of(masks, labels)
            small |= {key: checked[key] for key in masks}
        used = small.get("is_query", np.True_) | small.get("is_gallery", np.True_)
        junk = int((used & (labels == class_names.index("-1"))).sum()) if "-1" in class_names else 0
        self.junk = junk_note(junk, columns["labels"].dtype.kind not in "iu", split == "test") if junk else ""
        large = {"features": shape}
        large |= {"embeddings": (count, self.width)} if "embeddings" in columns else {}
        plain = [*large][-1]  # without augmentation, if the file has them so
        large |= {f"corrupted_{kind}": (count, self.width) for kind in kinds}
        for key, needed in large.items():
            column = columns[key]
            if column.shape != needed:
                raise BadInput(f"{key} has shape {[*column.shape]}; with features {[*shape]} it needs {[*needed]}")
            if column.dtype.kind != "f":
                kind = kind_of(np.empty(0, column.dtype))
                raise BadInput(f"{key} are {kind}; save them as float16 or float32, {key}.astype(np.float32)")
        path = folder / f"{split}.safetensors"
        self.constant: dict[str, int] = {}
        written = {key: held(value) for key, value in small.items()}
        written |= {key: self._checked(key, key == plain) for key in large}
        digest = write_safetensors(path, written, {})
        listed = {"class_names": class_names} | ({"ids": ids} if ids else {})
        (folder / f"{split}.json").write_text(json.dumps(listed), encoding="utf-8")
        self.entry = {"images": count, "bytes": path.stat().st_size, "sha256": digest, "corruptions": severities}
        self.about = "".join(names_of("about", columns["about"].whole()))[:200] if "about" in columns else ""
        self.names, self.ids, self.groups = map(_alike, (class_names, ids, groups))

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

    def _of_images(self, key: str) -> np.ndarray:
        """An array with one value for every image."""
        column = self.columns[key]
        if column.shape != (self.count,):
            raise BadInput(f"{key} has shape {[*column.shape]}; {self.count} images need [{self.count}]")
        return column.whole()

    def _severity(self, key: str) -> np.ndarray:
        given = self._of_images(key)
        if given.dtype.kind not in "biuf":
            raise BadInput(f"{key} must be numbers")
        severity: np.ndarray = given.astype(np.float64)
        if not (np.isfinite(severity).all() and severity.min() >= 0 and severity.max() <= 1):
            raise BadInput(f"{key} must be from 0 to 1 for every image")
        return severity

    def _labels(self) -> tuple[np.ndarray, list[str]]:
        """Labels from 0 in the order of the classes, and the name of each class."""
        given = self._of_images("labels")
        if given.dtype.kind not in "iu":
            labels, classes = labels_of(given)
            return labels, [*classes]
        found, labels = np.unique(given, return_inverse=True)
        names = names_of("labels", found)
        if "class_names" in self.columns:
            listed = names_of("class_names", self.columns["class_names"].whole())
            if found.min() < 0 or found.max() >= len(listed):
                raise BadInput(
                    f"labels are from {found.min()} to {found.max()}, and class_names has {len(listed)} names, from 0"
                )
            names = [listed[int(label)] for label in found]
        if len({*names}) < len(names):
            raise BadInput("class_names has the same name for several classes")
        return labels.astype(np.int64), names

    def _checked(self, key: str, plain: bool) -> Column:
        """An array as float16 or float32, whose numbers must be finite; counts constant features, hashes plain ones."""
        column = self.columns[key]
        dtype = np.dtype(np.float16 if column.dtype == np.float16 else np.float32)

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
                for row, digest in enumerate(_digests(flat[:: len(flat) // len(made)]) if plain else (), done):
                    self.rows.setdefault(digest, row)
                low, high = np.minimum(low, flat.min(0)), np.maximum(high, flat.max(0))
                done += len(made)
                self.progress(f"{self.split}: {key}", done, column.shape[0])
                yield made
            self.constant[key] = int((low == high).sum())
            if self.constant[key] == column.shape[-1]:
                raise BadInput(f"{key} are the same for all images")

        return Column(column.shape, dtype, blocks)
