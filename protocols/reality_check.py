"""The Metric-Learning Reality Check as "Probabilistic Embeddings Revisited" reduced it: a declarative plan.

Class-disjoint halves, one validation fold of four, five replicates, each an optimisation on validation MAP@R with the
network that it chooses, then tests on clean and on centre-cropped images (Musgrave et al. 2020, arXiv:2003.08505; PER,
arXiv 2202). In presets ``per`` and ``mlrc`` replicates are seeds at the best setting of one optimisation. Preset
``mlrc`` is the check in full: all four folds, ten runs. The engine interprets the plan; nothing here trains.
"""

from __future__ import annotations

from ._base import Preset, Protocol, Selection, Tests
from .recipes._base import CROPS, NO_JITTER, Range

PRESETS = {
    "strict": Preset(),
    # What PER's code did. Its ranking of the nearest modes alone and its filter-out curve are the variant `reranked`,
    # the threshold chosen on the test pairs is `threshold_test`, its In-shop is `inshop_merged`. What its code does to
    # a method, such as its linear heads, is `--fidelity released`.
    "per": Preset(
        one_study=True,
        selection=Selection(frozen_metric="map_at_r", reranked=True),
        tests=Tests(
            corruptions={"crop": (0.0, 0.75)},
            reranked=True,
            nearest_roc_point=True,
            deterministic_confidence="max_probability",
        ),
        view={"antialias": False},
        methods={"hib": {"pairs": "balanced"}},
    ),
    # Musgrave et al. 2020: four models per run, one for each block of classes held out, tested apart (the mean of four
    # 128-d models) and side by side (512-d). On photographs: their batches, crops and optimiser; the rate of the
    # proxies is tuned over their range. Early stopping is theirs in kind, the patience and the 100 epochs are ours.
    "mlrc": Preset(
        validate=(0, 1, 2, 3),
        one_study=True,
        seeds=10,
        view={"image_size": 227},
        photographs={
            "classes_per_batch": 8,
            "images_per_class": 4,
            "epoch_repeats": 1.0,
            "pooling": "avg",
            "augmentation": {**CROPS, **NO_JITTER},
        },
        optim={
            "optimizer": "rmsprop",
            "lr": 1e-6,
            "lr_objective": 1e-3,
            "weight_decay": 1e-4,
            "schedule": "constant",
            "epochs": 100,
            "search": {"lr_objective": Range(1e-6, 1.0, log=True)},
        },
    ),
}

PROTOCOL = Protocol(
    name="reality_check",
    summary="class-disjoint split, tuned on validation MAP@R, 5 studies, retrieval + verification + confidence tests",
    version=1,
    document=__doc__,
    presets=PRESETS,
)
