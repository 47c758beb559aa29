"""Data sets as their owners publish them: finding them on disk, checking them, splitting them by class."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ._base import DataError, Dataset, TrainVal
from .photographs import PhotoAugmentation, PhotoImages, Progress, View, decode
from .splits import development_and_test_classes, train_and_validation_classes

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm")
_DEPTH = 4


@dataclass
class Listing:
    """What a release says it holds.

    Attributes:
        folder: Where the identities are paths from.
        ids: Relative paths, the lasting identities of the images.
        classes: Class of each image; classes are ordered by this key.
        names: Name of each class.
        parts: Part of each image: ``""`` where classes are halved, else ``dev``, ``test``, ``query`` or ``gallery``.
    """

    folder: Path
    ids: list[str] = field(default_factory=list)
    classes: list[Any] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)

    def add(self, image: str, key: Any, name: str, part: str = "") -> None:
        """Add one image."""
        self.ids.append(image)
        self.classes.append(key)
        self.names[key] = name
        self.parts.append(part)

    def check_names(self) -> None:
        """Refuse names that no file of results could hold.

        Raises:
            DataError: With the first such name.
        """
        strange = next((name for name in self.ids if not _is_text(name)), None)
        if strange is not None:
            raise DataError(f"{self.folder}: the file name {strange!a} is not UTF-8; rename it")

    def keep(self, chosen: Sequence[bool]) -> Listing:
        """The images chosen, and their classes."""
        kept = Listing(self.folder)
        for image, key, part, wanted in zip(self.ids, self.classes, self.parts, chosen):
            if wanted:
                kept.add(image, key, self.names[key], part)
        return kept


def read_lines(path: Path) -> list[list[str]]:
    """Words of every line that has any.

    Raises:
        DataError: If the file cannot be read as text.
    """
    try:
        return [words for line in path.read_text(encoding="utf-8").splitlines() if (words := line.split())]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise DataError(f"{path}: {reason}") from None


def folders_below(root: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """``root`` and the folders below it, nearest first; folders full of class folders are not entered."""
    level = [root]
    for _ in range(depth + 1):
        below: list[Path] = []
        for folder in level:
            try:
                inside = sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir())
            except OSError as error:
                if folder == root:
                    raise DataError(f"{root}: {error.strerror}") from None
                continue  # not ours to read, lost+found for instance
            yield folder
            if folder == root or len(inside) <= 100:
                below += inside
        level = below


class PhotoDataset(Dataset):
    """A data set of image files, split by class: ``_is`` and ``_list`` are what a release has of its own.

    Attributes:
        official: Name of the release.
        source: Where its owners publish it.
        needs: The files it is recognised by, for messages.
        counts: Images and classes of the whole release; ``(0, 0)`` where any number is right.
        part_classes: Development and test classes of the whole release, where the release itself splits them.
    """

    input_channels = 3
    image_size = (224, 224)
    crop_shape = "square"
    augmentation_type = PhotoAugmentation
    official: ClassVar[str]
    source: ClassVar[str]
    needs: ClassVar[str]
    counts: ClassVar[tuple[int, int]] = (0, 0)
    part_classes: ClassVar[tuple[int, int]] = (0, 0)

    def __init__(
        self,
        root: Path | None = None,
        *,
        view: View | None = None,
        allow_partial: bool = False,
        threads: int = 1,
    ) -> None:
        """Find and list the images; no image is opened.

        Args:
            root: Folder that holds the release, at any depth down to four.
            view: How images are read.
            allow_partial: Accept a release in which images or classes are missing; :attr:`partial` then says what.
            threads: Threads that decode.

        Raises:
            DataError: If it is not there, is incomplete, or contradicts itself.
        """
        super().__init__(root)
        self.view, self.threads = view or View(), threads
        self.partial = ""
        """What is missing, as in ``"8144 of 16185 images, 196 of 196 classes"``; empty for a whole release."""
        if root is None:
            raise DataError(
                f"{self.name} needs --data-root DIR, the folder that holds {self.official}; {self.advice()}"
            )
        if not root.is_dir():
            raise DataError(f"--data-root {root}: no such folder")
        folder = next((f for f in folders_below(root) if self._is(f)), None)
        if folder is None:
            raise DataError(f"no {self.official} under {root} ({self.needs} not found); {self.advice(root)}")
        listing = self._list(folder)
        self.listing = self._checked(listing, allow_partial)

    @classmethod
    def advice(cls, root: Path | None = None) -> str:
        """Where to get it and what to do then."""
        return (
            f"get it from {cls.source}, then `bench data import {cls.name} ARCHIVE_OR_DIR --data-root {root or 'DIR'}`"
        )

    @classmethod
    @abstractmethod
    def _is(cls, folder: Path) -> bool:
        """Whether a folder is this release."""

    @abstractmethod
    def _list(self, folder: Path) -> Listing:
        """Images and classes as the release lists them."""

    def _checked(self, listing: Listing, allow_partial: bool) -> Listing:
        repeated = [name for name, count in Counter(listing.ids).items() if count > 1]
        if repeated:
            raise DataError(f"{self.official}: {len(repeated)} images are listed more than once, such as {repeated[0]}")
        listing.check_names()
        there = [os.path.exists(os.path.join(listing.folder, name)) for name in listing.ids]
        absent = [name for name, found in zip(listing.ids, there) if not found]
        present = listing.keep(there) if absent else listing
        images, classes = self.counts if self.counts[0] else (len(listing.ids), len(listing.names))
        have = (len(present.ids), len(present.names))
        if len(present.names) < 4:
            raise DataError(
                f"{self.official} at {listing.folder}: {have[0]} images of {have[1]} classes; training, validation and"
                " test classes need at least 4"
            )
        if have == (images, classes) and not absent:
            return present
        missing = f", {len(absent)} listed ones are not there, such as {absent[0]}" if absent else ""
        what = f"{have[0]} of {images} images, {have[1]} of {classes} classes"
        if have[0] > images or have[1] > classes:
            raise DataError(f"{self.official} has {images} images of {classes} classes, {listing.folder} lists {what}")
        if not allow_partial:
            raise DataError(
                f"{self.official} at {listing.folder} is incomplete: {what}{missing};"
                f" complete it ({self.source}), or use --allow-partial"
            )
        self.partial = what
        return present

    def _classes(self) -> tuple[list[Any], list[Any]]:
        """Development and test classes, in order."""
        listing = self.listing
        parts = set(listing.parts)
        if parts == {""}:
            keys = sorted(listing.names)
            dev, test = development_and_test_classes(len(keys))
            return [keys[i] for i in dev], [keys[i] for i in test]
        of = {part: {k for k, p in zip(listing.classes, listing.parts) if p == part} for part in parts}
        dev_keys = of.pop("dev", set())
        test_keys = set().union(*of.values())
        shared = dev_keys & test_keys
        if shared:
            name = listing.names[min(shared)]
            raise DataError(f"{self.official}: {len(shared)} classes are in both halves, such as {name}")
        found = (len(dev_keys), len(test_keys))
        if not self.partial and self.part_classes != (0, 0) and found != self.part_classes:
            raise DataError(f"{self.official} has {self.part_classes} development and test classes, not {found}")
        if len(dev_keys) < 2 or not test_keys:
            raise DataError(f"{self.official}: {found[0]} development and {found[1]} test classes cannot be split")
        return sorted(dev_keys), sorted(test_keys)

    def _images(self, keys: Sequence[Any]) -> PhotoImages:
        number = {key: i for i, key in enumerate(keys)}
        rows = [i for i, key in enumerate(self.listing.classes) if key in number]
        return PhotoImages(
            [self.listing.folder / self.listing.ids[i] for i in rows],
            torch.tensor([number[self.listing.classes[i]] for i in rows]),
            [self.listing.ids[i] for i in rows],
            [self.listing.names[key] for key in keys],
            view=self.view,
            threads=self.threads,
        )

    def train_val(self, fold: int = 0, folds: int = 4) -> TrainVal:
        """Training and validation images of the development classes."""
        dev, _ = self._classes()
        # A small part of a release may have fewer classes than there are folds.
        classes = train_and_validation_classes(len(dev), fold, folds if folds == 1 else min(folds, len(dev)))
        whole = self._development
        train, val = (
            whole.select(torch.isin(whole.labels, torch.tensor(part)).nonzero().squeeze(1)) for part in classes
        )
        return TrainVal(train, val, fold, folds)

    @cached_property
    def _development(self) -> PhotoImages:
        return self._images(self._classes()[0])

    def test(self) -> PhotoImages:
        """Test images; with the roles of queries and gallery where the release gives them."""
        _, keys = self._classes()
        images = self._images(keys)
        wanted = set(keys)
        parts = [p for key, p in zip(self.listing.classes, self.listing.parts) if key in wanted]
        if {"query", "gallery"} & set(parts):
            images.queries, images.gallery = _rows(parts, "query"), _rows(parts, "gallery")
            if len(images.queries) == 0 or len(images.gallery) < 2:
                raise DataError(
                    f"{self.official}: {len(images.queries)} queries and {len(images.gallery)} gallery images cannot be"
                    " ranked"
                )
        return images

    def prepare(self, fold: int = 0, folds: int = 4, progress: Progress | None = None) -> None:
        """Decode every image once and keep its pixels, so that a damaged file stops a run before its first epoch.

        Raises:
            DataError: With the damaged images.
        """
        self._development.prepare(["training"], progress)
        self.train_val(fold, folds).val.prepare(["evaluation"], progress)  # type: ignore[attr-defined]
        self.test().prepare(["evaluation"], progress)

    def verify(self, progress: Progress | None = None) -> dict[str, Any]:
        """Decode every image and say what is there: counts, split manifests, damaged and converted images."""
        listing = self.listing
        split, test = self.train_val(), self.test()
        damaged: list[str] = []
        converted: Counter[str] = Counter()
        everything = [listing.folder / name for name in listing.ids]
        for number, (mode, problem) in enumerate(test._mapped(_inspect, everything)):
            if problem:
                damaged.append(problem)
            elif mode != "RGB":
                converted[mode] += 1
            if progress is not None:
                progress("checking images", number + 1, len(everything))
        found: dict[str, Any] = {
            "name": self.name,
            "release": self.official,
            "folder": str(listing.folder),
            "images": len(listing.ids),
            "classes": len(listing.names),
            "partial": self.partial,
            "damaged": damaged,
            "converted_to_rgb": dict(converted),
            "splits": {
                name: {"images": len(part), "classes": part.num_classes, "manifest_sha256": part.manifest_sha256()}
                for name, part in (("train", split.train), ("val", split.val), ("test", test))
            },
        }
        if test.queries is not None and test.gallery is not None:
            found["splits"]["test"] |= {"queries": len(test.queries), "gallery": len(test.gallery)}
        return found


def _inspect(path: Path) -> tuple[str, str]:
    """Colour mode of an image file, and what is wrong with it."""
    from PIL import Image

    try:
        decode(path)
        with Image.open(path) as image:
            return image.mode, ""
    except DataError as error:
        return "", str(error)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _rows(parts: Sequence[str], part: str) -> Tensor:
    return torch.tensor([i for i, p in enumerate(parts) if p == part], dtype=torch.long)
