"""Grocery Store (Klasson et al. 2019): 5,421 smartphone photographs of 81 kinds of fruit, vegetables and packages."""

from __future__ import annotations

from pathlib import Path

from .dataset import register_dataset
from .downloads import Archive
from .files import DataError
from .releases import UNTESTED, Listing, PhotoDataset, class_number, read_lines

COMMIT = "fc80ba90f803d79d0383df52c5a4ac5de99ff6fc"
PARTS = {"train": "gallery", "val": UNTESTED, "test": "query"}
"""Official lists, and what the images of each are if their class is tested."""


@register_dataset
class Grocery(PhotoDataset):
    """Grocery Store split by class: the first 40 classes by name for development, the other 41 for the test.

    Development is training and validation, with all images of these classes. The order is that of the names, because
    the official numbers group the classes: halves by number would train on fruit and test on vegetables.

    The photographs of a class were taken in bursts, so that among all others a test image finds its neighbour in time.
    The official lists put bursts apart. So images of a test class are queries if they are in ``test.txt``, and the
    gallery if they are in ``train.txt``; those in ``val.txt`` are of the bursts of the gallery and not tested.

    Layout of the folder: ``classes.csv``, and ``train.txt``, ``val.txt`` and ``test.txt`` (path, class and coarse class
    per line), with the images at these paths.
    """

    name = "grocery"
    recipe = "folder"
    summary = "Grocery Store: 5,421 photographs of 81 groceries by smartphone, query to gallery"
    official = "Grocery Store"
    source = "https://github.com/marcusklasson/GroceryStoreDataset"
    needs = "classes.csv, train.txt, val.txt and test.txt"
    counts = (5421, 81)
    licence = "MIT"
    citation = (
        "Klasson, Zhang, Kjellstrom: A Hierarchical Grocery Store Image Dataset with Visual and Semantic Labels,"
        " WACV 2019"
    )
    # GitHub packs it on request: neither size nor checksum is fixed, the commit is, and the lists are counted.
    archive = Archive(
        f"https://codeload.github.com/marcusklasson/GroceryStoreDataset/tar.gz/{COMMIT}", "GroceryStoreDataset.tar.gz"
    )

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Check if a folder contains ``classes.csv`` and the lists of images; some of them alone are refused."""
        there = [(folder / f"{part}.txt").exists() for part in PARTS]
        if not (folder / "classes.csv").exists() or not any(there):
            return False
        if not all(there):
            raise DataError(f"{folder} does not have all of {cls.needs}; {cls.advice()}")
        return True

    def list_images(self, folder: Path) -> Listing:
        """Read path, class and part (``query``, ``gallery`` or untested) of each image from the three lists."""
        listing = Listing(folder)
        for part, tested_as in PARTS.items():
            for words in read_lines(folder / f"{part}.txt"):
                fields = [word.rstrip(",") for word in words]
                steps = fields[0].split("/")
                if len(fields) != 3 or class_number(fields[1]) is None or len(steps) < 3 or steps[0] != part:
                    line = " ".join(words)
                    raise DataError(
                        f"{folder / part}.txt: the line `{line}` is not `{part}/../CLASS/FILE, class, coarse`"
                    )
                listing.add(fields[0], steps[-2], steps[-2], tested_as)
        return listing

    def _own_classes(self) -> tuple[list[str], list[str]]:
        names = sorted(self.listing.names)
        return names[: len(names) // 2], names[len(names) // 2 :]
