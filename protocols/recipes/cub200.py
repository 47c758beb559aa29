"""Recipe of CUB-200-2011 at 224 px, with BN-Inception, SGD and a step schedule.

The set-up is that of "Probabilistic Embeddings Revisited" (PER), with wider ranges where its optima are on an edge. The
defaults are near the middle of the settings that PER published for ArcFace and CosFace on CUB and Cars.
"""

from __future__ import annotations

from ._base import CROPS, HEADS, Range, Recipe, Stage

RECIPE = Recipe(
    backbone="bn_inception",
    dim=128,
    base="arcface",
    classes_per_batch=32,
    images_per_class=4,
    end_to_end=Stage(
        epochs=32,
        lr=4e-4,
        lr_objective=8e-3,
        optimizer="sgd",
        weight_decay=1e-4,
        schedule="step",
        gamma=0.5,
        search={
            "lr": Range(1e-5, 3e-3, log=True),
            "lr_objective": Range(1e-4, 1e-1, log=True),
            "gamma": Range(0.1, 1.0),
        },
    ),
    frozen=HEADS,
    augmentation={**CROPS, "brightness": 0.25, "contrast": 0.25, "saturation": 0.25},
    feature_views=4,
    view={"image_size": 224, "resize": 256, "fit": "crop", "antialias": True, "cache_side": 512, "cache": True},
    freeze_norm="all",
    epoch_repeats=4.0,
)
