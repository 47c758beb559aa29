"""Any images, one folder per class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ._base import DataError, register
from .photographs import PhotoImages, Progress
from .releases import IMAGE_SUFFIXES, Listing, PhotoDataset
from .soft_labels import FILE, read_soft_labels


@register
class Folder(PhotoDataset):
    """Your own images: ``DIR/CLASS/*.jpg``, classes in the order of their names, the first half for development.

    With ``DIR/query/CLASS/*`` and ``DIR/gallery/CLASS/*`` those are the test classes, and the classes of
    ``DIR/train`` are for development.

    ``DIR/probabilities.csv`` may say how people label the images: a column ``path`` (relative to DIR), then a column
    per class, rows that sum to 1. Images without a row are allowed. The tests then correlate every confidence with the
    entropy of these distributions.
    """

    name = "folder"
    summary = "your own images: one folder per class, optionally train/, query/ and gallery/"
    official = "a folder per class"
    source = "your own images"
    needs = "folders of images"

    def __init__(self, root: Path | None = None, **options: Any) -> None:
        """Find and list the images, and read the label distributions where there are some."""
        super().__init__(root, **options)
        path, listing = self.listing.folder / FILE, self.listing
        self._soft = read_soft_labels(path, listing.ids, set(listing.names.values())) if path.exists() else None
        self.soft_labels_sha256 = self._soft.sha256 if self._soft else ""

    def test(self) -> PhotoImages:
        """Test images, with their label distributions where there are some."""
        images = super().test()
        if self._soft is not None:
            images.soft_labels = self._soft.of(images.ids)
        return images

    def verify(self, progress: Progress | None = None) -> dict[str, Any]:
        """Beside what every data set checks: how many images have a label distribution."""
        found, soft = super().verify(progress), self._soft
        if soft is not None:
            labels = soft.of(self.test().ids)
            found["soft_labels"] = {
                "file": FILE,
                "images": len(soft.ids),
                "test_images": int((~labels.isnan().all(1)).sum()),
                "classes": labels.shape[1],
                "sha256": soft.sha256,
            }
        return found

    @classmethod
    def advice(cls, root: Path | None = None) -> str:
        """What it should look like."""
        return "put the images of each class into a folder of its own, DIR/CLASS/*.jpg"

    @classmethod
    def _is(cls, folder: Path) -> bool:
        # The folder itself, whatever is below it: a guess at a level would turn a wrong path into a wrong data set.
        return any(entry.is_dir() for entry in os.scandir(folder))

    def _list(self, folder: Path) -> Listing:
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
        return listing


def images_below(folder: Path) -> tuple[Listing, bool]:
    """Images of a folder for embedding: no split, any number of classes.

    Args:
        folder: ``DIR/CLASS/*``, ``DIR/query/CLASS/*`` with ``DIR/gallery/CLASS/*``, or images without folders.

    Returns:
        The images, and whether they have classes: those of a flat folder do not.

    Raises:
        DataError: If there is no image, or images lie both in class folders and beside them.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    listing = Listing(folder)
    beside = sorted(e.name for e in os.scandir(folder) if e.is_file() and e.name.lower().endswith(IMAGE_SUFFIXES))
    below = any(e.is_dir() and not e.name.startswith(".") for e in os.scandir(folder))
    if beside and below:
        raise DataError(
            f"{folder} holds images beside folders, such as {beside[0]}; put every image into a class folder"
        )
    roles = ("query", "gallery") if all((folder / role).is_dir() for role in ("query", "gallery")) else ("",)
    for role in roles if below else ():
        _add_classes(listing, folder, f"{role}/" if role else "", role)
    for name in beside:
        listing.add(name, "", "")
    if not listing.ids:
        raise DataError(f"{folder} holds no image ({', '.join(IMAGE_SUFFIXES)})")
    listing.check_names()
    return listing, below


def _add_classes(listing: Listing, folder: Path, prefix: str, part: str) -> None:
    for entry in sorted(os.scandir(folder / prefix), key=lambda e: e.name):
        if not entry.is_dir() or entry.name.startswith("."):
            continue
        try:
            files = sorted(f.name for f in os.scandir(entry.path) if f.name.lower().endswith(IMAGE_SUFFIXES))
        except OSError as error:
            raise DataError(f"{entry.path}: {error.strerror}") from None
        if not files:
            kinds = ", ".join(IMAGE_SUFFIXES)
            raise DataError(f"class folder {entry.path} holds no image ({kinds}); fill it or remove it")
        for name in files:
            listing.add(f"{prefix}{entry.name}/{name}", entry.name, entry.name, part)
