"""Omniglot (Lake et al. 2015): 1,623 handwritten characters of 50 alphabets, each drawn once by 20 people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .augmentation import TrainingAugmentation
from .dataset import register_dataset
from .downloads import Archive
from .files import DataError
from .photo_images import PhotoImages
from .releases import Listing, PhotoDataset, of_system

PARTS = {"images_background": "dev", "images_evaluation": "test"}
"""Folders of the release, and what the characters of their alphabets are for."""

QUARTERS = {"": 0, "@90": 1, "@180": 2, "@270": 3}
"""Quarters of a turn, anticlockwise, by the end of the name of a class or image: as it is, and turned by degrees."""

_SERVED = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"


@register_dataset
class Omniglot(PhotoDataset):
    """Omniglot split by alphabet, as published: 964 characters of 30 for development, 659 of 20 others for the test.

    Development is training and validation. A class is a character of an alphabet, such as ``Greek/character01``. They
    are in the order of the alphabets' names, so that a fold validates on whole alphabets, but for those at its ends.
    Drawn class splits (``data.class_splits``) draw characters: they test on characters of alphabets that train, too.

    Layout of the folder: ``images_background/ALPHABET/character01/0001_01.png``, and the same in
    ``images_evaluation``; 105 x 105 pixels, black on white.
    """

    name = "omniglot"
    recipe = "omniglot"
    summary = "Omniglot: 1,623 handwritten characters of 50 alphabets x 20 drawers, new alphabets in the test"
    kind = "characters"
    official = "Omniglot"
    source = "https://github.com/brendenlake/omniglot"
    needs = "images_background and images_evaluation"
    counts = (32460, 1623)
    part_classes = (964, 659)
    licence = "MIT"
    citation = (
        "Lake, Salakhutdinov, Tenenbaum: Human-level concept learning through probabilistic program induction,"
        " Science 2015"
    )
    archive = Archive(
        f"{_SERVED}/images_background.zip",
        "images_background.zip",
        9_464_212,
        "md5:68d2efa1b9178cc56df9314c21c6e718",
        further=(
            Archive(
                f"{_SERVED}/images_evaluation.zip",
                "images_evaluation.zip",
                6_462_886,
                "md5:6b91aef0f799c5bb55b94e3f2daec811",
            ),
        ),
    )

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Check if a folder contains the two folders of Omniglot; with only one of them it is a DataError."""
        there = [name for name in PARTS if (folder / name).is_dir()]
        if len(there) == 1:
            raise DataError(f"{folder} has {there[0]} alone, {cls.official} is {cls.needs}; {cls.advice()}")
        return bool(there)

    def list_images(self, folder: Path) -> Listing:
        """List the drawings by alphabet and character; background alphabets are for development."""
        listing = Listing(folder)
        for name, part in PARTS.items():
            for path in sorted((folder / name).glob("*/*/*.[pP][nN][gG]")):
                if not any(part.startswith(".") or of_system(part) for part in path.parts[-3:]):
                    character = f"{path.parts[-3]}/{path.parts[-2]}"
                    listing.add(f"{name}/{character}/{path.name}", character, character, part)
        if not listing.ids:
            raise DataError(f"{folder}: no image at {next(iter(PARTS))}/ALPHABET/character01/*.png; move its folders")
        return listing


@register_dataset
class OmniglotRotated(Omniglot):
    """Omniglot with four training classes of each: a character turned by 90, 180 and 270 degrees is a class of its own.

    So are the classes of training made in Vinyals et al., "Matching Networks for One Shot Learning" (2016). Validation
    and test are those of ``omniglot``.
    """

    name = "omniglot_rotated"
    summary = "Omniglot with each training character turned by 90, 180 and 270 degrees as further classes"

    def _train_and_val(self, fold: int, folds: int) -> tuple[PhotoImages, PhotoImages]:
        train, val = super()._train_and_val(fold, folds)
        return TurnedImages.of(train), val


class TurnedImages(PhotoImages):
    """Images that are turned by quarters, as the ends of their identities say, after all else that is done to them."""

    @classmethod
    def of(cls, images: PhotoImages) -> TurnedImages:
        """Images and their turned copies, which have classes of their own; all read one cache of training images."""
        whole, rows = images.within or (images, torch.arange(len(images)))
        return cls(
            images.paths * len(QUARTERS),
            torch.cat([images.labels + i * images.num_classes for i in range(len(QUARTERS))]),
            [f"{name}{turn}" for turn in QUARTERS for name in images.ids],
            [f"{name}{turn}" for turn in QUARTERS for name in images.class_names],
            view=images.view,
            threads=images.threads,
            within=(whole, rows.repeat(len(QUARTERS))),
        )

    def decoded(self, i: int) -> Tensor:
        """Whole image, turned, uint8 ``[3, H, W]``."""
        return self._turned(super().decoded(i)[None], [i])[0]

    def pixels_of(self, index: Tensor) -> Tensor:
        """Turned pixels of some images, uint8 ``[B, 3, S, S]``."""
        return self._turned(super().pixels_of(index), index.tolist())

    def training(
        self, index: Tensor, augmentation: TrainingAugmentation, generator: torch.Generator, out: Tensor | None = None
    ) -> Tensor:
        """Augmented training images, turned."""
        return self._turned(super().training(index, augmentation, generator, out), index.tolist())

    def _turned(self, images: Tensor, places: Sequence[int]) -> Tensor:
        quarters = (QUARTERS[self.ids[i].lower().rpartition(".png")[2]] for i in places)
        return torch.stack([image.rot90(quarter, (1, 2)) for image, quarter in zip(images, quarters)])
