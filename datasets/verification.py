"""The report of ``bench data verify``: the types of its JSON, and the check of one file."""

from __future__ import annotations

from pathlib import Path
from typing import NotRequired, TypedDict

from .decode import decode
from .errors import DataError


class SplitVerification(TypedDict):
    """Size and content of one part of a data set.

    Attributes:
        images: Number of images.
        classes: Number of classes.
        manifest_sha256: Hash of the content, see :meth:`ImageSet.manifest_sha256`.
        queries: Number of queries, if the release names them.
        gallery: Number of gallery images, if the release names them.
    """

    images: int
    classes: int
    manifest_sha256: str
    queries: NotRequired[int]
    gallery: NotRequired[int]


class SoftLabelVerification(TypedDict):
    """Label distributions given by people.

    Attributes:
        file: Name of the file.
        images: Number of images with a distribution.
        test_images: Number of these among the test images.
        classes: Number of classes of the distributions.
        sha256: Hash of the file.
    """

    file: str
    images: int
    test_images: int
    classes: int
    sha256: str


class Verification(TypedDict):
    """Content of a data set of image files, after every file has been decoded.

    Attributes:
        name: Name of the data set.
        release: Name of the release.
        folder: Folder in which the release was found.
        images: Number of images.
        classes: Number of classes.
        partial: Description of what is missing; empty for a complete release.
        damaged: One line per file that cannot be read.
        converted_to_rgb: Number of images by colour mode, for modes other than RGB.
        splits: ``train``, ``val`` and ``test`` of the first fold.
        soft_labels: Label distributions, if there are any.
    """

    name: str
    release: str
    folder: str
    images: int
    classes: int
    partial: str
    damaged: list[str]
    converted_to_rgb: dict[str, int]
    splits: dict[str, SplitVerification]
    soft_labels: NotRequired[SoftLabelVerification]


def inspect(path: Path) -> tuple[str, str]:
    """Decode an image file.

    Args:
        path: The file.

    Returns:
        Its colour mode and an empty string; or an empty string and the problem, if it cannot be read.
    """
    from PIL import Image

    try:
        decode(path)
        with Image.open(path) as image:
            return image.mode, ""
    except DataError as error:
        return "", str(error)


__all__ = ["SoftLabelVerification", "SplitVerification", "Verification", "inspect"]
