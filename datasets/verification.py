"""The report of ``bench data verify``: the types of its JSON, and the check of one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .decode import decode, open_image
from .files import DataError

if TYPE_CHECKING:
    from .dataset import Dataset, ImageSet


Verification = dict[str, Any]
"""Report on a data set: ``name``, numbers of ``images`` and ``classes``, and ``splits``, a report on each.

Of image files, every one of which has been decoded, also ``release`` and ``folder``; ``partial`` describes what is
missing, ``damaged`` has a line per file that cannot be read, ``converted_to_rgb`` counts images by colour mode, and
``soft_labels`` is about label distributions, if there are any. Of a data set in memory also the ``shape`` of an image.
``train`` and ``val`` of the splits are those of the first of four folds.
"""


def verified(images: ImageSet) -> Verification:
    """Report on a set of images, with a hash of its content; ``queries`` and ``gallery`` if it is divided into them."""
    split: Verification = {
        "images": len(images),
        "classes": images.num_classes,
        "manifest_sha256": images.manifest_sha256(),
    }
    if images.queries is not None and images.gallery is not None:
        split["queries"], split["gallery"] = len(images.queries), len(images.gallery)
    return split


def verify_in_memory(dataset: Dataset) -> Verification:
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
