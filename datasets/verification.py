"""The report of ``bench data verify``: the types of its JSON, and the check of one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import torch

from .decode import decode, open_image
from .files import DataError

if TYPE_CHECKING:
    from .dataset import Dataset, ImageSet


class SplitVerification(TypedDict):
    """Report on one split of a data set: its numbers of images and classes, and a hash of its content."""

    images: int
    classes: int
    manifest_sha256: str
    queries: NotRequired[int]
    gallery: NotRequired[int]


class SoftLabelVerification(TypedDict):
    """Report on label distributions given by people: the CSV file, the images that have one, and those of the test."""

    file: str
    images: int
    test_images: int
    classes: int
    sha256: str


class Verification(TypedDict):
    """Report on a data set of image files, every one of which has been decoded.

    ``partial`` describes what is missing, ``damaged`` has a line per file that cannot be read, ``converted_to_rgb``
    counts images by colour mode; ``train`` and ``val`` of the splits are those of the first of four folds.
    """

    name: str
    release: str
    folder: str
    images: int
    classes: int
    partial: str
    damaged: list[str]
    converted_to_rgb: dict[str, int]
    splits: dict[str, SplitVerification]
    soft_labels: NotRequired[SoftLabelVerification]


class MemoryVerification(TypedDict):
    """Report on a data set that is built in memory; training and validation are those of the first of four folds."""

    name: str
    images: int
    classes: int
    shape: tuple[int, ...]
    splits: dict[str, SplitVerification]


def verified(images: ImageSet) -> SplitVerification:
    """Report on a set of images; ``queries`` and ``gallery`` are given if the set is divided into them."""
    split: SplitVerification = {
        "images": len(images),
        "classes": images.num_classes,
        "manifest_sha256": images.manifest_sha256(),
    }
    if images.queries is not None and images.gallery is not None:
        split["queries"], split["gallery"] = len(images.queries), len(images.gallery)
    return split


def verify_in_memory(dataset: Dataset) -> MemoryVerification:
    """Build a data set that needs no files, and report counts, hashes of its splits and the shape of its images.

    Raises:
        ValueError: If its images do not have the shape that it declares, or its splits share a class.
    """
    split, test = dataset.train_val(), dataset.test()
    parts = {"train": split.train, "val": split.val, "test": test}
    declared = (dataset.input_channels, *dataset.image_size)
    seen: dict[str, str] = {}
    for part, images in parts.items():
        shape = tuple(images.evaluation(torch.tensor([0])).shape[1:])
        if shape != declared:
            raise ValueError(
                f"{part} images are {list(shape)}, but input_channels and image_size declare {list(declared)}"
            )
        for name in images.class_names:
            if name in seen:
                raise ValueError(f"class {name!r} is in both {seen[name]} and {part}")
            seen[name] = part
    splits = {part: verified(images) for part, images in parts.items()}
    return {
        "name": dataset.name,
        "images": sum(map(len, parts.values())),
        "classes": len(seen),
        "shape": declared,
        "splits": splits,
    }


def inspect(path: Path) -> tuple[str, str]:
    """Colour mode of an image file, such as ``"RGB"``, and an empty string; or an empty string and the problem."""
    try:
        decode(path)
        with open_image(path) as image:
            return image.mode, ""
    except DataError as error:
        return "", str(error)
