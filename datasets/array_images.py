"""Small images of one size that are kept in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from .augmentation import Augmentation, TrainingAugmentation, augment, centre_crop
from .dataset import Dataset, ImageSet, TrainVal, require_tensor
from .splits import development_and_test_classes, train_and_validation_classes

Part = Literal["train", "val", "test"]


class ArrayImages(ImageSet):
    """Small labelled images of one size, kept in memory.

    Attributes:
        labels: int64 ``[N]``, the class of each image, numbered from 0.
        ids: N different names, each the permanent identity of an image.
        class_names: Name of each class, in the order of the labels.
        pixels: Images, uint8 ``[N, C, H, W]``; the background is 0.
        mean: Value per channel that is subtracted from pixels scaled to [0, 1].
        std: Value per channel by which the difference is then divided.
    """

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        ids: Iterable[str],
        class_names: Iterable[str],
        *,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        """Check and store images.

        Raises:
            ValueError: If pixels, labels, identities or normalisation do not fit together.
        """
        require_tensor("pixels, uint8 [N, C, H, W],", pixels)
        super().__init__(labels, ids, class_names)
        if pixels.dim() != 4 or pixels.dtype != torch.uint8 or len(pixels) != len(self):
            raise ValueError(f"pixels must be uint8 [{len(self)}, C, H, W], not {pixels.dtype} {list(pixels.shape)}")
        if not len(mean) == len(std) == pixels.shape[1]:
            raise ValueError(f"mean and std need {pixels.shape[1]} values, one per channel")
        if min(std) <= 0:
            raise ValueError(f"std must be positive, not {min(std)}")
        self.pixels = pixels
        self.mean = tuple(mean)
        self.std = tuple(std)

    def manifest_content(self, order: Sequence[int]) -> Iterable[bytes]:
        """Raw pixels of each image as bytes, which :meth:`manifest_sha256` hashes after ids and class names."""
        return (self.pixels[i].numpy().tobytes() for i in order)

    def _unit(self, index: Tensor) -> Tensor:
        return self.pixels[index].to(torch.float32).div_(255)

    def pixels_of(self, index: Tensor) -> Tensor:
        """Unchanged pixels of some images, uint8 ``[B, C, H, W]``."""
        return self.pixels[index]

    def normalised(self, pixels: Tensor) -> Tensor:
        """Scale uint8 pixels to [0, 1], subtract the mean and divide by the standard deviation."""
        return self._normalise(pixels.to(torch.float32).div_(255))

    def _normalise(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(v, dtype=images.dtype)[:, None, None] for v in (self.mean, self.std))
        return (images - mean) / std

    def training(
        self, index: Tensor, augmentation: TrainingAugmentation, generator: torch.Generator, out: Tensor | None = None
    ) -> Tensor:
        """Training images, cropped, rotated and shifted at random by :func:`augment`, then normalised by mean and std.

        Raises:
            TypeError: If the settings are not an :class:`Augmentation`.
        """
        if not isinstance(augmentation, Augmentation):
            raise TypeError(f"images in memory are augmented by an Augmentation, not {type(augmentation).__name__}")
        return self._normalise(augment(self._unit(index), augmentation, generator))

    def cropped(self, index: Tensor, fraction: Tensor) -> Tensor:
        """Centre crops of some images, enlarged to the full size by :func:`centre_crop`, normalised by mean and std."""
        return self._normalise(centre_crop(self._unit(index), fraction))

    def select(self, index: Tensor) -> ArrayImages:
        """Subset of the images, in the given order, with a copy of their pixels."""
        labels, ids, class_names = self.selected_names(index)
        return ArrayImages(self.pixels[index], labels, ids, class_names, mean=self.mean, std=self.std)


class EmbeddedDataset(Dataset):
    """Base of the data sets that come with the installation: grey images, numbered classes, half for development.

    ``mean`` and ``std`` are those of the training pixels of fold 0, in [0, 1].
    """

    recipe = "ndigit"
    embedded = True
    kind = "toy"
    input_channels = 1
    splits_anew = True
    classes: ClassVar[int]
    mean: ClassVar[float]
    std: ClassVar[float]

    @abstractmethod
    def images(self, part: Part, classes: Sequence[int]) -> ArrayImages:
        """Images of some classes in one part of the data set."""

    def train_val(self, fold: int = 0, folds: int = 4) -> TrainVal:
        """Images of the training and the validation classes, which are disjoint."""
        development, _ = self.class_split(*development_and_test_classes(self.classes))
        parts = train_and_validation_classes(len(development), fold, folds)
        train, val = ([development[c] for c in part] for part in parts)
        return TrainVal(self.images("train", train), self.images("val", val), fold, folds)

    def test(self) -> ArrayImages:
        """Images of the test classes."""
        _, classes = self.class_split(*development_and_test_classes(self.classes))
        return self.images("test", classes)
