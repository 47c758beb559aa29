"""Training recipes, the settings that all methods share on one data set: their types, and lookup by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any, Literal

Optimizer = Literal["adamw", "adam", "sgd", "rmsprop"]
Schedule = Literal["onecycle", "cosine", "step", "multistep", "constant"]
Precision = Literal["float32", "tf32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Range:
    """Range in which a hyper-parameter of some type is tuned, both ends included, perhaps on a logarithmic scale."""

    low: float
    high: float
    log: bool = False
    type: Literal["float", "int"] = "float"


@dataclass(frozen=True, kw_only=True)
class Optim:
    """Settings of the optimiser and schedule of a training.

    The objective is the loss with its own parameters; heads are layers that turn features of the backbone into
    embeddings.

    Attributes:
        optimizer: ``adamw``, ``adam``, ``sgd`` (momentum 0.9) or ``rmsprop`` (momentum 0.9).
        lr: Peak learning rate of backbone and heads.
        heads_factor: Ratio of the heads' learning rate to the backbone's.
        lr_objective: Peak learning rate of the objective's own parameters (class weights, proxies).
        weight_decay: Weight decay of backbone and heads, and of the objective's own parameters unless
            ``decay_objective`` is false.
        decay_objective: Whether weight decay applies to class weights and proxies.
        schedule: ``onecycle`` (warm-up, cosine to zero), ``cosine`` (to zero), ``step``, ``multistep`` or ``constant``.
        gamma: Factor of ``step``, after every ``step_epochs`` epochs, and of ``multistep``, at its ``milestones``.
        step_epochs: Epochs between two steps.
        milestones: Epochs after which ``multistep`` multiplies the rates by ``gamma``.
        warmup: Fraction of the steps that ``onecycle`` spends warming up.
        head_epochs: Number of first epochs in which the backbone is frozen and only the rest trains.
        grad_clip: Largest global norm of the gradient; 0 leaves gradients as they are.
        epochs: Passes over the training images.
        precision: Precision of the backbone in training: ``float32``, ``tf32`` (float32 that a GPU rounds to 10 bits in
            convolutions and products), ``bfloat16`` or ``float16`` (with loss scaling); heads and losses are always
            float32, and so is every embedding.
        compile: Compile the backbone (torch.compile).
    """

    epochs: int
    lr: float
    lr_objective: float
    optimizer: Optimizer = "adamw"
    weight_decay: float = 1e-4
    decay_objective: bool = True
    schedule: Schedule = "onecycle"
    warmup: float = 0.15
    gamma: float = 0.5
    step_epochs: int = 5
    milestones: tuple[int, ...] = ()
    head_epochs: int = 0
    grad_clip: float = 10.0
    heads_factor: float = 1.0
    precision: Precision = "float32"
    compile: bool = False


@dataclass(frozen=True, kw_only=True)
class Stage(Optim):
    """Default optimisation of one kind of training, with the ranges of what is tuned.

    The kinds are training end to end and training on cached features of a frozen backbone.

    Attributes:
        search: Ranges by the name of the tuned setting, such as ``lr``.
    """

    search: Mapping[str, Range] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Default settings of the optimiser by name, without the ranges in which they are tuned."""
        return {item.name: getattr(self, item.name) for item in fields(Optim)}


HEADS = Stage(
    epochs=20,
    lr=1e-2,
    lr_objective=1e-2,
    search={"lr": Range(1e-3, 5e-2, log=True), "weight_decay": Range(1e-6, 1e-2, log=True)},
)
"""Optimisation of heads on the cached features of a frozen backbone, the same on all data sets so far."""

CROPS = {"area_low": 0.16, "area_high": 1.0, "ratio_low": 0.75, "ratio_high": 4 / 3, "flip": 0.5}
"""Usual random crops and flips of training photographs."""

NO_JITTER = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0}
"""Training photographs that keep their colours."""

BATCHES = (
    "classes_per_batch",
    "images_per_class",
    "feature_views",
    "freeze_norm",
    "pooling",
    "calibrate",
    "epoch_repeats",
)
"""Fields of a recipe that say how training images are served and how the backbone takes them (``data.*``)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training settings of one data set (network, data and optimiser), the same for every method.

    Attributes:
        backbone: Name of the backbone.
        dim: Embedding size.
        base: Name of the method whose trained model two-stage methods start from.
        classes_per_batch: Number of classes in a class-balanced batch.
        images_per_class: Number of images of each class in such a batch.
        end_to_end: Optimisation when the backbone is trained.
        frozen: Optimisation when the backbone is frozen and its features are cached.
        augmentation: Keyword arguments of the data set's class of augmentation settings, which are used with a trained
            and with a frozen backbone alike.
        feature_views: Number of augmented versions of each image whose features are cached if the backbone is frozen.
        view: Keyword arguments of ``datasets.View``, how photographs are resized, cropped and cached; empty for data
            sets that are kept in memory as pixels.
        freeze_norm: Part of the batch norms of a network for photographs that stays fixed: ``no``, ``statistics``
            (running mean and variance) or ``all`` (also scale and shift).
        pooling: Global pooling of the feature maps: ``avg_max`` (their average plus their maximum) or ``avg``; ``own``
            is that of the network itself, which one without maps has.
        calibrate: Whether features of a network for photographs are divided by a constant before training, so that
            their root mean square is 1; a head trained on an already trained model keeps that model's constant.
        epoch_repeats: Passes over the training images that count as one epoch.
        methods: Parameters whose default on this data set differs from the method's: ``{method: {parameter: value}}``.
    """

    backbone: str
    dim: int
    base: str
    classes_per_batch: int
    images_per_class: int
    end_to_end: Stage
    frozen: Stage
    augmentation: Mapping[str, float] = field(default_factory=dict)
    feature_views: int = 4
    view: Mapping[str, Any] = field(default_factory=dict)
    freeze_norm: str = "no"
    pooling: Literal["avg_max", "avg", "own", "projection"] = "avg_max"
    calibrate: bool = True
    epoch_repeats: float = 1.0
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def batches(self) -> dict[str, Any]:
        """Settings by name, :data:`BATCHES`, of how training images are batched and enter the backbone."""
        return {name: getattr(self, name) for name in BATCHES}


RECIPES = ("cub200", "default", "features", "folder", "inshop", "ndigit", "omniglot", "scans", "sop")


def get_recipe(name: str) -> Recipe:
    """Look up a built-in training recipe by its name, such as ``cub200``; a ValueError if there is none."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r} (known: {', '.join(RECIPES)})")
    recipe: Recipe = import_module(f".{name}", __package__).RECIPE
    return recipe


def recipe_of(dataset: type) -> Recipe:
    """Training recipe (settings of network, data and optimiser) of a data set.

    The recipe is the attribute ``recipe`` of the class or, if the class sets none, the variable ``RECIPE`` of its
    source file. If neither exists, the nearest base class with either decides. The value is a ``Recipe`` or the name of
    a built-in one; anything else is a ValueError.
    """
    for cls in dataset.__mro__:
        found = vars(cls).get("recipe", getattr(sys.modules.get(cls.__module__), "RECIPE", None))
        if isinstance(found, Recipe):
            return found
        if isinstance(found, str):
            return get_recipe(found)
        if found is not None:
            raise ValueError(f"{cls.__name__} has a recipe that is neither a Recipe nor the name of one: {found!r}")
    raise ValueError(f"{dataset.__name__} has no recipe")
