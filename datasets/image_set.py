"""The interface of a set of labelled images."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from .augmentation import TrainingAugmentation

Item = TypeVar("Item")
Result = TypeVar("Result")


def require_tensor(what: str, value: object) -> None:
    """Check that a value is a torch tensor; the ValueError gives its type and how to convert it."""
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{what} must be a torch tensor, not {type(value).__name__}; torch.from_numpy converts an array"
        )


class ImageSet(ABC):
    """Labelled images that can be read augmented for training, unchanged for evaluation, or as centre crops.

    Attributes:
        labels: int64 ``[N]``, the class of each image, 0..C-1; every class has an image.
        ids: N different names, each the permanent identity of an image (e.g. ``"ndigit/test/047/3"``).
        class_names: C names, in the order of the labels.
        queries: Positions of the query images in the set, int64; None if every image is a query.
        gallery: Positions of the images that are searched, int64; None if every image is.
        soft_labels: Label distributions over K classes given by people, float64 ``[N, K]``: rows sum to 1, and are nan
            for images without a distribution. None if there are none.
        posterior: Function that returns the exact probability of each of the C classes given each image, float64
            ``[N, C]``: what an observer knows who knows how the images were made. Rows sum to 1, and are nan for images
            for which it is not known. None if that cannot be computed, as for every data set that was collected.
    """

    labels: Tensor
    queries: Tensor | None = None
    gallery: Tensor | None = None
    soft_labels: Tensor | None = None
    posterior: Callable[[], Tensor] | None = None
    ids: tuple[str, ...]
    class_names: tuple[str, ...]

    def __init__(self, labels: Tensor, ids: Iterable[str], class_names: Iterable[str]) -> None:
        """Check and store the labels.

        Raises:
            ValueError: If the labels are not exactly 0..C-1, or identities are missing or repeated.
        """
        require_tensor("labels, int64 [N],", labels)
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
        """SHA-256 (hexadecimal) of the content of the set, which does not depend on its order.

        It covers a line ``["id", "class name"]`` (JSON) per image, sorted by identity, then the bytes of
        :meth:`manifest_content`.
        """
        order = sorted(range(len(self)), key=self.ids.__getitem__)
        labels = self.labels.tolist()
        digest = hashlib.sha256()
        for i in order:
            digest.update(json.dumps([self.ids[i], self.class_names[labels[i]]]).encode() + b"\n")
        for block in self.manifest_content(order):
            digest.update(block)
        return digest.hexdigest()

    def manifest_content(self, order: Sequence[int]) -> Iterable[bytes]:
        """Content of the images as bytes, such as pixels, for the hash :meth:`manifest_sha256`; none by default.

        Args:
            order: Positions of the images in the set, in the order in which to give their content.
        """
        return ()

    @abstractmethod
    def pixels_of(self, index: Tensor) -> Tensor:
        """Pixels of some images as resized and cropped for evaluation, before normalisation.

        Args:
            index: int64 ``[B]``, positions in the set.

        Returns:
            uint8 ``[B, C, H, W]``.
        """

    @abstractmethod
    def normalised(self, pixels: Tensor) -> Tensor:
        """Convert pixels to the input of a network: scale to [0, 1] and, in some sets, normalise by mean and std.

        Args:
            pixels: uint8 ``[B, C, H, W]``, as :meth:`pixels_of` returns them.

        Returns:
            float32 ``[B, C, H, W]``.
        """

    def evaluation(self, index: Tensor) -> Tensor:
        """Images as resized and cropped for evaluation, converted by :meth:`normalised`; nothing is random.

        Args:
            index: int64 ``[B]``, positions in the set.

        Returns:
            float32 ``[B, C, H, W]``.
        """
        return self.normalised(self.pixels_of(index))

    @abstractmethod
    def training(
        self, index: Tensor, augmentation: TrainingAugmentation, generator: torch.Generator, out: Tensor | None = None
    ) -> Tensor:
        """Training images, augmented at random and converted to the input of a network by :meth:`normalised`.

        Args:
            index: int64 ``[B]``, positions in the set.
            augmentation: Settings of the augmentation, of the class that the data set declares as
                ``augmentation_type``.
            generator: Source of every random number.
            out: An earlier batch that is no longer needed, whose memory may be reused: allocating fresh pages for a
                large batch takes time. A batch of another shape is left alone, and a set may ignore ``out``.

        Returns:
            float32 ``[B, C, H, W]``.

        Raises:
            TypeError: If the settings are of another class.
        """

    @abstractmethod
    def cropped(self, index: Tensor, fraction: Tensor) -> Tensor:
        """Centre crops of some images, resized to the full size and converted to network input by :meth:`normalised`.

        Args:
            index: int64 ``[B]``, positions in the set.
            fraction: ``[B]``, side of each crop as a fraction of the image's side, in (0, 1]; 1 is the whole image, or
                the centred square of the shorter side of a photograph.

        Returns:
            float32 ``[B, C, H, W]``.
        """

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Apply a function to each item of a list, as the built-in ``map`` does; sets of image files do so in threads.

        Args:
            function: Called with one item.
            items: Any values, such as positions in the set, files or pixels.

        Yields:
            One result per item, in the order of the items.
        """
        return map(function, items)

    @abstractmethod
    def select(self, index: Tensor) -> ImageSet:
        """Subset of the images, in the given order.

        Args:
            index: int64 ``[M]``, different positions in the set.

        Returns:
            A new set: classes without an image are dropped, and the others are renumbered in their old order.
        """

    def selected_names(self, index: Tensor) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
        """Labels ``[M]`` renumbered from 0, identities, and names of the classes that occur in a subset."""
        classes, labels = torch.unique(self.labels[index], return_inverse=True)
        ids = tuple(self.ids[i] for i in index.tolist())
        return labels, ids, tuple(self.class_names[c] for c in classes.tolist())


__all__ = ["ImageSet", "require_tensor"]
