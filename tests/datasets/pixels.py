"""Golden sizes and pixels of data sets in memory."""

import csv
import hashlib
from pathlib import Path


def golden_pixels(name):
    """What :func:`shown` says of the training, validation and test images."""
    with (Path(__file__).parents[1] / "golden" / "pixels.csv").open() as file:
        return [(row["images"], row["classes"], row["sha256"]) for row in csv.DictReader(file) if row["name"] == name]


def shown(images):
    """Numbers of images and classes, and SHA-256 of the pixels; a change of these is a change of every result."""
    return str(len(images)), str(images.num_classes), hashlib.sha256(images.pixels.numpy().tobytes()).hexdigest()
