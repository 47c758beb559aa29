"""Recipe of your own images: EfficientNet-Lite0 of timm, AdamW, one cycle; nothing here was tuned on your images."""

from __future__ import annotations

from dataclasses import replace

from ._base import Range, Stage
from .cub200 import RECIPE as CUB

RECIPE = replace(
    CUB,
    backbone="tf_efficientnet_lite0",
    base="cosface",
    classes_per_batch=16,
    end_to_end=Stage(
        epochs=20,
        lr=1e-4,
        lr_objective=1e-2,
        search={"lr": Range(1e-5, 1e-3, log=True), "lr_objective": Range(1e-3, 1e-1, log=True)},
    ),
    view={**CUB.view, "upright": True},
    epoch_repeats=1.0,
)
