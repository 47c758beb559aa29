"""Checks of a setting that find the errors of a training before any is started."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

import torch

from ..datasets.dataset import Dataset, ImageSet
from ..datasets.features import Features
from ..errors import LINE, MissingWeights, UserError, first_line, require_known
from ..methods._base import Method
from ..methods.backbones import registry
from ..methods.backbones.stages import Cut
from ..methods.scorers.registry import paired_score
from ..protocols._base import Preset
from ..protocols.recipes._base import Optimizer, Precision, Recipe, Schedule
from ..seeds import content_id
from ..store.specs import TRAIN_FROM, Parameters
from .asked import Asked
from .experiment import Values
from .setting import part

PAIR = 2
"""Fewest classes to tell apart, and fewest images of a class in a batch: a pair, if need be of one image twice."""

_FLOOR = "starts at random weights, so this is a random network: a floor, not what a pretrained network can do"

CLASSES, IMAGES = "data.classes_per_batch", "data.images_per_class"


class Sizes(NamedTuple):
    """Smallest numbers of training and validation classes of all folds, and of images of the largest training class."""

    classes: int
    images: int
    validation: int


def check(
    asked: Asked, name: str, method: Method, values: Values, view: Parameters
) -> tuple[Parameters, str, tuple[str, ...]]:
    """Check that a method can be trained on a data set at a setting, before any training is started.

    Returns:
        Values that replace those that do not fit (batches of a small data set, pooling of a network without maps), the
        hash of the content of image files (empty for data sets that come with the installation), and lines about what
        the user may not expect.

    Raises:
        UserError: If a value does not fit, or the data or weights cannot be used.
    """
    experiment, preset, site = asked.experiment, asked.preset, asked.site
    backbone, recipe = values["model.backbone"], site.recipe(name)
    _check_names(values, recipe, site.datasets.dataset(name))
    with refused(_blamed("--set data.*", view, recipe.view, name)):
        data = site.dataset(name, view)
    given = isinstance(data, Features)
    with refused(f"data set {name!r}: "):
        sizes, files = _split_identity(data, preset.validate, preset.folds, bool(view) or given)
    selects = preset.selection.metric != "last"
    user = {key for key in experiment.set if key in values}
    fitting = fitting_batches(name, values, user, sizes, selects=selects, instead=data.without_training())
    if (backbone == registry.GIVEN) != given:
        raise UserError(f"--backbone {backbone}: it stands for the features of a data set, and is no network")
    if isinstance(data, Features) and values["data.feature_views"] > data.views:
        raise UserError(f"--set data.feature_views: data set {name!r} has {data.views} views of every image")
    pooling = values["data.pooling"]
    if not given:
        source = "--backbone" if experiment.backbone is not None else f"the recipe of data set {name!r}"
        size = (view["image_size"],) * 2 if view else data.image_size
        known = _poolings(backbone, data.input_channels, size, source)
        if pooling not in known:
            if "data.pooling" in experiment.set:
                raise UserError(f"--set data.pooling={pooling}: backbone {backbone} has {', '.join(known)}")
            pooling = registry.OWN
    weights = weights_hash(backbone, site.weights)
    if weights is not None and site.weights not in (None, "download"):
        _check_weights(backbone, str(site.weights), data.input_channels, view.get("image_size"))
    if asked.frozen and weights is None and not given:
        raise UserError(
            f"--frozen: backbone {backbone} of data set {name!r} would stay at random weights;"
            f" give --weights {registry.FILE}, or name a --backbone that has ImageNet weights"
        )
    if stage := values.get(TRAIN_FROM):
        if weights is None:
            raise UserError(
                f"--set {TRAIN_FROM}={stage}: what precedes it would stay at random weights; give --weights"
            )
        if values["optim.compile"]:
            raise UserError(f"--set {TRAIN_FROM}: part of a backbone cannot be compiled; leave optim.compile out")
        _check_stage(backbone, stage, data.input_channels, view.get("image_size"), pooling)
    notes = [*_of_data(data, preset, sizes)]
    if fitting:
        before, now = (f"{b[CLASSES]} classes x {b[IMAGES]} images" for b in (values, {**values, **fitting}))
        has = f"{name} has {sizes.classes} training classes of at most {sizes.images} images"
        notes.insert(0, f"{has}: batches of {now} instead of {before}")
    if not method.by_steps and not method.on_base and weights is None and not given:
        notes.append(f"{method.name} on {name}: {backbone} {_FLOOR}")
    return {**fitting, "data.pooling": pooling}, files, tuple(notes)


def _of_data(data: Dataset, preset: Preset, sizes: Sizes) -> Iterator[str]:
    """Lines about validation images of one class, tests for which there are no corrupted features, and images.

    One class is refused for features: their validation file is at fault.
    """
    if sizes.validation < PAIR:
        line = f"data set {data.name!r}: validation images have one class, so that every answer is right"
        if isinstance(data, Features):
            raise UserError(f"{line}: give --val two classes or more (`bench data features`)")
        yield f"{line} and nothing is chosen by them"
    if isinstance(data, Features) and not preset.tests.corruptions:
        yield (
            f"{data.name} has no corrupted_crop for training and test images: nothing is tested on corrupted images"
            " (`bench embed --corruptions crop` makes such features)"
        )
    yield from data.remarks()


def _blamed(option: str, value: object, of_recipe: object, dataset: str) -> str:
    """The option that set a value, or the recipe if it has the same."""
    return f"the recipe of data set {dataset!r}: " if value == of_recipe else f"{option}: "


def _check_names(values: Values, recipe: Recipe, dataset: type[Dataset]) -> None:
    name, augmentation = dataset.name, part(values, "augment")
    known = {
        "optim.optimizer": get_args(Optimizer),
        "optim.schedule": get_args(Schedule),
        "optim.precision": get_args(Precision),
        "data.freeze_norm": registry.FREEZE_NORM,
        "data.pooling": registry.POOLINGS,
    }
    for key, choices in known.items():
        require_known(f"value of {key}:", [values[key]], choices)
    try:
        with refused(_blamed("--set augment.*", augmentation, recipe.augmentation, name)):
            dataset.augmentation_type(**augmentation)
    except TypeError:
        names = ", ".join(item.name for item in fields(dataset.augmentation_type))
        raise UserError(
            f"data set {dataset.name!r}: the augmentation of its recipe has {', '.join(augmentation)};"
            f" {dataset.augmentation_type.__name__} has {names}"
        ) from None


@cache
def _split_identity(data: Dataset, validate: tuple[int, ...], folds: int, on_disk: bool) -> tuple[Sizes, str]:
    """Sizes of the splits, and for image files the identity of all of them: computed once for all methods."""
    splits = [data.train_val(fold, folds) for fold in validate]
    parts = (splits[0].train, splits[0].val, data.test()) if on_disk else ()
    for what, images in zip(("validation", "test"), parts[1:]):
        if not _has_pair(images):
            raise ValueError(f"no {what} class has two images, so that there is nothing to retrieve")
    files = content_id([part.manifest_sha256() for part in parts]) if parts else ""
    sizes = Sizes(
        classes=min(split.train.num_classes for split in splits),
        images=min(int(split.train.labels.bincount().max()) for split in splits),
        validation=min(split.val.num_classes for split in splits),
    )
    return sizes, files


def _has_pair(images: ImageSet) -> bool:
    """Check if a query has a positive: two images of a class, or one in the queries and one in the gallery."""
    if images.queries is None or images.gallery is None:
        return int(images.labels.bincount().max()) > 1
    return bool(torch.isin(images.labels[images.queries], images.labels[images.gallery]).any())


def files_hash(data: Dataset, fold: int, folds: int) -> str:
    """Hash of the content of the image files of a data set of photographs of which one block of classes validates."""
    return _split_identity(data, (fold,), folds, True)[1]


def fitting_batches(
    dataset: str, asked: Values, user: set[str], sizes: Sizes, *, selects: bool = True, instead: str = ""
) -> dict[str, int]:
    """Batch sizes that replace default ones for which a data set is too small; none if all fit.

    Classes are lowered to the number of training classes, and images per class to those of the largest one. What the
    user fixed stays, or is an error if it is too large; ``selects`` is whether validation images select epochs or
    trials.

    Example:
        >>> usual = {"data.classes_per_batch": 16, "data.images_per_class": 4}
        >>> fitting_batches("folder", usual, set(), Sizes(9, 3, 3))
        {'data.classes_per_batch': 9, 'data.images_per_class': 3}
        >>> fitting_batches("folder", usual, {"data.images_per_class"}, Sizes(40, 3, 10))
        {}
    """
    fitting: dict[str, int] = {}
    if asked[CLASSES] > sizes.classes:
        if CLASSES in user:
            raise UserError(
                f"batches of {asked[CLASSES]} classes need more than the {sizes.classes} training classes of"
                f" {dataset!r}; use --set {CLASSES}={sizes.classes} or less, or set it in the recipe"
            )
        if sizes.classes < PAIR or (selects and sizes.validation < PAIR):
            raise UserError(
                f"data set {dataset!r} has {sizes.classes} training and {sizes.validation} validation classes, training"
                f" needs at least {PAIR} of each{f'; {instead}' if instead else ''}"
            )
        fitting[CLASSES] = sizes.classes
    if asked[IMAGES] > max(PAIR, sizes.images) and IMAGES not in user:
        fitting[IMAGES] = max(PAIR, sizes.images)
    return fitting


@contextlib.contextmanager
def refused(source: str, lacking: type[UserError] = MissingWeights) -> Iterator[None]:
    """Errors about data, a backbone or its stages as those of an option or recipe, ``lacking`` for its weights."""
    try:
        yield
    except ValueError as error:
        kind = lacking if isinstance(error, registry.NoWeights) else UserError
        raise kind(f"{source}{first_line(error, 2 * LINE)}") from None


@cache
def named_backbone(name: str, weights: str | None, source: str) -> str:
    """Full name of a backbone that was asked for by an option or a recipe, the source."""
    with refused(f"{source}: "):
        return registry.full_name(name, weights)


@cache
def _poolings(name: str, channels: int, size: tuple[int, int], source: str) -> tuple[str, ...]:
    """Poolings of a backbone for images of a size: some networks read one size only."""
    with refused(f"{source}: "):
        return registry.poolings_of(name, channels, size)


def fitting_scorers(names: tuple[str, ...], method: Method, dim: int) -> tuple[str, ...]:
    """The scorers that are defined for the distributions of a method."""
    if not names:
        return ()
    head = method.spread_head(8, dim)
    spread = None if head is None else head(torch.zeros(1, 8))
    distribution = method.distribution(torch.ones(1, dim), spread)
    fitting = []
    for name in names:
        with contextlib.suppress(ValueError):
            paired_score(name, distribution, distribution)
            fitting.append(name)
    return tuple(fitting)


def weights_hash(backbone: str, asked: str | None) -> str | None:
    """SHA-256 of the file that a backbone starts from; None for random weights."""
    with refused(""):
        path = registry.find_weights(backbone, asked)
    return None if path is None else _file_hash(path)


@cache
def _check_weights(backbone: str, path: str, channels: int, image_size: int | None) -> None:
    """Refuse a file that does not contain the weights of a backbone."""
    with refused("--weights: ", UserError):
        registry.build_backbone(backbone, channels, Path(path), image_size=image_size)


@cache
def _check_stage(backbone: str, stage: str, channels: int, image_size: int | None, pooling: str) -> None:
    """Refuse a stage before which a backbone cannot be cut."""
    with refused(f"--set {TRAIN_FROM}: backbone {backbone}: "), torch.device("meta"):
        Cut(registry.build_backbone(backbone, channels, pooling=pooling, image_size=image_size), stage)


@cache
def _file_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"--weights {path}: {error.strerror}") from error
