"""The Metric-Learning Reality Check as "Probabilistic Embeddings Revisited" reduced it: a declarative plan.

Class-disjoint halves, one validation fold of four, Bayesian optimisation on validation MAP@R, five seeds at the best
setting, then tests on clean and on centre-cropped images (Musgrave et al. 2020, arXiv:2003.08505; PER, arXiv 2202).
Preset ``mlrc`` is the check in full: all four folds, ten runs. The engine interprets the plan; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

NAME = "reality_check"
SUMMARY = "class-disjoint split, tuned on validation MAP@R, 5 seeds, retrieval + verification + confidence tests"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which epoch of a training, and which trial of a study, is kept.

    Attributes:
        metric: ``map_at_r`` on validation classes with the method's own scorer, or ``last``, the last epoch. A stage
            that leaves the means as its base made them is selected by its own validation loss instead: MAP@R of the
            means cannot see it, and MAP@R under a likelihood score prefers early epochs (measured, see docs).
        frozen_metric: What selects in a stage that leaves the means alone.
        patience: Epochs without improvement after which training stops.
        min_improvement: What counts as an improvement for ``patience`` (not for keeping the best epoch).
    """

    metric: str = "map_at_r"
    frozen_metric: str = "stage_loss"
    patience: int = 10
    min_improvement: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class Tests:
    """What is measured on the test classes.

    Attributes:
        recall_ks: k of Recall@k.
        corruptions: Smallest and largest severity of each kind of corrupted test images, each image's drawn evenly;
            a centre crop's is 1 - its side.
        filter_fractions: Shares of the least confident images removed.
        false_positive_rate: Operating point of the verification true positive rate.
        map_at_k: k of mAP@k; 0 leaves it out.
        clustering: Whether k-means, NMI and pair F1 are computed.
        structure: Whether spectral decay, density, uniformity and class concentration are.
    """

    recall_ks: tuple[int, ...] = (1, 2, 4, 8)
    corruptions: Mapping[str, tuple[float, float]] = field(default_factory=lambda: {"crop": (0.0, 0.5)})
    filter_fractions: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    false_positive_rate: float = 1e-3
    map_at_k: int = 0
    clustering: bool = False
    structure: bool = False


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One named reading of the protocol.

    Attributes:
        folds: The development classes are cut into this many contiguous blocks; with 1, all of them train.
        validate: The blocks that validate, each for a model of its own: with one, a replicate is one model; with more,
            a trial counts by the mean of its models and a replicate is tested as ``separated`` (the mean over its
            models) and ``concatenated`` (their embeddings side by side).
        trials: Default budget of a study; 0 where nothing may be tuned.
        trial_batch: Trials asked before any of them is told; fixed, so that a study does not depend on timing.
        seeds: Default number of replicates at the best setting.
        view: How photographs are read where it differs from the recipe.
        photographs: What recipes of photographs have instead of their own.
        optim: What these have instead of their own end-to-end optimisation.
        methods: Parameters of methods where they differ from the recipe: ``{method: {parameter: value}}``.
    """

    folds: int = 4
    validate: tuple[int, ...] = (0,)
    trials: int = 50
    trial_batch: int = 4
    seeds: int = 5
    selection: Selection = Selection()
    tests: Tests = Tests()
    view: Mapping[str, Any] = field(default_factory=dict)
    photographs: Mapping[str, Any] = field(default_factory=dict)
    optim: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for records and unit ids."""
        return asdict(self)


PRESETS = {
    "strict": Preset(),
    # What PER's code did. Its MLS re-ranking and its linear heads are `--fidelity released`, the threshold chosen on
    # the test pairs is `threshold_test`, its filter-out curve `query_and_gallery`, its In-shop `inshop_merged`.
    "per": Preset(
        selection=Selection(frozen_metric="map_at_r"),
        tests=Tests(corruptions={"crop": (0.0, 0.75)}),
        view={"antialias": False},
        methods={"hib": {"pairs": "balanced"}},
    ),
    # Musgrave et al. 2020: four models per run, one for each block of classes held out, tested apart (the mean of four
    # 128-d models) and side by side (512-d). On photographs: their batches, crops and optimiser; the rate of the
    # proxies is tuned over their range. Early stopping is theirs in kind, the patience and the 100 epochs are ours.
    "mlrc": Preset(
        validate=(0, 1, 2, 3),
        seeds=10,
        view={"image_size": 227},
        photographs={
            "classes_per_batch": 8,
            "images_per_class": 4,
            "epoch_repeats": 1.0,
            "augmentation": {
                "area_low": 0.16,
                "area_high": 1.0,
                "ratio_low": 0.75,
                "ratio_high": 4 / 3,
                "flip": 0.5,
                "brightness": 0.0,
                "contrast": 0.0,
                "saturation": 0.0,
            },
        },
        optim={
            "optimizer": "rmsprop",
            "lr": 1e-6,
            "lr_objective": 1e-3,
            "weight_decay": 1e-4,
            "schedule": "constant",
            "epochs": 100,
            "search": {"lr_objective": {"low": 1e-6, "high": 1.0, "log": True, "type": "float"}},
        },
    ),
}
