"""Any images, one folder per class."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from unicodedata import normalize

from .damage import check_few, left_out, read_skipped
from .dataset import Progress, Verification, register_dataset
from .decode import begins_as_image, decode
from .files import DataError, check_regular
from .photo_images import PhotoImages
from .releases import IMAGE_SUFFIXES, Listing, PhotoDataset, of_system
from .soft_labels import FILE, read_soft_labels
from .tables import PARQUET, SPLITS, TABLE, listed, parts_of, settled, tables_of
from .view import View

SAMPLE = 8
"""Images that are looked at to tell scans from photographs."""

SMALL = 128
"""Longest side of a small image, pixels."""

_COPIES = ("~", ".bak", ".orig", "_original", ".thm", ".tmp")
"""Ends of the names of copies that editors and cameras make of an image."""


@register_dataset
class Folder(PhotoDataset):
    """Your own images: ``DIR/CLASS/*.jpg``, classes in the order of their names, the first half for development.

    The folders directly below DIR are the classes; images of a class may be in folders below its own, at any depth.
    Names that begin with a dot, and folders of storage boxes such as ``@eaDir``, are left out, and links to folders
    inside a class are not followed. Development is training and validation; the other classes are for the test. If
    there are ``DIR/query/CLASS/*`` and ``DIR/gallery/CLASS/*``, these are the test classes, and the classes of
    ``DIR/train`` are for development.

    ``DIR/train/CLASS/*`` and ``DIR/test/CLASS/*`` (or ``val``) with different classes are the split: those of ``test``
    are for the test. If they share classes, as for a classifier, the images of a class are put together, and half of
    the classes are for the test. The same holds for a table: ``DIR/metadata.csv`` (columns path, class, and optionally
    split and group), a list ``DIR/labels.txt`` or ``DIR/train.txt`` (path and class per line), and parquet files of
    Hugging Face, which are unpacked into the cache.

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

    def __init__(self, root: Path | None = None, *, view: View | None = None, **options: Any) -> None:
        """Find and list the images, and read the label distributions if there are any; see :class:`PhotoDataset`."""
        super().__init__(root, view=view or View(upright=True), **options)
        path, listing = self.listing.folder / FILE, self.listing
        self._soft = read_soft_labels(path, listing.ids, set(listing.names.values())) if path.exists() else None
        self.soft_labels_sha256 = self._soft.sha256 if self._soft else ""
        self._damaged = ""

    def leave_out(self, file: Path) -> bool:
        """Leave out the images that a list of damaged ones has (:func:`.read_skipped`); True if it has any.

        The others are another data set: :attr:`partial`, and with it the identity of every result, says how many.
        """
        whole, skipped = self.listing, read_skipped(file, self.listing.folder)
        gone = [name for name in whole.ids if name in skipped]
        if gone:
            said = left_out(gone, len(whole.ids), file)
            check_few(len(gone), len(whole.ids), said)
            self.listing = self._checked(whole.keep([name not in skipped for name in whole.ids]), allow_partial=False)
            kept, classes = len(self.listing.ids), len(self.listing.names)
            self.partial = f"{kept} of {len(whole.ids)} images, {classes} of {len(whole.names)} classes"
            self._damaged = f"{said}; --set run.strict=true refuses them"
            self.__dict__.pop("_trainable", None)
        return bool(gone)

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
        """Those of :meth:`of_files`, and one about small grey images, which need another recipe."""
        yield from self.of_files()
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

    def of_files(self) -> Iterator[str]:
        """Lines about files that are left out, and about identical ones."""
        yield from filter(None, (self._damaged, *self.listing.notes, *twins(self.listing)))

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
        return bool(_class_folders(folder)) or bool(tables_of(folder))

    def list_images(self, folder: Path) -> Listing:
        """List the images of the class folders, which are below ``train``, ``query`` and ``gallery`` if these exist.

        Images below ``train`` have the part ``dev`` (training and validation), those below ``query`` and ``gallery``
        the part of that name, and all others an empty one.

        Raises:
            DataError: If ``query`` or ``gallery`` exists but not all three do, no class folder contains an image, or
                the folders are evidently no classes.
        """
        listing = splits_or_table(folder)
        if listing is not None:
            return settled(listing, folder)
        listing = Listing(folder)
        roles = {"train": "dev", "query": "query", "gallery": "gallery"}
        given = [part for part in roles if (folder / part).is_dir()]
        if "query" in given or "gallery" in given:
            _check_classes(folder, roles)
            if len(given) < 3:
                raise DataError(f"{folder} has {', '.join(given)}; with queries it needs train, query and gallery")
            _add_classes(listing, {f"{part}/": roles[part] for part in given})
        else:
            _add_classes(listing, {"": ""})
            _check_for_splits(listing, folder)
        return listing


def splits_or_table(source: Path) -> Listing | None:
    """List the images of a table, or of class folders below folders of splits, with parts; None if there is neither."""
    listing = listed(source)
    if listing is not None or not source.is_dir():
        return listing
    splits = parts_of(_class_folders(source))
    if len(splits) < 2 or not all(splits.values()) or {"query", "gallery"} & {*splits.values()}:
        return None
    listing = Listing(source)
    _add_classes(listing, {f"{name}/": part for name, part in splits.items()})
    return listing


def images_below(folder: Path) -> tuple[Listing, bool]:
    """List the images of a folder that are to be embedded by a trained model; True if they have classes.

    The folder has one of three layouts: ``DIR/CLASS/*``; ``DIR/query/CLASS/*`` and ``DIR/gallery/CLASS/*``; or
    ``DIR/*`` without subfolders and classes, nothing else. Images of a class may be in folders below its own. A table
    and folders of splits are read as :class:`Folder` reads them, all splits together; a table may be the given file.
    """
    if not folder.is_dir() and not (folder.is_file() and folder.suffix.lower() in (".csv", ".txt", *PARQUET)):
        raise DataError(f"{folder}: no such folder")
    listing = splits_or_table(folder)
    if listing is not None:
        searched = [part in ("query", "gallery") for part in settled(listing, folder).parts]
        if any(searched):
            return listing.keep(searched), True
        listing.parts = [""] * len(listing.ids)
        return listing, True
    listing = Listing(folder)
    loose = sorted(e.name for e in os.scandir(folder) if not e.is_dir() and _is_image(e.path))
    below = bool(_class_folders(folder))
    if loose and below:
        raise DataError(
            f"{folder} contains images next to class folders, such as {loose[0]}; put every image into a class folder"
        )
    roles = ("query", "gallery") if all((folder / role).is_dir() for role in ("query", "gallery")) else ("",)
    if below:
        _add_classes(listing, {f"{role}/" if role else "": role for role in roles})
    for name in loose:
        listing.add(name, "", "")
    if not listing.ids:
        raise DataError(f"{folder} contains no image ({', '.join(IMAGE_SUFFIXES)})")
    listing.check_names()
    return listing, below


def _add_classes(listing: Listing, parts: dict[str, str]) -> None:
    """Add the images of the class folders below some prefixes, each with its part, and notes about what is left out."""
    folder, strange, empty, hidden = listing.folder, list[str](), list[str](), list[str]()
    if (folder / TABLE).exists():
        listing.notes.append(f"{folder / TABLE} is not read: no columns of images and classes, separated by commas")
    for prefix, part in parts.items():
        if not prefix:
            _check_classes(folder, ())
        classes = _class_folders(folder / prefix)
        if not classes:
            raise DataError(f"{folder / prefix} has no class folders: put images into {folder / prefix / 'CLASS'}")
        for name in classes:
            images = _images_of(folder, f"{prefix}{name}", strange, hidden)
            if len(classes) == 1 and not prefix and images and all(image.count("/") > 1 for image in images):
                raise DataError(f"{folder} has one class folder, with folders below it; give {folder / name}")
            empty += [] if images else [f"{prefix}{name}"]
            spelled = normalize("NFC", name)  # file systems differ in how they spell an accent
            for image in images:
                listing.add(image, spelled, spelled, part)
        hidden += [each.name for each in os.scandir(folder / prefix) if each.is_dir() and of_system(each.name)]
    if not listing.ids:
        kinds = ", ".join(IMAGE_SUFFIXES)
        raise DataError(f"class folder {folder / empty[0]} contains no image ({kinds}); fill it or remove it")
    for names, one, what in (
        (sorted(hidden), "folder", "of storage boxes or systems left out"),
        (empty, "class folder", "without an image left out"),
        (sorted(strange), "file", "not taken for images"),
    ):
        if names:
            listing.notes.append(f"{folder}: {len(names)} {one}{'s' * (len(names) > 1)} {what}, such as {names[0]}")


def _check_classes(folder: Path, parts: Collection[str]) -> None:
    """Refuse folders that are evidently no classes, apart from those of the three parts."""
    of_splits = (*SPLITS, "bounding_box_train", "bounding_box_test")
    splits = [name for name in _class_folders(folder) if name.lower() in of_splits and name not in parts]
    if splits:
        raise DataError(
            f"{folder}: {', '.join(splits)} would be taken for classes; put the class folders into one folder, or into"
            " train/CLASS, query/CLASS and gallery/CLASS (docs/running.md), or rename what is a class"
        )


def twins(listing: Listing) -> Iterator[str]:
    """Lines about files that are the same, byte by byte, in two classes, or in query and gallery.

    Files are compared by bytes, of those of one size alone: copies under other names are found without decoding.
    """
    rows: dict[object, list[int]] = {}
    for row, name in enumerate(listing.ids):
        with suppress(OSError):
            rows.setdefault(os.stat(listing.folder / name).st_size, []).append(row)
    for measure in (lambda file: file.read(4096), lambda file: hashlib.sha256(file.read()).digest()):
        finer: dict[object, list[int]] = {}
        for key, same in rows.items():
            for row in same if len(same) > 1 else ():
                with suppress(OSError, DataError):
                    check_regular(listing.folder / listing.ids[row])
                    with open(listing.folder / listing.ids[row], "rb") as file:
                        finer.setdefault((key, measure(file)), []).append(row)
        rows = finer
    for values, roles, said in (
        (listing.classes, None, "in two classes: one of the labels is wrong, and each is the other's nearest"),
        (listing.parts, {"query", "gallery"}, "in query and gallery: such a query finds itself"),
    ):
        found = []
        for same in rows.values():
            chosen = [row for row in same if roles is None or listing.parts[row] in roles]
            other = next((row for row in chosen if values[row] != values[chosen[0]]), None)
            found += [] if other is None else [(listing.ids[chosen[0]], listing.ids[other])]
        if found:
            many = f"{len(found)} images are" if len(found) > 1 else "1 image is"
            yield f"{listing.folder}: {many} {said} (byte by byte; first {found[0][0]} and {found[0][1]})"


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
    entries = (entry for entry in os.scandir(folder) if not entry.name.startswith(".") and not of_system(entry.name))
    return sorted(entry.name for entry in entries if entry.is_dir())


def _images_of(top: Path, folder: str, strange: list[str], hidden: list[str]) -> list[str]:
    """Paths of the images of a class, relative to the top folder, in order; adds what else is there to two lists."""

    def refuse(error: OSError) -> NoReturn:
        raise DataError(f"{error.filename}: {error.strerror}") from None

    found = []
    for where, below, files in os.walk(top / folder, onerror=refuse):
        hidden += filter(of_system, below)
        below[:] = [name for name in below if not name.startswith(".") and not of_system(name)]
        inside = Path(where).relative_to(top)
        strange += [(inside / name).as_posix() for name in below if os.path.islink(os.path.join(where, name))]
        for name in files:
            if _is_image(os.path.join(where, name)):
                found.append((inside / name).as_posix())
            elif not name.startswith(".") and not of_system(name):
                strange.append((inside / name).as_posix())
    return sorted(found)


def _is_image(path: str) -> bool:
    """Check if a file is an image by its name or, of a name that says nothing, by its first bytes."""
    name = os.path.basename(path).lower()
    if name.startswith(".") or name.endswith(_COPIES) or of_system(name):  # ``._`` of macOS only describes one
        return False
    return name.endswith(IMAGE_SUFFIXES) or begins_as_image(path)
