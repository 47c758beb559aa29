"""Features that somebody has computed already, in place of images: a network without its backbone is trained on them.

`bench data features NAME` writes the folder of such a data set: ``features.json`` and one ``.safetensors`` file per
split, ``train`` and ``test`` and perhaps ``val``. Files are mapped into memory, never read as a whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from .augmentation import TrainingAugmentation
from .dataset import Dataset, Progress, TrainVal, Verification, register_dataset
from .feature_images import FeatureImages
from .files import DataError, check_regular
from .splits import train_and_validation_classes

INDEX = "features.json"
"""File of a data set of features with its name, its splits, and the SHA-256 of each file."""

LAYOUT = 1
"""Number of the layout of :data:`INDEX`."""


@dataclass(frozen=True)
class NoAugmentation(TrainingAugmentation):
    """Settings of the augmentation of features: there are none, since the views are made when images are embedded."""


@register_dataset
class Features(Dataset):
    """Features of images by a network that is not here, imported by ``bench data features``.

    An imported data set has the name that it was imported under; the name ``features`` takes the folder of one.
    """

    name = "features"
    summary = "features that you have computed (--data-root DIR, or a name of `bench data features`)"
    recipe = "features"
    augmentation_type = NoAugmentation
    image_size = ()  # type: ignore[assignment]  # an image is one vector
    folder: ClassVar[Path | None] = None
    """Folder of a data set that was imported under a name of its own."""

    def __init__(self, root: Path | None = None) -> None:
        """Read the index of an imported data set and map its files; their numbers were checked by the import.

        Raises:
            DataError: If the folder has no index, or a file is missing or of another size than the import wrote.
        """
        root = self.folder or root
        super().__init__(root)
        how = "`bench data features NAME --train FILE --test FILE` imports some"
        if root is None:
            raise DataError(f"{self.name} needs --data-root DIR, a folder of imported features; {how}")
        index = read_index(root)
        if index is None:
            raise DataError(f"{root} has no {INDEX}; {how}")
        self.index = index

    @property
    def input_channels(self) -> int:  # type: ignore[override]
        """Number of features."""
        return int(self.index["width"])

    @cached_property
    def _splits(self) -> dict[str, FeatureImages]:
        assert self.root is not None
        return {split: _mapped(self.root, split, found) for split, found in self.index["splits"].items()}

    @property
    def views(self) -> int:
        """Number of augmented views of every training image."""
        return self._splits["train"].views

    @property
    def corruptions(self) -> dict[str, tuple[float, float]]:
        """Corruptions under which all images were embedded, with the least and greatest severity in the test."""
        splits = self.index["splits"]
        return {
            kind: (ends[0], ends[1])
            for kind, ends in splits["test"]["corruptions"].items()
            if all(kind in split["corruptions"] for split in splits.values())
        }

    def train_val(self, fold: int = 0, folds: int = 4) -> TrainVal:
        """Training and validation images, of disjoint classes: as given by a file, else a block of the classes.

        Classes with images in one group stay together: they validate if the first of them does.
        """
        train = self._splits["train"]
        if "val" in self._splits:
            if fold or folds == 1:
                raise ValueError(f"{self.name} has a validation file, so that there is one fold only")
            return TrainVal(train, self._splits["val"], fold, folds)
        _, held_out = train_and_validation_classes(train.num_classes, fold, folds)
        first = _first_of_group(train)
        in_val = torch.isin(first[train.labels], torch.tensor(held_out))
        in_train = torch.ones_like(in_val) if folds == 1 else ~in_val
        if not bool(in_val.any()) or not bool(in_train.any()):
            raise ValueError("all classes are in one group, so that none can be held out for validation")
        parts = [train.select(part.nonzero().squeeze(1)) for part in (in_train, in_val)]
        return TrainVal(parts[0], parts[1], fold, folds)

    def test(self) -> FeatureImages:
        """Images of the test classes, with queries and gallery if the file has them."""
        images = self._splits["test"]
        for role in ("queries", "gallery"):
            mask = images.arrays.get({"queries": "is_query", "gallery": "is_gallery"}[role])
            setattr(images, role, None if mask is None else mask.nonzero().squeeze(1))
        return images

    def verify(self, progress: Progress | None = None) -> Verification:
        """Report as any data set; a DataError names a file whose SHA-256 is not that of the import."""
        assert self.root is not None
        for split, found in self.index["splits"].items():
            path = self.root / f"{split}.safetensors"
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != found["sha256"]:
                    raise DataError(f"{path}: damaged, its SHA-256 is another; import the features again")
        return super().verify(progress)

    def split_anew(self, seed: int) -> Self:
        """Refuse with a ValueError: training and test features are in files of their own."""
        raise ValueError(f"the split of data set {self.name!r} is fixed by its files")


def read_index(folder: Path) -> dict[str, Any] | None:
    """Index of an imported data set of features; None if the folder has none.

    Raises:
        DataError: If the file is damaged or of another version.
    """
    path = folder / INDEX
    if not path.exists():
        return None
    check_regular(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(found, dict) and {"name", "width", "splits", "about"} <= found.keys()
    except (OSError, ValueError):
        whole = False
    if not whole or found.get("layout") != LAYOUT:
        raise DataError(f"{path}: damaged, or of another version of bench; import the features again")
    return dict(found)


def _mapped(folder: Path, split: str, found: Mapping[str, Any]) -> FeatureImages:
    from safetensors import SafetensorError, safe_open

    path = folder / f"{split}.safetensors"
    check_regular(path)
    try:
        if path.stat().st_size != found["bytes"]:
            raise ValueError("it has another size than the import wrote")
        with safe_open(path, "pt") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        names = json.loads((folder / f"{split}.json").read_text(encoding="utf-8"))
        ids = names.get("ids") or [f"{split}/{row:08d}" for row in range(found["images"])]
        rows = torch.arange(found["images"])
        return FeatureImages(arrays, rows, arrays["labels"], ids, names["class_names"], found["sha256"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged ({str(error).splitlines()[0]}); import the features again") from None


def _first_of_group(images: FeatureImages) -> Tensor:
    """For each class ``[C]``, the first of the classes that groups of images link it to; itself if there are none."""
    first = torch.arange(images.num_classes)
    groups = images.arrays.get("groups")
    if groups is None:
        return first
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    _, numbers = torch.unique(groups[images.rows], return_inverse=True)
    nodes = images.num_classes + int(numbers.max()) + 1
    ends = images.labels.numpy(), images.num_classes + numbers.numpy()
    _, part = connected_components(coo_array((torch.ones(len(images)).numpy(), ends), shape=(nodes, nodes)))
    parts = torch.from_numpy(part[: images.num_classes]).long()
    lowest = torch.full((nodes,), images.num_classes).scatter_reduce(0, parts, first, "amin")
    return lowest[parts]
