"""The interface of a data set: images split by class into training, validation and test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from .augmentation import Augmentation, TrainingAugmentation
from .image_set import ImageSet


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
        input_channels: Channels of the images that a network sees.
        image_size: Height and width of these images in pixels.
        augmentation_type: Class of the settings that :meth:`ImageSet.training` of its images takes.
        partial: Description of the missing images and classes, if the user accepted incomplete files; else empty.
        soft_labels_sha256: SHA-256 (hexadecimal) of the file of label distributions given by people; empty if there is
            none.
        version: Number to raise when images, labels or splits change; it is part of the ids of results.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    recipe: ClassVar[object] = "default"
    required: ClassVar[tuple[str, ...]] = ()
    embedded: ClassVar[bool] = False
    input_channels: ClassVar[int]
    image_size: ClassVar[tuple[int, int]]
    augmentation_type: ClassVar[type[TrainingAugmentation]] = Augmentation
    partial: str = ""
    soft_labels_sha256: str = ""
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

__all__ = ["Dataset", "TrainVal", "register", "register_dataset"]
