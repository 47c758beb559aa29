"""The report of ``bench data verify``: the types of its JSON, and the check of one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import torch

from .decode import decode, open_image
from .errors import DataError

if TYPE_CHECKING:
    from .dataset import Dataset
    from .image_set import ImageSet


class SplitVerification(TypedDict):
    """Report on one split of a data set (training, validation or test): its size and a hash of its content.

    Attributes:
        images: Number of images.
        classes: Number of classes.
        manifest_sha256: SHA-256 of names and content of the images, see :meth:`ImageSet.manifest_sha256`.
        queries: Number of queries, if the data set prescribes which images are queries.
        gallery: Number of gallery images, likewise.
    """

    images: int
    classes: int
    manifest_sha256: str
    queries: NotRequired[int]
    gallery: NotRequired[int]


class SoftLabelVerification(TypedDict):
    """Report on the label distributions that people gave to the images of a data set.

    Attributes:
        file: Name of the CSV file.
        images: Number of images with a distribution.
        test_images: Number of these among the test images.
        classes: Number of classes of the distributions.
        sha256: SHA-256 of the file.
    """

    file: str
    images: int
    test_images: int
    classes: int
    sha256: str


class Verification(TypedDict):
    """Report on a data set of image files, every one of which has been decoded.

    Attributes:
        name: Name of the data set in this benchmark.
        release: Name under which its owners publish it.
        folder: Folder in which it was found.
        images: Number of images.
        classes: Number of classes.
        partial: Description of what is missing; empty for a complete data set.
        damaged: One line per file that cannot be read.
        converted_to_rgb: Number of images by colour mode, for modes other than RGB.
        splits: Reports on ``train``, ``val`` and ``test``; the first two are those of the first of four folds.
        soft_labels: Report on label distributions given by people, if there are any.
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
    """Report on a data set that is built in memory.

    Attributes:
        name: Name of the data set.
        images: Number of images in training, validation (of the first fold) and test together.
        classes: Number of their classes.
        shape: Channels, height and width of an image as a network sees it.
        splits: Reports on ``train``, ``val`` and ``test``; the first two are those of the first of four folds.
    """

    name: str
    images: int
    classes: int
    shape: tuple[int, ...]
    splits: dict[str, SplitVerification]


def verified(images: ImageSet) -> SplitVerification:
    """Report on a set of images: their number, the number of classes, and a hash of names and content.

    The keys are ``images``, ``classes`` and ``manifest_sha256``. If the set is divided into queries and gallery, their
    numbers ``queries`` and ``gallery`` follow.
    """
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

    Returns:
        ``name``, ``images`` and ``classes`` (their numbers), ``shape`` (channels, height and width of an image), and
        ``splits``: size and hash of ``train``, ``val`` and ``test``.

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
    """Try to decode an image file.

    Args:
        path: The file.

    Returns:
        Its colour mode, such as ``"RGB"``, and an empty string; or an empty string and the problem, if it cannot be
        read.
    """
    try:
        decode(path)
        with open_image(path) as image:
            return image.mode, ""
    except DataError as error:
        return "", str(error)


__all__ = [
    "MemoryVerification",
    "SoftLabelVerification",
    "SplitVerification",
    "Verification",
    "inspect",
    "verified",
    "verify_in_memory",
]
