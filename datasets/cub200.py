"""CUB-200-2011 (Wah et al. 2011): 11,788 photographs of 200 bird species."""

from __future__ import annotations

from pathlib import Path

from .dataset import register_dataset
from .downloads import Archive
from .files import DataError
from .releases import Listing, PhotoDataset, class_number, read_lines


@register_dataset
class CUB200(PhotoDataset):
    """CUB-200-2011 split by class: 1 to 100 for development (training and validation), 101 to 200 for the test.

    The official train/test split of images is not used.

    Layout of the folder: ``images.txt``, ``image_class_labels.txt``, ``images/001.Black_footed_Albatross/*.jpg``.
    """

    name = "cub200"
    recipe = "cub200"
    summary = "CUB-200-2011: 11,788 photographs of 200 bird species"
    official = "CUB-200-2011"
    source = "https://data.caltech.edu/records/65de6-vp158"
    hub = "bentrevett/caltech-ucsd-birds-200-2011"
    needs = "images.txt and image_class_labels.txt"
    counts = (11788, 200)
    class_list = "cub200_classes.txt"
    licence = "not known; see the source"
    citation = (
        "Wah, Branson, Welinder, Perona, Belongie: The Caltech-UCSD Birds-200-2011 Dataset, CNS-TR-2011-001, 2011"
    )
    archive = Archive(
        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
        "CUB_200_2011.tgz",
        1_150_585_339,
        "md5:97eceeb196236b17998738112f37df78",
    )

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Check if a folder contains the two lists of CUB-200-2011.

        Raises:
            DataError: If it contains only one of the two, or the older CUB-200 of 2010.
        """
        if (folder / "lists" / "files.txt").exists():
            raise DataError(f"{folder} is CUB-200 (2010, 6,033 images), not CUB-200-2011; {cls.advice()}")
        if (folder / "images.txt").exists() != (folder / "image_class_labels.txt").exists():
            there = "images.txt" if (folder / "images.txt").exists() else "image_class_labels.txt"
            raise DataError(f"{folder} has {there} but lacks its companion ({cls.needs}); {cls.advice()}")
        return (folder / "images.txt").exists()

    def list_images(self, folder: Path) -> Listing:
        """Read image paths and classes from the two lists; no image is assigned to a split.

        Raises:
            DataError: If the lists cannot be read or do not agree.
        """
        images = read_lines(folder / "images.txt")
        labels = {words[0]: words[-1] for words in read_lines(folder / "image_class_labels.txt")}
        if len(images) == 6033:
            raise DataError(f"{folder} lists 6033 images: CUB-200 (2010), not CUB-200-2011; {self.advice()}")
        listing = Listing(folder)
        for number, path in ((words[0], words[-1]) for words in images):
            name = path.split("/")[0]
            if labels.get(number) is None:
                raise DataError(f"{folder}: image {number} ({path}) has no label in image_class_labels.txt")
            key, prefix = class_number(labels[number]), class_number(name.split(".")[0])
            if key is None or prefix is None:
                raise DataError(f"{folder}: image {number} ({path}) has label {labels[number]!r}, not a class number")
            if key != prefix:
                raise DataError(
                    f"{folder}: image {number} is {path} but its label is {labels[number]};"
                    " images.txt and image_class_labels.txt do not belong together"
                )
            listing.add(f"images/{path}", key, name)
        classes = folder / "classes.txt"
        if classes.exists():
            empty = [words[-1] for words in read_lines(classes) if class_number(words[0]) not in listing.names]
            if empty and len(listing.ids) >= self.counts[0]:
                raise DataError(f"{folder}: {len(empty)} classes have no image, such as {empty[0]}")
        return listing
