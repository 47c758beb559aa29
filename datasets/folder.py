"""Any images, one folder per class."""

from __future__ import annotations

import os
from pathlib import Path

from ._base import DataError, register
from .releases import IMAGE_SUFFIXES, Listing, PhotoDataset


@register
class Folder(PhotoDataset):
    """Your own images: ``DIR/CLASS/*.jpg``, classes in the order of their names, the first half for development.

    With ``DIR/query/CLASS/*`` and ``DIR/gallery/CLASS/*`` those are the test classes, and the classes of
    ``DIR/train`` are for development.
    """

    name = "folder"
    summary = "your own images: one folder per class, optionally train/, query/ and gallery/"
    official = "a folder per class"
    source = "your own images"
    needs = "folders of images"

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
