"""Any images, one folder per class."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from .dataset import register_dataset
from .decode import decode
from .files import DataError
from .photo_images import PhotoImages, Progress
from .releases import IMAGE_SUFFIXES, Listing, PhotoDataset
from .soft_labels import FILE, read_soft_labels
from .verification import Verification
from .view import View

SAMPLE = 8
"""Images that are looked at to tell scans from photographs."""

SMALL = 128
"""Longest side of a small image, pixels."""

_SPLITS = ("train", "training", "test", "val", "valid", "validation")
"""Names of folders that divide the images of the classes below them, rather than being classes."""


@register_dataset
class Folder(PhotoDataset):
    """Your own images: ``DIR/CLASS/*.jpg``, classes in the order of their names, the first half for development.

    The folders directly below DIR are the classes; images of a class may be in folders below its own, at any depth.
    Names that begin with a dot are left out, and links to folders inside a class are not followed. Development is
    training and validation; the other classes are for the test. If there are ``DIR/query/CLASS/*`` and
    ``DIR/gallery/CLASS/*``, these are the test classes, and the classes of ``DIR/train`` are for development.

    ``DIR/probabilities.csv`` may contain label distributions given by people: a column ``path`` (relative to DIR), then
    a column per class; rows sum to 1. Images without a row are allowed. The tests then correlate every confidence with
    the entropy of these distributions. Unlike other photographs, images are turned as their EXIF orientation says.
    """

    name = "folder"
    recipe = "folder"
    summary = "your own images: one folder per class, optionally train/, query/ and gallery/"
    official = "image folder"
    source = "your own images"
    needs = "folders of images"

    def __init__(
        self,
        root: Path | None = None,
        *,
        view: View | None = None,
        allow_partial: bool = False,
        threads: int = 1,
    ) -> None:
        """Find and list the images, and read the label distributions if there are any; see :class:`PhotoDataset`."""
        super().__init__(root, view=view or View(upright=True), allow_partial=allow_partial, threads=threads)
        path, listing = self.listing.folder / FILE, self.listing
        self._soft = read_soft_labels(path, listing.ids, set(listing.names.values())) if path.exists() else None
        self.soft_labels_sha256 = self._soft.sha256 if self._soft else ""

    def test(self) -> PhotoImages:
        """Images of the test classes, with queries and gallery and with label distributions if the folder has them."""
        images = super().test()
        if self._soft is not None:
            images.soft_labels = self._soft.of(images.ids)
        return images

    def verify(self, progress: Progress | None = None) -> Verification:
        """Decode every image and report as :meth:`PhotoDataset.verify` does, with ``soft_labels`` if there are any."""
        report, soft = super().verify(progress), self._soft
        if soft is not None:
            labels = soft.of(self.test().ids)
            report["soft_labels"] = {
                "file": FILE,
                "images": len(soft.ids),
                "test_images": int((~labels.isnan().all(1)).sum()),
                "classes": labels.shape[1],
                "sha256": soft.sha256,
            }
        return report

    def remarks(self) -> Iterator[str]:
        """Line about small grey images: they need another recipe, and the data set that has it."""
        ids, folder = self.listing.ids, self.listing.folder
        sample = []
        for i in range(0, len(ids), max(1, len(ids) // SAMPLE)):
            with suppress(DataError):  # damaged images are all listed before training
                sample.append(decode(folder / ids[i]))
        if sample and all(max(image.shape[1:]) <= SMALL and bool((image == image[:1]).all()) for image in sample):
            height, width = sample[0].shape[1:]
            yield (
                f"{self.name} has a recipe of photographs, and {folder} has small grey images, such as {width} x"
                f" {height} pixels: `--dataset scans --data-root {shlex.quote(str(folder))}` has one of scans"
            )

    def without_training(self) -> str:
        """Advice for a folder of few classes: how many suffice, and the command that scores a network as it is."""
        images = Counter(self.listing.classes)
        if len(images) < 2 or max(images.values()) < 2:
            return ""
        enough = "5 classes in train" if any(self.listing.parts) else "10 classes"
        command = f"bench score {shlex.quote(str(self.listing.folder))}"
        return f"{enough} are enough by default, and `{command}` scores the untrained network on these"

    @classmethod
    def advice(cls, root: Path | None = None) -> str:
        """Instructions for arranging the images in folders, for error messages."""
        return "put the images of each class into a folder of its own, DIR/CLASS/*.jpg, and give --data-root DIR"

    @classmethod
    def default_root(cls, home: Path) -> Path:
        """Folder ``folder`` in the home, to which images are imported; the others would be taken for classes."""
        return home / cls.name

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Check if a folder contains any subfolder."""
        # Any folder of folders: to search below the given folder would turn a wrong path into a wrong data set.
        return bool(_class_folders(folder))

    def list_images(self, folder: Path) -> Listing:
        """List the images of the class folders, which are below ``train``, ``query`` and ``gallery`` if these exist.

        Images below ``train`` have the part ``dev`` (training and validation), those below ``query`` and ``gallery``
        the part of that name, and all others an empty one.

        Raises:
            DataError: If ``query`` or ``gallery`` exists but not all three do, a class folder contains no image, or
                the folders are evidently no classes.
        """
        listing = Listing(folder)
        roles = {"train": "dev", "query": "query", "gallery": "gallery"}
        given = [part for part in roles if (folder / part).is_dir()]
        if "query" in given or "gallery" in given:
            if len(given) < 3:
                raise DataError(f"{folder} has {', '.join(given)}; with queries it needs train, query and gallery")
            for part in given:
                _add_classes(listing, folder, f"{part}/", roles[part])
        else:
            _add_classes(listing, folder, "", "")
            _check_for_splits(listing, folder)
        return listing


def images_below(folder: Path) -> tuple[Listing, bool]:
    """List the images of a folder that are to be embedded by a trained model; True if they have classes.

    The folder has one of three layouts: ``DIR/CLASS/*``; ``DIR/query/CLASS/*`` and ``DIR/gallery/CLASS/*``; or
    ``DIR/*`` without subfolders and classes, nothing else. Images of a class may be in folders below its own.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    listing = Listing(folder)
    loose = sorted(e.name for e in os.scandir(folder) if not e.is_dir() and _is_image(e.name))
    below = bool(_class_folders(folder))
    if loose and below:
        raise DataError(
            f"{folder} contains images next to class folders, such as {loose[0]}; put every image into a class folder"
        )
    roles = ("query", "gallery") if all((folder / role).is_dir() for role in ("query", "gallery")) else ("",)
    for role in roles if below else ():
        _add_classes(listing, folder, f"{role}/" if role else "", role)
    for name in loose:
        listing.add(name, "", "")
    if not listing.ids:
        raise DataError(f"{folder} contains no image ({', '.join(IMAGE_SUFFIXES)})")
    listing.check_names()
    return listing, below


def _add_classes(listing: Listing, folder: Path, prefix: str, part: str) -> None:
    classes = _class_folders(folder / prefix)
    images = {name: _images_of(folder / prefix / name) for name in classes}
    splits = [name for name in classes if name.lower() in _SPLITS and not any("/" not in i for i in images[name])]
    if splits and not prefix:
        raise DataError(
            f"{folder}: {', '.join(splits)} would be taken for classes; put the class folders into one folder, or into"
            " train, query and gallery (docs/running.md)"
        )
    if len(classes) == 1 and not prefix and all("/" in image for image in images[classes[0]]):
        raise DataError(f"{folder} has one class folder, with folders below it; give {folder / classes[0]}")
    for name in classes:
        for image in images[name]:
            listing.add(f"{prefix}{name}/{image}", name, name, part)


def _check_for_splits(listing: Listing, folder: Path) -> None:
    """Refuse two or three folders that contain folders alone: they divide the classes, rather than being classes."""
    names = _class_folders(folder)
    if len(names) <= 3 and all(image.count("/") > 1 for image in listing.ids):
        count = len({image.rsplit("/", 1)[0] for image in listing.ids})
        raise DataError(
            f"{folder}: {', '.join(names)} would be taken for {len(names)} classes, but contain folders alone, {count}"
            f" with images; give --data-root {shlex.quote(str(folder / names[0]))}, or put the class folders into one"
            " folder, or into train, query and gallery (docs/running.md)"
        )


def _class_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _images_of(folder: Path) -> list[str]:
    """Paths of the images of a class, at least one, relative to its folder, in order."""

    def refuse(error: OSError) -> NoReturn:
        raise DataError(f"{error.filename}: {error.strerror}") from None

    found = []
    for where, below, files in os.walk(folder, onerror=refuse):
        below[:] = [name for name in below if not name.startswith(".")]
        inside = Path(where).relative_to(folder)
        found += [(inside / name).as_posix() for name in files if _is_image(name)]
    if not found:
        kinds = ", ".join(IMAGE_SUFFIXES)
        raise DataError(f"class folder {folder} contains no image ({kinds}); fill it or remove it")
    return sorted(found)


def _is_image(name: str) -> bool:
    """Check if a file is an image by its name; those of macOS that begin with ``._`` only describe one."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
