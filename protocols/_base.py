"""Protocols, named plans with presets that the engine interprets: their types, and lookup by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from .known_tests import BUILT_IN

SelectionMetric = Literal["map_at_r", "stage_loss", "last"]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Rule that selects the best epoch of a training and the best trial of a hyper-parameter study.

    Attributes:
        metric: ``map_at_r`` (highest MAP@R on validation classes with the method's own scorer), ``stage_loss`` (lowest
            validation loss of what is trained) or ``last`` (the last epoch).
        frozen_metric: Metric, in place of ``metric``, for trainings that leave the embedding means of a trained base
            model unchanged. MAP@R of the means cannot see such a training, and MAP@R under a likelihood score prefers
            early epochs (measured, see the docs).
        patience: Epochs without improvement after which training stops.
        min_improvement: Smallest change of the metric for the better that counts as an improvement for ``patience``;
            the best epoch is kept without this margin.
        reranked: Whether MAP@R is computed as in the public code of "Probabilistic Embeddings Revisited" (PER). That
            code chooses the images whose embedding distributions have their modes nearest to the query's, and ranks
            only these by the method's score (:mod:`bench.protocols.near_modes`).
    """

    metric: SelectionMetric = "map_at_r"
    frozen_metric: SelectionMetric = "stage_loss"
    patience: int = 10
    min_improvement: float = 1e-3
    reranked: bool = False


GROUPS = tuple(group for group in BUILT_IN if group not in ("map_at_1000", "clustering", "structure"))
"""Groups of tests that every protocol runs; those that need what the embeddings do not have are left out."""


@dataclass(frozen=True, kw_only=True)
class Tests:
    """Settings of the tests on the test classes.

    Attributes:
        groups: Names of the groups of tests to run, such as ``retrieval`` (:mod:`bench.protocols.known_tests`).
        recall_ks: Values of k for Recall@k.
        corruptions: Smallest and largest severity by name of the corruption; each test image's severity is drawn
            uniformly between them. The severity of a centre crop is 1 - its side as a fraction of the image's side.
        filter_fractions: Shares of the least confident images that are removed, one per point of a filter-out curve
            (MAP@R and Recall@1 of what is left).
        false_positive_rate: False positive rate at which the true positive rate of verification is given.
        reranked: Whether retrieval, filter-out curves and areas under risk-coverage curves are also given as the public
            code of "Probabilistic Embeddings Revisited" (PER) computes them (:mod:`bench.protocols.reranked`).
        nearest_roc_point: Whether the equal error rate and the true positive rate of verification are also given as in
            PER's public code: at the nearest point of the ROC, without interpolation. For the true positive rate, the
            point may exceed ``false_positive_rate``.
        deterministic_confidence: Name of the confidence, such as ``max_probability``, that tables show for a
            deterministic method. If the name is empty or the method does not have that confidence, tables show the
            method's own default confidence.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    groups: tuple[str, ...] = GROUPS
    recall_ks: tuple[int, ...] = (1, 2, 4, 8)
    corruptions: Mapping[str, tuple[float, float]] = field(default_factory=lambda: {"crop": (0.0, 0.5)})
    filter_fractions: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    false_positive_rate: float = 1e-3
    reranked: bool = False
    nearest_roc_point: bool = False
    deterministic_confidence: str = ""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named variant of a protocol: a bundle of its settings.

    The last four attributes replace values of the recipe of a data set, its settings of network, data and optimiser.

    Attributes:
        folds: Number of contiguous blocks that the development classes (all but the test classes) are cut into; with 1,
            all of them train.
        validate: Indices of the blocks that validate, each for a model of its own. With one, a replicate (one seed) is
            one model. With more, a trial counts by the mean of its models, and a replicate is tested as ``separated``
            (the mean over its models) and ``concatenated`` (their embeddings side by side).
        trials: Default number of tuning trials of a method, shared out over its studies; 0 if nothing may be tuned.
        trial_batch: Number of trials that are proposed before the result of any of them is known; it is fixed, so that
            a study does not depend on timing.
        seeds: Default number of replicates.
        one_study: Whether the design is that of the papers by default: one tuning, and all replicates at the setting
            that it chooses. Otherwise each replicate is a tuning study of its own with the network that it chooses.
        selection: Rule that selects epochs and trials.
        tests: Settings of the tests.
        view: Settings of :class:`bench.datasets.View`, how photographs are read, that replace those of the recipe.
        photographs: Settings of network, batches and augmentation for data sets of photographs.
        optim: Settings of the optimiser for data sets of photographs when the backbone is trained; they apply only
            together with ``photographs``.
        methods: Parameters of methods: ``{method: {parameter: value}}``.
    """

    folds: int = 4
    validate: tuple[int, ...] = (0,)
    trials: int = 50
    trial_batch: int = 4
    seeds: int = 5
    one_study: bool = False
    selection: Selection = Selection()
    tests: Tests = Tests()
    view: Mapping[str, Any] = field(default_factory=dict)
    photographs: Mapping[str, Any] = field(default_factory=dict)
    optim: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A declarative plan of an experiment: how classes are split, what is tuned, selected and tested.

    Results of different versions are never mixed in a folder; ``document`` is the explanation for ``bench show``.
    """

    name: str
    summary: str
    version: int
    document: str
    presets: Mapping[str, Preset]


PROTOCOLS = ("reality_check", "standardized")


def get_protocol(name: str) -> Protocol:
    """Look up a protocol by its name, ``reality_check`` or ``standardized``; a ValueError if there is none."""
    if name not in PROTOCOLS:
        raise ValueError(f"unknown protocol {name!r} (known: {', '.join(PROTOCOLS)})")
    protocol: Protocol = import_module(f".{name}", __package__).PROTOCOL
    return protocol
