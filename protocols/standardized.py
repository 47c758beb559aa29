"""The training and tests of Roth et al. (ICML 2020), as EL-nivMF and NIR used them: a declarative plan.

Every development class trains, for a fixed number of epochs; nothing is selected and nothing is tuned, the last epoch
counts (the papers' code keeps the best test value instead, which is optimistic). On photographs: ResNet-50 with frozen
batch-norm statistics and average pooling, Adam at 1e-5 without a schedule or a gradient clip, batches of 56 classes by
2 images. In addition to the tests of ``reality_check``: mAP@1000 under both denominators, NMI and pair F1 of k-means,
and the structure of the embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._base import GROUPS, Preset, Protocol, Selection, Tests
from .recipes._base import CROPS, NO_JITTER

PHOTOGRAPHS: Mapping[str, Any] = {
    "backbone": "resnet50.tv_in1k",
    "freeze_norm": "statistics",
    "pooling": "avg",
    "classes_per_batch": 56,
    "images_per_class": 2,
    "epoch_repeats": 1.0,
    "augmentation": {**CROPS, "area_low": 0.08, **NO_JITTER},
}
"""Settings that replace those in the recipes of photographs; proxies learn at 4000 times the backbone's rate (NIR)."""

OPTIM: Mapping[str, Any] = {
    "optimizer": "adam",
    "lr": 1e-5,
    "lr_objective": 4e-2,
    "weight_decay": 4e-4,
    "decay_objective": False,
    "schedule": "constant",
    "grad_clip": 0.0,
    "epochs": 150,
}

PRESETS = {
    "strict": Preset(
        folds=1,
        trials=0,
        selection=Selection(metric="last", frozen_metric="last"),
        tests=Tests(groups=(*GROUPS, "map_at_1000", "clustering", "structure"), recall_ks=(1, 2, 4, 8, 10)),
        photographs=PHOTOGRAPHS,
        optim=OPTIM,
    )
}

PROTOCOL = Protocol(
    name="standardized",
    summary="all development classes train for fixed epochs, untuned; adds mAP@1000, NMI and structural metrics",
    version=1,
    document=__doc__,
    presets=PRESETS,
)
