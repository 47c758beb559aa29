"""Recipe of ``scans``: small grey images through the small network of the embedded data sets."""

from __future__ import annotations

from dataclasses import replace

from ._base import CROPS, NO_JITTER
from .folder import RECIPE as FOLDER
from .ndigit import RECIPE as NDIGIT

RECIPE = replace(
    FOLDER,
    backbone="convnet",
    classes_per_batch=NDIGIT.classes_per_batch,
    images_per_class=NDIGIT.images_per_class,
    end_to_end=NDIGIT.end_to_end,
    augmentation={**CROPS, "area_low": 0.8, "flip": 0.0, **NO_JITTER},
    view={**FOLDER.view, "image_size": 32, "resize": 32},
    freeze_norm="no",
)
