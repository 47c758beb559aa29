"""Cars196 (Krause et al. 2013): 16,185 photographs of 196 car models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .dataset import register_dataset
from .files import DataError, check_regular
from .guarded import guarded
from .mat_file import read_annotations
from .releases import Listing, PhotoDataset

Value = str | int | float

TRAIN, TEST = "cars_train_annos.mat", "cars_test_annos_withlabels.mat"
MERGED = "cars_annos.mat"


@register_dataset
class Cars196(PhotoDataset):
    """Cars196 split by class: 1 to 98 for development (training and validation), 99 to 196 for the test.

    The official train/test split of images is not used.

    The folder has one of two layouts: ``devkit/cars_train_annos.mat`` and ``cars_test_annos_withlabels.mat`` with the
    images in ``cars_train/`` and ``cars_test/``, or one ``cars_annos.mat`` with the images in ``car_ims/``; folders of
    images may be nested, as in ``cars_train/cars_train/``. Copies with names of classes are read, too: parquet files of
    Hugging Face, or ``train/CLASS`` and ``test/CLASS``.
    """

    name = "cars196"
    recipe = "cub200"
    summary = "Stanford Cars: 16,185 photographs of 196 car models"
    official = "Cars196"
    source = "a copy of Stanford Cars, such as tanganke/stanford_cars of Hugging Face (the owners' page is gone)"
    hub = "tanganke/stanford_cars"
    needs = f"devkit/{TRAIN} or {MERGED}"
    counts = (16185, 196)
    licence = "not known; the owners' page is gone"
    citation = "Krause, Stark, Deng, Fei-Fei: 3D Object Representations for Fine-Grained Categorization, 3dRR 2013"
    class_list = "cars196_classes.txt"
    by_hand = (
        "cars_train.tgz, cars_test.tgz, car_devkit.tgz and cars_test_annos_withlabels.mat (or car_ims.tgz and"
        " cars_annos.mat, or all parquet files), all in one folder DIR, packed or unpacked"
    )

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Check if a folder contains ``cars_annos.mat`` or, in itself or in ``devkit``, ``cars_train_annos.mat``."""
        return any((folder / file).exists() for file in (MERGED, f"devkit/{TRAIN}", TRAIN))

    def list_images(self, folder: Path) -> Listing:
        """Read image paths and classes from the annotation files (``.mat``); no image is assigned to a split.

        Raises:
            DataError: If a file is not such an annotation file, has no labels, or the files of train and test are
                swapped.
        """
        beside = (folder / "cars_train").is_dir() or not (folder.parent / "cars_train").is_dir()
        listing = Listing(folder if beside or (folder / MERGED).exists() else folder.parent)
        places = (folder / "devkit", folder, folder / "car_devkit" / "devkit", listing.folder)
        annotations = {file: next((p / file for p in places if (p / file).exists()), None) for file in (TRAIN, TEST)}
        together = (folder / "car_ims").is_dir() or annotations[TRAIN] is None
        if (folder / MERGED).exists() and together:
            if not (folder / "car_ims").is_dir() and (folder / "cars_train").is_dir():
                raise DataError(
                    f"{folder}: {MERGED} is of the images in car_ims/; those in cars_train/ and cars_test/ have other"
                    f" numbers: add devkit/{TRAIN} and {TEST}"
                )
            for row in _annotations(folder / MERGED):
                _add(listing, _text(row, "relative_im_path"), row)
            return listing
        sizes = {}
        for part, file in (("cars_train", TRAIN), ("cars_test", TEST)):
            path = annotations[file]
            if path is None:
                listing.notes.append(f"{file} is not there")
                continue
            rows = _annotations(path)
            sizes[part] = len(rows)
            for row in rows:
                _add(listing, f"{part}/{_text(row, 'fname')}", row)
        if sizes.get("cars_train") == 8041 and sizes.get("cars_test") == 8144:
            raise DataError(f"{folder}: {TRAIN} and {TEST} are swapped (8,144 train and 8,041 test images are right)")
        return listing


def _annotations(path: Path) -> list[dict[str, Value]]:
    """The annotations of a file: text or number by name of the field, one dictionary per image."""
    check_regular(path)
    try:
        rows: list[dict[str, Value]] = guarded(read_annotations, path)[0]
    except ValueError as error:
        said = f"not a MATLAB file with structures 'annotations' ({error})"
        raise DataError(f"{path}: {said}; it is not an annotation file of Cars196") from None
    return rows


def _text(row: Mapping[str, Value], key: str) -> str:
    if not isinstance(row.get(key), str):
        raise DataError(f"annotations of Cars196 without a text {key!r}: {', '.join(row)}")
    return str(row[key])


def _add(listing: Listing, image: str, row: Mapping[str, Value]) -> None:
    if "class" not in row:
        raise DataError(f"annotations without classes: use {TEST}, which holds the labels of the test images")
    key = row["class"]
    if not isinstance(key, int | float) or not 0 <= key < 10**6 or key != int(key):
        raise DataError(f"annotations of Cars196: the class of {image!a} is {key!a}, not a class number")
    part = image.partition("/")[0]
    nested = f"{part}/" if os.path.isdir(os.path.join(listing.folder, part, part)) else ""
    listing.add(f"{nested}{image}", int(key), f"{int(key):03d}")
