"""The interfaces of a data set, split by class into training, validation and test, and of a set of labelled images."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor

from .augmentation import Augmentation, TrainingAugmentation
from .splits import drawn_classes

Progress = Callable[[str, int, int], None]
"""Called with the name of a task, the number of images done and their total."""

Verification = dict[str, Any]
"""Report on a data set: ``name``, numbers of ``images`` and ``classes``, and ``splits``, a report on each.

Of image files, every one of which has been decoded, also ``release`` and ``folder``; ``partial`` describes what is
missing, ``damaged`` has a line per file that cannot be read, ``converted_to_rgb`` counts images by colour mode, and
``soft_labels`` is about label distributions, if there are any. Of a data set in memory also the ``shape`` of an image.
``train`` and ``val`` of the splits are those of the first of four folds.
"""

Item = TypeVar("Item")
Result = TypeVar("Result")
Class = TypeVar("Class")

Kind = Literal["photographs", "characters", "toy", ""]
"""What the images of a data set are, for the order of reports; empty if it does not say."""


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

    def report(self) -> Verification:
        """Numbers of images and classes, with a hash of the content; those of queries and gallery if there are any."""
        found: Verification = {
            "images": len(self),
            "classes": self.num_classes,
            "manifest_sha256": self.manifest_sha256(),
        }
        if self.queries is not None and self.gallery is not None:
            found["queries"], found["gallery"] = len(self.queries), len(self.gallery)
        return found

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

    def for_gpu(
        self,
        index: Tensor,
        augmentation: TrainingAugmentation,
        generator: torch.Generator,
        out: Tensor | None = None,
        room: int = 0,
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Training images up to what is better done on a GPU: a batch, and a function of it there that does the rest.

        The arguments and draws are those of :meth:`training`, and the result is that up to rounding. The set may keep
        ``room`` bytes on the GPU for its next batches.
        """
        return self.training(index, augmentation, generator, out), lambda batch: batch

    def view_of(self, index: Tensor, augmentation: TrainingAugmentation, view: int) -> Tensor:
        """One numbered augmented view of some images; its draws depend on the view and each image's identity alone.

        Args:
            index: int64 ``[B]``, positions in the set.
            augmentation: Settings of the augmentation, as :meth:`training` takes them.
            view: Number of the view, from 0.

        Returns:
            float32 ``[B, C, H, W]``.
        """

        def one(place: int) -> Tensor:
            digest = hashlib.blake2b(f"view {view}|{self.ids[place]}".encode("utf-8", "surrogateescape"), digest_size=8)
            generator = torch.Generator().manual_seed(int.from_bytes(digest.digest(), "big") >> 1)
            return self.training(torch.tensor([place]), augmentation, generator)

        return torch.cat(list(self.map(one, index.tolist())))

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


@dataclass(frozen=True)
class TrainVal:
    """Training and validation images of one fold: all data that training code receives.

    It holds no reference to test images. Development classes are those that are not for the test; they are cut into
    contiguous blocks, one of which is held out for validation.

    Attributes:
        train: Images of the training classes.
        val: Images of the validation classes.
        fold: Index of the block of development classes that is held out.
        folds: Number of blocks.
    """

    train: ImageSet
    val: ImageSet
    fold: int
    folds: int


class Dataset(ABC):
    """A data set that can be benchmarked: subclass it and decorate the class with :func:`register_dataset`.

    The constructor takes ``root``, the folder of the raw files; data sets that come with the installation need none.

    Attributes:
        name: Name on the command line and in the tables of results.
        summary: Description of one line for ``bench list``.
        recipe: Training recipe (settings of network, data and optimiser): a ``Recipe``, or the name of one in
            ``bench.protocols.recipes``. A class that sets none gets the variable ``RECIPE`` of its source file if there
            is one, else the recipe of its base class.
        required: Attributes that a subclass must define in addition to ``name`` and ``summary``.
        embedded: Whether the data come with the installation; others need the option ``--data-root``.
        kind: ``photographs``, ``characters`` (of people) or ``toy`` (small images that a program makes); empty if it is
            none of them. Reports begin with photographs and end with toys.
        licence: Terms under which its owners publish it.
        citation: Publication that the owners ask to cite, or who made the images.
        hub: Repository of a copy on the Hugging Face Hub, by which machine-readable results name it; empty if none.
        input_channels: Channels of the images that a network sees.
        image_size: Height and width of these images in pixels.
        augmentation_type: Class of the settings that :meth:`ImageSet.training` of its images takes.
        partial: Description of the missing images and classes, if the user accepted incomplete files; else empty.
        soft_labels_sha256: SHA-256 (hexadecimal) of the file of label distributions given by people; empty if there is
            none.
        splits_anew: Whether its ``train_val`` and ``test`` take their classes from :meth:`class_split`.
        class_seed: Seed that drew its training and test classes; None for its own split.
        version: Number to raise when images, labels or splits change; it is part of the ids of results.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    recipe: ClassVar[object] = "default"
    required: ClassVar[tuple[str, ...]] = ()
    embedded: ClassVar[bool] = False
    kind: ClassVar[Kind] = ""
    licence: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    hub: ClassVar[str] = ""
    input_channels: ClassVar[int]
    image_size: ClassVar[tuple[int, int]]
    augmentation_type: ClassVar[type[TrainingAugmentation]] = Augmentation
    partial: str = ""
    soft_labels_sha256: str = ""
    splits_anew: ClassVar[bool] = False
    class_seed: int | None = None
    version: ClassVar[int] = 1

    def __init__(self, root: Path | None = None) -> None:
        """Open the data set in a folder of raw files; embedded data sets need none."""
        self.root = root

    @abstractmethod
    def train_val(self, fold: int = 0, folds: int = 4) -> TrainVal:
        """Training and validation images, of disjoint classes.

        Both are of development classes, which are those that are not for the test.

        Args:
            fold: Index of the contiguous block of development classes held out for validation, 0 <= fold < folds.
            folds: Number of blocks that the development classes are cut into.

        Raises:
            ValueError: If the fold or the number of folds is out of range.
        """

    @abstractmethod
    def test(self) -> ImageSet:
        """Images of all test classes, none of which is used for training or validation."""

    def split_anew(self, seed: int) -> Self:
        """The same data set with other training and test classes, drawn by a seed; the validation classes stay.

        Raises:
            ValueError: If the split is fixed.
        """
        if not self.splits_anew:
            raise ValueError(f"the split of data set {self.name!r} is fixed")
        other = copy(self)
        other.class_seed = seed
        return other

    def class_split(self, development: Sequence[Class], test: Sequence[Class]) -> tuple[list[Class], list[Class]]:
        """Development and test classes: those of the own split, or those that ``class_seed`` draws in their place."""
        own = [*development], [*test]
        return own if self.class_seed is None else drawn_classes(development, test, self.class_seed)

    def verify(self, progress: Progress | None = None) -> Verification:
        """Build the splits, and report counts, hashes of the splits and the shape of the images.

        Raises:
            ValueError: If its images do not have the shape that it declares, or its splits share a class.
        """
        split = self.train_val()
        parts = {"train": split.train, "val": split.val, "test": self.test()}
        declared = (self.input_channels, *self.image_size)
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
        return {
            "name": self.name,
            "images": sum(map(len, parts.values())),
            "classes": len(seen),
            "shape": declared,
            "splits": {part: images.report() for part, images in parts.items()},
        }

    def remarks(self) -> Iterator[str]:
        """Lines about images that the recipe of the data set is not meant for."""
        yield from ()

    def without_training(self) -> str:
        """Advice on what to do with a data set that is too small for training; empty if there is none."""
        return ""


DatasetClass = TypeVar("DatasetClass", bound=type[Dataset])


def register_dataset(cls: DatasetClass) -> DatasetClass:
    """Mark a class as a data set that commands can find by its name; a class decorator.

    ``bench list`` reads the source without importing it, so the class must be at the top level of its file, with
    ``name`` and ``summary`` as plain strings.

    Returns:
        The class itself.

    Raises:
        TypeError: If the class is not a Dataset, or its name, its summary or anything that it must define is missing.
    """
    if not issubclass(cls, Dataset):
        raise TypeError(f"{cls.__name__} must subclass Dataset")
    for field in ("name", "summary"):
        value = cls.__dict__.get(field)
        if not isinstance(value, str) or not value or "\n" in value:
            raise TypeError(f"{cls.__name__}.{field} must be a non-empty string of one line in the class body")
    lacking = [*sorted(cls.__abstractmethods__), *(name for name in cls.required if not hasattr(cls, name))]
    if lacking:
        raise TypeError(f"class {cls.__name__} must define {', '.join(lacking)}")
    return cls


register = register_dataset
"""Former name of :func:`register_dataset`, which clashes with the decorator of methods in a file that defines both."""
