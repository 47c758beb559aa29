"""What a training recipe is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def search(low: float, high: float, *, log: bool = False) -> dict[str, Any]:
    """A range to tune over, inclusive."""
    return {"low": low, "high": high, "log": log, "type": "float"}


@dataclass(frozen=True, kw_only=True)
class Optim:
    """Optimiser and schedule of one stage; the search ranges of what is tuned stand beside the defaults.

    Attributes:
        optimizer: ``adamw`` or ``sgd`` (momentum 0.9).
        lr: Peak learning rate of backbone and heads.
        lr_objective: Peak learning rate of the objective's own parameters (class weights, proxies).
        schedule: ``onecycle`` (linear warm-up, cosine to zero) or ``constant``.
        warmup: Fraction of the steps spent warming up.
        grad_clip: Global gradient norm.
        epochs: Passes over the training images.
    """

    epochs: int
    lr: float
    lr_objective: float
    optimizer: str = "adamw"
    weight_decay: float = 1e-4
    schedule: str = "onecycle"
    warmup: float = 0.15
    grad_clip: float = 10.0
    search: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one data set is trained on, the same for every method.

    Attributes:
        backbone: Name of the backbone.
        dim: Embedding size.
        base: Base method of two-stage methods.
        classes_per_batch: P of the class-balanced batches.
        images_per_class: K of the class-balanced batches.
        end_to_end: Optimisation when the backbone is trained.
        frozen: Optimisation when the backbone is frozen and its features are cached.
        augmentation: Keyword arguments of the data set's augmentation, in both stages.
        feature_views: Augmented views cached per image when the backbone is frozen.
        methods: Defaults that differ from a method's own on this data set: ``{method: {parameter: value}}``.
    """

    backbone: str
    dim: int
    base: str
    classes_per_batch: int
    images_per_class: int
    end_to_end: Optim
    frozen: Optim
    augmentation: Mapping[str, float] = field(default_factory=dict)
    feature_views: int = 4
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
