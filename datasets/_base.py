"""What a data set is: sets of labelled images, split by class into training, validation and test."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from .augmentation import Augmentation, augment, centre_crop
from .corruptions import CROP, corrupt

T = TypeVar("T")


class DataError(ValueError):
    """What is wrong with the files of a data set, in one line that says what to do."""


class ImageSet(ABC):
    """Labelled images that can be read for training, for evaluation, or corrupted.

    Attributes:
        labels: int64 ``[N]``, the class of each image, 0..C-1; every class has an image.
        ids: N different names, each the lasting identity of an image (e.g. ``"ndigit/test/047/3"``).
        class_names: C names, in the order of the labels.
        queries: Rows that are queries, where the data set says so; else None, and every image is one.
        gallery: Rows that are searched, likewise.
        soft_labels: Where people's label distributions are known, float64 ``[N, K]`` with rows that sum to 1 and rows
            of nan for the images without one.
    """

    labels: Tensor
    queries: Tensor | None = None
    gallery: Tensor | None = None
    soft_labels: Tensor | None = None
    ids: tuple[str, ...]
    class_names: tuple[str, ...]

    def __init__(self, labels: Tensor, ids: Iterable[str], class_names: Iterable[str]) -> None:
        """Check and store the labels.

        Raises:
            ValueError: If the labels are not exactly 0..C-1, or identities are missing or repeated.
        """
        self.labels = labels.to(torch.int64)
        self.ids = tuple(ids)
        self.class_names = tuple(class_names)
        if self.labels.shape != (len(self.ids),):
            raise ValueError(f"{len(self.ids)} images need as many labels, not shape {list(self.labels.shape)}")
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("image identities must be unique")
        if not torch.equal(torch.unique(self.labels), torch.arange(len(self.class_names))):
            raise ValueError(f"labels must be 0..{len(self.class_names) - 1} (one per class name), each at least once")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    def manifest_sha256(self) -> str:
        """SHA-256 (hexadecimal) of what is in the set, whatever its order.

        It covers a line ``["id", "class name"]`` (JSON) per image in the order of the identities, then
        whatever the set adds: images in memory add their pixels.
        """
        order = sorted(range(len(self)), key=self.ids.__getitem__)
        labels = self.labels.tolist()
        digest = hashlib.sha256()
        for i in order:
            digest.update(json.dumps([self.ids[i], self.class_names[labels[i]]]).encode() + b"\n")
        for block in self._content(order):
            digest.update(block)
        return digest.hexdigest()

    def _content(self, order: Sequence[int]) -> Iterable[bytes]:
        """What the manifest covers beside the names, image by image in the given order."""
        return ()

    @abstractmethod
    def pixels_of(self, index: Tensor) -> Tensor:
        """Images as they are evaluated, before normalisation.

        Args:
            index: int64 ``[B]``, positions in the set.

        Returns:
            uint8 ``[B, C, H, W]``.
        """

    @abstractmethod
    def normalised(self, pixels: Tensor) -> Tensor:
        """What a network is given.

        Args:
            pixels: uint8 ``[B, C, H, W]``.

        Returns:
            float32 ``[B, C, H, W]``.
        """

    def evaluation(self, index: Tensor) -> Tensor:
        """Normalised images, always the same.

        Args:
            index: int64 ``[B]``, positions in the set.

        Returns:
            float32 ``[B, C, H, W]``.
        """
        return self.normalised(self.pixels_of(index))

    @abstractmethod
    def training(
        self, index: Tensor, augmentation: Augmentation, generator: torch.Generator, out: Tensor | None = None
    ) -> Tensor:
        """Normalised images, augmented at random.

        Args:
            index: int64 ``[B]``, positions in the set.
            augmentation: Settings of the augmentation.
            generator: Source of every random number.
            out: An earlier batch that is no longer needed: its memory may be used again, since fresh pages for a
                large batch take time. What does not fit is left alone, and a set may ignore it.

        Returns:
            float32 ``[B, C, H, W]``.
        """

    @abstractmethod
    def corrupted(self, index: Tensor, fraction: Tensor) -> Tensor:
        """Normalised centre crops, resized to the full size.

        Args:
            index: int64 ``[B]``, positions in the set.
            fraction: ``[B]``, side of each crop as a fraction of the image's side, in (0, 1]; 1 is all of it.

        Returns:
            float32 ``[B, C, H, W]``.
        """

    def degraded(self, kind: str, index: Tensor, quality: Tensor, seed: int) -> Tensor:
        """Normalised images under a corruption of :mod:`~bench.datasets.corruptions`.

        Args:
            kind: Its name; ``crop`` is :meth:`corrupted`.
            index: int64 ``[B]``, positions in the set.
            quality: ``[B]``, what is left of each image: 1 - severity, in [0, 1].
            seed: Seed of what the corruption draws; a draw depends on the seed and the image's identity alone.

        Returns:
            float32 ``[B, C, H, W]``; where the quality is 1, the clean images bit for bit.
        """
        if kind == CROP:
            return self.corrupted(index, quality)
        parts = list(zip(self.pixels_of(index), (1 - quality).tolist(), index.tolist()))
        made = self._mapped(lambda part: corrupt(kind, part[0], part[1], self.ids[part[2]], seed), parts)
        return self.normalised(torch.stack(list(made)))

    def _mapped(self, function: Callable[[Any], T], items: Sequence[Any]) -> Iterable[T]:
        """``map``, in order; a set may use threads."""
        return map(function, items)

    @abstractmethod
    def select(self, index: Tensor) -> ImageSet:
        """Subset of the images, in the given order.

        Args:
            index: int64 ``[M]``, different positions in the set.

        Returns:
            A set of its own: classes without an image are dropped and the others numbered anew, in order.
        """

    def _selected_names(self, index: Tensor) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
        """Labels, identities and class names of a subset, as the constructor takes them."""
        classes, labels = torch.unique(self.labels[index], return_inverse=True)
        ids = tuple(self.ids[i] for i in index.tolist())
        return labels, ids, tuple(self.class_names[c] for c in classes.tolist())


class ArrayImages(ImageSet):
    """Small images of one size, in memory.

    Attributes:
        pixels: uint8 ``[N, C, H, W]``, background 0.
        mean: Mean of each channel in [0, 1], subtracted.
        std: Standard deviation of each channel, divided by.
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

    def _content(self, order: Sequence[int]) -> Iterable[bytes]:
        return (self.pixels[i].numpy().tobytes() for i in order)

    def _unit(self, index: Tensor) -> Tensor:
        return self.pixels[index].to(torch.float32).div_(255)

    def pixels_of(self, index: Tensor) -> Tensor:
        return self.pixels[index]

    def normalised(self, pixels: Tensor) -> Tensor:
        return self._normalise(pixels.to(torch.float32).div_(255))

    def _normalise(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(v, dtype=images.dtype)[:, None, None] for v in (self.mean, self.std))
        return (images - mean) / std

    def training(
        self, index: Tensor, augmentation: Augmentation, generator: torch.Generator, out: Tensor | None = None
    ) -> Tensor:
        return self._normalise(augment(self._unit(index), augmentation, generator))

    def corrupted(self, index: Tensor, fraction: Tensor) -> Tensor:
        return self._normalise(centre_crop(self._unit(index), fraction))

    def select(self, index: Tensor) -> ArrayImages:
        labels, ids, class_names = self._selected_names(index)
        return ArrayImages(self.pixels[index], labels, ids, class_names, mean=self.mean, std=self.std)


@dataclass(frozen=True)
class TrainVal:
    """All that training code receives: no route leads from here to test images.

    Attributes:
        train: Images of the training classes.
        val: Images of the validation classes.
        fold: Which block of the development classes validates.
        folds: Number of blocks.
    """

    train: ImageSet
    val: ImageSet
    fold: int
    folds: int


class Dataset(ABC):
    """A data set. Subclass it, decorate with :func:`register`, and it can be benchmarked.

    Attributes:
        name: Name on the command line and in the tables.
        summary: One line for ``bench list``.
        embedded: Whether the data come with the installation; others need ``--data-root``.
        input_channels: Channels of the images that a network sees.
        image_size: Their height and width in pixels.
        crop_shape: Shape of the crops that corrupt test images: ``"image"`` keeps the image's aspect ratio,
            ``"square"`` is for photographs.
        augmentation_type: Settings of its training augmentation.
        partial: What is missing of it, if that was allowed.
        soft_labels_sha256: Of people's label distributions of its test images, if there are some.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    embedded: ClassVar[bool] = False
    input_channels: ClassVar[int]
    image_size: ClassVar[tuple[int, int]]
    crop_shape: ClassVar[Literal["image", "square"]]
    augmentation_type: ClassVar[type] = Augmentation
    partial: str = ""
    soft_labels_sha256: str = ""
    _registered: ClassVar[bool] = False

    def __init__(self, root: Path | None = None) -> None:
        """Open the data set.

        Args:
            root: Folder of the raw files; embedded data sets need none.
        """
        self.root = root

    @abstractmethod
    def train_val(self, fold: int = 0, folds: int = 4) -> TrainVal:
        """Training and validation images: disjoint classes of the development half.

        Args:
            fold: Which contiguous block of the development classes validates, 0 <= fold < folds.
            folds: Number of blocks.

        Raises:
            ValueError: If the fold or the number of folds is out of range.
        """

    @abstractmethod
    def test(self) -> ImageSet:
        """Test images: all of the test classes."""


D = TypeVar("D", bound=type[Dataset])


def register(cls: D) -> D:
    """Mark a class as a data set of the registry.

    Listings read the class from the source alone: it must stand at the top level of its file, with ``name``
    and ``summary`` as plain strings.

    Raises:
        TypeError: If the class is not a Dataset, or its name or summary are missing.
    """
    if not issubclass(cls, Dataset):
        raise TypeError(f"{cls.__name__} must subclass Dataset")
    for field in ("name", "summary"):
        value = cls.__dict__.get(field)
        if not isinstance(value, str) or not value or "\n" in value:
            raise TypeError(f"{cls.__name__}.{field} must be a non-empty string of one line in the class body")
    cls._registered = True
    return cls


__all__ = ["ArrayImages", "DataError", "Dataset", "ImageSet", "TrainVal", "register"]
