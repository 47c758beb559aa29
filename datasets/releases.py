"""Data sets in the form in which their owners publish them: found on disk, checked, and split by class."""

from __future__ import annotations

import os
import re
import shlex
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from .damage import DamagedImages
from .dataset import Dataset, Kind, Progress, TrainVal, Verification
from .decode import decode, open_image
from .downloads import Archive
from .files import DataError, MissingRelease
from .photo_images import PhotoImages, Purpose
from .splits import development_and_test_classes, train_and_validation_classes
from .tables import LONGEST, open_list
from .view import PhotoAugmentation, View

UNTESTED = "untested"
"""Part of images that may train, and that no test contains even if their class is tested."""

PARTS = ("dev", "test", "query", "gallery", UNTESTED)
"""Parts that a release may assign images to."""

_ADD = f"add(image, key, name, part) takes a part of {', '.join(PARTS)}, or none"

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".heic", ".heif"),
)
_DEPTH = 4

_OF_SYSTEMS = {"@eadir", "@tmp", "@recycle", "@__thumb", "#recycle", "#snapshot", "$recycle.bin", "recycler"} | {
    *("__macosx", "lost+found", "system volume information", "thumbs.db", "desktop.ini", "ehthumbs.db")
}
"""Names of folders and files of storage boxes and systems, which hold thumbnails, bins and copies of the images."""
_NO_TEXT = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass
class Listing:
    """Images and classes of a release, which is a data set in the form in which its owners publish it.

    Attributes:
        folder: Folder that the identities are relative to.
        ids: Relative paths, the permanent identities of the images.
        classes: Sortable key of the class of each image, such as its number; classes are ordered by it.
        names: Name of each class, by its key.
        parts: Part of each image: ``dev`` (training and validation), ``test``, ``query``, ``gallery`` or
            :data:`UNTESTED`. If the release has no parts, it is ``""`` for all images; the first half of the classes is
            then used as ``dev`` and the second as ``test``.
        groups: What the image shares with others of its class that do not count, such as the camera or the burst; else
            empty.
        notes: Lines about files of the folder that are not listed, and about how splits are read.
    """

    folder: Path
    ids: list[str] = field(default_factory=list)
    classes: list[Any] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, image: str, key: Any, name: str, part: str = "", group: str = "") -> None:
        """Add one image: path relative to the folder, sortable key and name of its class, part and group if any.

        Raises:
            DataError: If a path or name is not text, or the part is unknown.
        """
        for what, text in (("image", image), ("name", name)):
            if not isinstance(text, str):
                raise DataError(f"listing.add: {what} must be text, not {type(text).__name__} {text}; {_ADD}")
        if part not in ("", *PARTS):
            raise DataError(f"listing.add: unknown part {part!r}; {_ADD}")
        self.ids.append(image)
        self.classes.append(key)
        self.names[key] = name
        self.parts.append(part)
        self.groups.append(group)

    def check_names(self) -> None:
        """Refuse names that are not UTF-8, have a control character, lead out of the folder or are there twice."""
        for wrong, said in (
            (_leads_out, "{} is listed, which is not the path of a file below it; correct the list"),
            (_NO_TEXT.search, "the file name {} is not UTF-8; rename it"),
            (_CONTROL.search, "the file name {} has a control character; rename it"),
        ):
            name = next(filter(wrong, self.ids), None)
            if name is not None:
                raise DataError(f"{self.folder}: {said.format(ascii(name[:200]))}")
        repeated = [name for name, count in Counter(self.ids).items() if count > 1]
        if repeated:
            raise DataError(f"{self.folder}: {len(repeated)} images are listed more than once, such as {repeated[0]}")

    def keep(self, chosen: Sequence[bool]) -> Listing:
        """Listing of some of the images, one truth value per image, and of their classes."""
        kept = Listing(self.folder, notes=self.notes)
        for image, key, part, group, wanted in zip(self.ids, self.classes, self.parts, self.groups, chosen):
            if wanted:
                kept.add(image, key, self.names[key], part, group)
        return kept


def class_number(text: str) -> int | None:
    """Number of a class, or None if the text is no number from 0 to 999,999,999.

    Example:
        >>> class_number("042"), class_number("4²"), class_number("9" * 5000)
        (42, None, None)
    """
    return int(text) if len(text) < 10 and text.isascii() and text.isdigit() else None


def read_lines(path: Path) -> list[list[str]]:
    """Read a text file as one list of words per line; blank lines are left out.

    Args:
        path: A UTF-8 text file of at most 256 MB, with lines of at most 1000 characters.

    Returns:
        The words of each line.

    Raises:
        DataError: If the file cannot be read as text, or is larger than that.
    """
    try:
        with open_list(path) as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file in UTF-8"
        raise DataError(f"{path}: {reason}") from None
    longest = max(map(len, lines), default=0)
    if longest > LONGEST:
        raise DataError(f"{path}: a line has {longest} characters; not a list of images")
    return [words for line in lines if (words := line.split())]


def of_system(name: str) -> bool:
    """Check by its name if a file or folder is one that a storage box or system keeps among those of its user."""
    return name.lower() in _OF_SYSTEMS


def folders_below(root: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """List a folder and the folders below it, nearest first, each level in the order of names.

    Below the first folder, folders with more than 100 subfolders are listed themselves, but not entered. Hidden ones,
    such as those of an unfinished import, and those of systems are left out, and so are those that cannot be read.
    Links are followed, but no folder is listed twice.
    """
    level, seen = [root], set[str]()
    for _ in range(depth + 1):
        below: list[Path] = []
        for folder in level:
            if (real := os.path.realpath(folder)) in seen:
                continue
            seen.add(real)
            try:
                entries = [
                    each for each in os.scandir(folder) if not each.name.startswith(".") and not of_system(each.name)
                ]
                inside = sorted(Path(entry.path) for entry in entries if entry.is_dir())
            except OSError as error:
                if folder == root:
                    raise DataError(f"{root}: {error.strerror}") from None
                continue  # no permission, for instance for lost+found
            yield folder
            if folder == root or len(inside) <= 100:
                below += inside
        level = below


class PhotoDataset(Dataset):
    """A data set of image files, split by class; subclasses define :meth:`recognises` and :meth:`list_images`.

    Its release is the data set in the form in which its owners publish it.

    Args:
        root: Folder that contains the release, at most four levels down; without one, an error says how to get it.
        view: Settings of how images are resized, cropped and cached; the defaults of :class:`View` if None.
        allow_partial: Accept a release in which images or classes are missing.
        threads: Number of threads that decode images.

    Attributes:
        official: Name of the release.
        source: Address at which its owners publish it.
        needs: Names of the files by which it is recognised, for error messages.
        counts: Numbers of images and classes of the complete release; ``(0, 0)`` if any number is right.
        part_classes: Numbers of development classes (for training and validation) and test classes of the complete
            release, if the release splits them; else ``(0, 0)``.
        archive: Archive that the owners serve openly, which ``bench data download`` fetches; None if they serve none.
        by_hand: Description of the files to fetch by hand, for a release without such an archive.
        class_list: File of this package with the official names of the classes, by their numbers from 1. Copies in
            other layouts (parquet, tables, class folders below splits) are then read, their classes numbered by name.
        copy_parts: Parts that such a copy must have itself, for a release whose classes have no names.
        listing: Paths, classes and parts (such as ``test``) of the images that were found.
        partial: Description of an incomplete release, as in ``"8144 of 16185 images, 196 of 196 classes"``; empty for a
            complete one.
    """

    recipe = "folder"
    kind: ClassVar[Kind] = "photographs"
    required = ("official", "source", "needs")
    input_channels = 3
    image_size = (224, 224)
    splits_anew = True
    augmentation_type = PhotoAugmentation
    official: ClassVar[str]
    source: ClassVar[str]
    needs: ClassVar[str]
    counts: ClassVar[tuple[int, int]] = (0, 0)
    part_classes: ClassVar[tuple[int, int]] = (0, 0)
    archive: ClassVar[Archive | None] = None
    by_hand: ClassVar[str] = ""
    class_list: ClassVar[str] = ""
    copy_parts: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        root: Path | None = None,
        *,
        view: View | None = None,
        allow_partial: bool = False,
        threads: int = 1,
    ) -> None:
        """Find and list the images; no image is opened.

        Raises:
            DataError: If the release is not found, is incomplete, or contradicts itself.
        """
        super().__init__(root)
        self.view, self.threads = view or View(), threads
        self.partial = ""
        if root is None:
            raise MissingRelease(
                f"{self.name} needs --data-root DIR, the folder that contains {self.official}; {self.advice()}"
            )
        if not root.is_dir():
            raise MissingRelease(f"--data-root {root}: no such folder; {self.advice(root)}")
        folder, wrong = None, list[DataError]()
        for each in folders_below(root):
            try:
                if self.recognises(each):
                    folder = each
                    break
            except DataError as error:  # the release may be next to it
                wrong.append(error)
        if folder is None and wrong:
            raise wrong[0]
        listing = self._copy(root) if folder is None else self.list_images(folder)
        if listing is None:
            raise MissingRelease(f"no {self.official} under {root} ({self.needs} not found); {self.advice(root)}")
        self.listing = listing
        self.listing = self._checked(self.listing, allow_partial)

    def _copy(self, root: Path) -> Listing | None:
        """Images of a copy in another layout at the root, or in the folder there of this name; None without one."""
        from .folder import splits_or_table

        # The name of a variant, such as inshop_merged, begins with that of its data set.
        places = (root, root / self.name.partition("_")[0]) if self.class_list or self.copy_parts else ()
        copy = next(filter(None, (splits_or_table(each) for each in places if each.is_dir())), None)
        if copy is None or not self.class_list:
            if copy and {*copy.parts} != {*self.copy_parts}:
                need = ", ".join(self.copy_parts).replace("dev", "train")
                raise DataError(f"{root} does not say which images of {self.official} are {need}; {self.advice(root)}")
            return copy
        official = (Path(__file__).parent / self.class_list).read_text(encoding="utf-8").splitlines()
        numbers = {_plain_name(name): number for number, name in enumerate(official, 1)}
        strange = [name for name in copy.names.values() if _plain_name(name) not in numbers]
        if strange:
            raise DataError(
                f"{root}: {len(strange)} of {len(copy.names)} classes are none of {self.official}, such as"
                f" {strange[0][:100]!a}; {self.advice(root)}"
            )
        listing = Listing(copy.folder, notes=copy.notes[:])
        for image, key in zip(copy.ids, copy.classes):
            number = numbers[_plain_name(copy.names[key])]
            listing.add(image, number, official[number - 1])
        absent = [name for number, name in enumerate(official, 1) if number not in listing.names]
        if absent:
            listing.notes.append(f"{len(absent)} of its classes have no image, such as {absent[0]}")
        return listing

    @classmethod
    def outline(cls, view: View) -> Self:
        """The complete release without any file, to plan with: its numbers of images and classes, spread evenly.

        Raises:
            DataError: If these numbers are not known.
        """
        images, classes = cls.counts
        if not images:
            raise DataError(f"{cls.name}: a plan needs its images; {cls.advice()}")
        self = cls.__new__(cls)
        Dataset.__init__(self, None)
        self.view, self.threads, self.partial = view, 1, ""
        self.listing = Listing(Path())
        for number in range(images):
            key = number % classes
            part = "" if cls.part_classes == (0, 0) else "dev" if key < cls.part_classes[0] else "test"
            self.listing.add(f"{number}.jpg", key, str(key), part)
        return self

    @classmethod
    def advice(cls, root: Path | None = None) -> str:
        """Instructions for getting the data set from its owners, for error messages."""
        where = f" --data-root {shlex.quote(str(root))}" if root else ""
        by_hand = f"`bench data import {cls.name} ARCHIVE_OR_DIR{where}`"
        if cls.archive is not None:
            return f"`bench data download {cls.name}{where}` gets it, {by_hand} takes a copy"
        if cls.by_hand:
            return f"from {cls.source}, fetch {cls.by_hand}, then `bench data import {cls.name} DIR{where}`"
        return f"get it from {cls.source}, then {by_hand}"

    @classmethod
    def default_root(cls, home: Path) -> Path:
        """Folder, below that of all downloaded data sets, in which the release is looked for if the user names none."""
        return home

    @classmethod
    @abstractmethod
    def recognises(cls, folder: Path) -> bool:
        """Check if a folder is the top folder of this data set, as its owners publish it.

        Args:
            folder: The data root of the user, or any folder below it.

        Raises:
            DataError: If it is evidently an incomplete or a different version of the data set.
        """

    @abstractmethod
    def list_images(self, folder: Path) -> Listing:
        """Read the images and classes that the data set's own files list; whether the images exist is checked later.

        Args:
            folder: The folder that :meth:`recognises` accepted.

        Returns:
            Path, class and part (``dev``, ``test``, ``query``, ``gallery``, :data:`UNTESTED` or none) of each image.

        Raises:
            DataError: If the lists cannot be read or contradict themselves.
        """

    def _checked(self, listing: Listing, allow_partial: bool) -> Listing:
        listing.check_names()
        exists = [os.path.exists(os.path.join(listing.folder, name)) for name in listing.ids]
        absent = [name for name, there in zip(listing.ids, exists) if not there]
        present = listing.keep(exists) if absent else listing
        images, classes = self.counts if self.counts[0] else (len(listing.ids), len(listing.names))
        have = (len(present.ids), len(present.names))
        missing = f", {len(absent)} listed ones are not there, such as {absent[0]}" if absent else ""
        if len(present.names) < 4:
            instead = self.without_training()
            raise DataError(
                f"{self.official} at {listing.folder}: {have[0]} images of {have[1]} classes{missing}; training,"
                f" validation and test classes need at least 4{f'; {instead}' if instead else ''}"
            )
        if have == (images, classes) and not absent:
            return present
        what = f"{have[0]} of {images} images, {have[1]} of {classes} classes"
        if have[0] > images or have[1] > classes:
            raise DataError(f"{self.official} has {images} images of {classes} classes, {listing.folder} lists {what}")
        if not allow_partial:
            notes = "".join(f", {note}" for note in listing.notes)
            raise DataError(
                f"{self.official} at {listing.folder} is incomplete: {what}{missing}{notes};"
                f" complete it ({self.source}), or use --allow-partial"
            )
        self.partial = what
        return present

    def split_anew(self, seed: int) -> Self:
        """The same data set with other training and test classes, unless some alone have queries and gallery."""
        if {"query", "gallery"} & {*self.listing.parts} and "dev" in self.listing.parts:
            raise ValueError(f"data set {self.name!r} has fixed queries and gallery: its test classes cannot train")
        other = super().split_anew(seed)
        other.__dict__.pop("_trainable", None)
        return other

    def _classes(self) -> tuple[list[Any], list[Any]]:
        """Keys of the development and the test classes."""
        return self.class_split(*self._own_classes())

    def _own_classes(self) -> tuple[list[Any], list[Any]]:
        """Keys of the development and the test classes of the own split, in order."""
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
        sizes = (len(dev_keys), len(test_keys))
        if not self.partial and self.part_classes != (0, 0) and sizes != self.part_classes:
            raise DataError(f"{self.official} has {self.part_classes} development and test classes, not {sizes}")
        if len(dev_keys) < 2 or not test_keys:
            raise DataError(f"{self.official}: {sizes[0]} development and {sizes[1]} test classes cannot be split")
        return sorted(dev_keys), sorted(test_keys)

    def _images(self, keys: Sequence[Any], without: str | None = None) -> PhotoImages:
        """Images of some classes, in the order of the listing, without those of a part."""
        number = {key: i for i, key in enumerate(keys)}
        pairs = zip(self.listing.classes, self.listing.parts)
        rows = [i for i, (key, part) in enumerate(pairs) if key in number and part != without]
        return PhotoImages(
            [self.listing.folder / self.listing.ids[i] for i in rows],
            torch.tensor([number[self.listing.classes[i]] for i in rows]),
            [self.listing.ids[i] for i in rows],
            [self.listing.names[key] for key in keys],
            view=self.view,
            threads=self.threads,
        )

    def train_val(self, fold: int = 0, folds: int = 4) -> TrainVal:
        """Training and validation images of disjoint classes; a fold is one class if there are fewer than folds."""
        train, val = self._train_and_val(fold, folds)
        return TrainVal(train, val, fold, folds)

    def _train_and_val(self, fold: int, folds: int) -> tuple[PhotoImages, PhotoImages]:
        dev, _ = self._classes()
        # A small part of a release may have fewer classes than there are folds.
        classes = train_and_validation_classes(len(dev), fold, folds if folds == 1 else min(folds, len(dev)))
        keys, whole = self._trainable
        number = {key: i for i, key in enumerate(keys)}
        labels = (torch.tensor([number[dev[c]] for c in part]) for part in classes)
        train, val = (whole.select(torch.isin(whole.labels, own).nonzero().squeeze(1)) for own in labels)
        return train, val

    @cached_property
    def _trainable(self) -> tuple[list[Any], PhotoImages]:
        """Keys and images of the classes that may train: all, if they are drawn, so that all draws share one cache."""
        dev, test = self._own_classes()
        keys = dev if self.class_seed is None else sorted([*dev, *test])
        return keys, self._images(keys)

    def test(self) -> PhotoImages:
        """Images of the test classes, divided into queries and gallery if the data set prescribes it.

        Raises:
            DataError: If there is no query, or fewer than two gallery images.
        """
        _, keys = self._classes()
        images = self._images(keys, without=UNTESTED)
        part_of = dict(zip(self.listing.ids, self.listing.parts))
        parts = [part_of[name] for name in images.ids]
        if {"query", "gallery"} & set(parts):
            images.queries, images.gallery = _rows(parts, "query"), _rows(parts, "gallery")
            if len(images.queries) == 0 or len(images.gallery) < 2:
                raise DataError(
                    f"{self.official}: {len(images.queries)} queries and {len(images.gallery)} gallery images cannot be"
                    " ranked"
                )
        return images

    def prepare(self, fold: int = 0, folds: int = 4, progress: Progress | None = None) -> None:
        """Decode every image into the cache, so that a damaged file stops a run before its first epoch.

        Training images are kept whole and the same for every fold; the validation images of a fold and the test images
        are kept as resized centre crops. What is in the cache already is not decoded again.

        Raises:
            DamagedImages: If images are damaged, with the names of the first five.
        """
        val, test = self._train_and_val(fold, folds)[1], self.test()
        damaged: dict[Path, str] = {}
        count = len({*self._trainable[1].paths, *test.paths})
        sets: tuple[tuple[PhotoImages, Purpose], ...]
        sets = ((self._trainable[1], "training"), (val, "evaluation"), (test, "evaluation"))
        for images, purpose in sets:
            try:
                images.prepare(purpose, progress)
            except DamagedImages as error:
                damaged |= error.damaged
        if damaged:
            raise DamagedImages(damaged, count)

    def verify(self, progress: Progress | None = None) -> Verification:
        """Decode every image, and report counts, hashes of the splits, and damaged or converted images.

        Args:
            progress: Function called after each image with the name of the task, the number of images done and their
                total.

        Returns:
            Report with ``name``, ``release`` (name given by its owners), ``folder``, ``images`` and ``classes`` (their
            numbers), ``partial`` (description of what is missing), ``damaged`` (a line per unreadable file),
            ``converted_to_rgb`` (number of images by colour mode) and ``splits`` (size and hash of each split).
        """
        listing = self.listing
        split, test = self.train_val(), self.test()
        damaged: list[str] = []
        converted: Counter[str] = Counter()
        paths = [listing.folder / name for name in listing.ids]
        for number, (mode, problem) in enumerate(test.map(_inspect, paths)):
            if problem:
                damaged.append(problem)
            elif mode != "RGB":
                converted[mode] += 1
            if progress is not None:
                progress("checking images", number + 1, len(paths))
        return {
            "name": self.name,
            "release": self.official,
            "folder": str(listing.folder),
            "images": len(listing.ids),
            "classes": len(listing.names),
            "partial": self.partial,
            "damaged": damaged,
            "converted_to_rgb": dict(converted),
            "splits": {"train": split.train.report(), "val": split.val.report(), "test": test.report()},
        }


def _inspect(path: Path) -> tuple[str, str]:
    """Colour mode of an image file, such as ``"RGB"``, and an empty string; or an empty string and the problem."""
    try:
        decode(path)
        with open_image(path) as image:
            return image.mode, ""
    except DataError as error:
        return "", str(error)


def _plain_name(name: str) -> str:
    """Name of a class without its number, capitals and marks, which copies of a release write in their own ways."""
    return re.sub(r"^\d+\.|[^a-z0-9]", "", name.lower())


def _leads_out(name: str) -> bool:
    return len(name) > LONGEST or name.startswith("/") or "\0" in name or ".." in name.split("/")


def _rows(parts: Sequence[str], part: str) -> Tensor:
    return torch.tensor([i for i, p in enumerate(parts) if p == part], dtype=torch.long)
