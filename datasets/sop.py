"""Stanford Online Products (Song et al. 2016): 120,053 photographs of 22,634 products."""

from __future__ import annotations

from pathlib import Path

from .dataset import register_dataset
from .downloads import Archive
from .files import DataError
from .releases import Listing, PhotoDataset, class_number, read_lines


@register_dataset
class SOP(PhotoDataset):
    """Stanford Online Products with the authors' class split: 11,318 products for development, 11,316 for the test.

    Development is training and validation. Layout of the folder: ``Ebay_train.txt`` and ``Ebay_test.txt`` (a header,
    then image id, class id, super class id and path per line), with the images at these paths.
    """

    name = "sop"
    recipe = "sop"
    summary = "Stanford Online Products: 120,053 photographs of 22,634 products"
    official = "Stanford Online Products"
    source = "https://cvgl.stanford.edu/projects/lifted_struct/"
    hub = "JamieSJS/stanford-online-products"
    needs = "Ebay_train.txt and Ebay_test.txt"
    counts = (120053, 22634)
    part_classes = (11318, 11316)
    copy_parts = ("dev", "test")
    licence = "not known; see the source"
    citation = "Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016"
    archive = Archive(
        "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
        "Stanford_Online_Products.zip",
        3_083_860_082,
        "md5:7f73d41a2f44250d4779881525aea32e",
    )

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Check if a folder contains the two lists of SOP; with only one of them it is a DataError."""
        there = [(folder / f"Ebay_{part}.txt").exists() for part in ("train", "test")]
        if any(there) and not all(there):
            raise DataError(f"{folder} has one of {cls.needs} only; {cls.advice()}")
        return all(there)

    def list_images(self, folder: Path) -> Listing:
        """Read image paths and classes from ``Ebay_train.txt`` (for training and validation) and ``Ebay_test.txt``.

        Raises:
            DataError: If a list has another format, or the two are swapped.
        """
        listing = Listing(folder)
        largest = {}
        for part in ("train", "test"):
            path = folder / f"Ebay_{part}.txt"
            rows = read_lines(path)
            if not rows or rows[0][:2] != ["image_id", "class_id"]:
                raise DataError(f"{path} does not begin with `image_id class_id super_class_id path`")
            for words in rows[1:]:
                number = class_number(words[1]) if len(words) == 4 else None
                if number is None:
                    raise DataError(
                        f"{path}: the line `{' '.join(words)}` is not `image_id class_id super_class_id path`"
                    )
                listing.add(words[3], number, words[1], "dev" if part == "train" else "test")
            largest[part] = max((int(words[1]) for words in rows[1:]), default=0)
        if largest["train"] > largest["test"]:
            raise DataError(
                f"{folder}: Ebay_train.txt and Ebay_test.txt are swapped (test classes have larger numbers)"
            )
        return listing
