"""Checks that find the errors of a training before any is started."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ..errors import MissingWeights, UnknownName, UserError, first_line
from ..methods.backbones.registry import FILE
from ..protocols.recipes._base import Optimizer, Precision, Schedule
from ..seeds import content_id
from ..site import Site
from .batches import Sizes, fitting_batches, said_of_batches
from .request import Request, Resolved
from .setting import Setting, Values

if TYPE_CHECKING:
    from ..datasets.dataset import Dataset
    from ..methods._base import Method
    from ..protocols.recipes._base import Recipe


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Facts about data, weights and scorers of a setting, found when it was checked.

    Attributes:
        partial: Description of the files that the data set lacks, if incomplete data are allowed; else empty.
        files: Hash of the content of its image files; empty for data sets that come with the installation.
        soft_labels: SHA-256 of the label distributions that human annotators gave its test images; empty if there are
            none.
        weights: SHA-256 of the starting weights of the backbone; None for random ones.
        scorers: The scorers asked for that are defined for the method's distributions.
        batches: Sizes of batches that replace default ones, for which the data set is too small.
        adapted: Line that says so, or empty.
    """

    partial: str
    files: str
    soft_labels: str
    weights: str | None
    scorers: tuple[str, ...]
    batches: Values
    adapted: str


def check_setting(experiment: Resolved, request: Request, setting: Setting, method: Method, site: Site) -> Checked:
    """Check names, values, data and weights, so that errors show before any training starts.

    Args:
        experiment: Everything that was asked for.
        request: The cell (protocol, data set, method) that the setting is for.
        setting: All values that can be set.
        method: The method with its parameters.
        site: Paths, plug-ins and device.

    Raises:
        UserError: If a name does not exist, a value does not fit, or the data cannot be used, with what to do.
    """
    dataset, view = request.cell.dataset, dict(setting.view)
    _check_names(setting, request.recipe, site.datasets.dataset(dataset))
    try:
        data = site.dataset(dataset, view)
    except ValueError as error:
        raise UserError(f"{_blamed('--set data.*', setting.view, request.recipe.view, dataset)}: {error}") from None
    try:
        sizes, files = _split_identity(data, experiment.preset.validate, experiment.preset.folds, bool(view))
    except ValueError as error:
        raise UserError(f"data set {dataset!r}: {error}") from None
    pinned = frozenset(pin.key.removeprefix("data.") for pin in request.pins if pin.key.startswith("data."))
    selects = experiment.preset.selection.metric != "last"
    batches = fitting_batches(dataset, setting.batches, pinned, sizes, selects=selects, instead=data.without_training())
    dim, asked = setting.network["dim"], experiment.select_by
    if asked is not None and request.requested and not _fitting_scorers((asked,), method, dim):
        raise UserError(f"--select-by {asked}: not defined for the distributions of {method.name}")
    backbone = setting.network["backbone"]
    if view:
        source = _blamed(f"--backbone {backbone}", backbone, request.recipe.backbone, dataset)
        _try_backbone(backbone, view["image_size"], source)
    weights = weights_hash(backbone, site.weights)
    if experiment.frozen and weights is None:
        raise UserError(
            f"--frozen: backbone {backbone} of data set {dataset!r} would stay at random weights;"
            f" give --weights {FILE}, or --backbone with one that has ImageNet weights"
        )
    return Checked(
        partial=data.partial if view else "",
        files=files,
        soft_labels=data.soft_labels_sha256,
        weights=weights,
        scorers=_fitting_scorers(experiment.scorers, method, dim),
        batches=batches,
        adapted=said_of_batches(dataset, setting.batches, batches, sizes),
    )


def _blamed(option: str, value: object, of_recipe: object, dataset: str) -> str:
    """The option that set a value, or the recipe if it has the same."""
    return f"the recipe of data set {dataset!r}" if value == of_recipe else option


def _check_names(setting: Setting, recipe: Recipe, dataset: type[Dataset]) -> None:
    from ..methods.backbones.pooling import POOLINGS
    from ..methods.backbones.registry import FREEZE_NORM, check_backbone

    name, backbone = dataset.name, setting.network["backbone"]
    try:
        check_backbone(backbone)
    except ValueError as error:
        raise UserError(f"{_blamed('--backbone', backbone, recipe.backbone, name)}: {error}") from None
    for key, known in (("optimizer", Optimizer), ("schedule", Schedule), ("precision", Precision)):
        if setting.optim[key] not in get_args(known):
            raise UnknownName(f"value of optim.{key}:", setting.optim[key], get_args(known))
    for key, values in (("freeze_norm", FREEZE_NORM), ("pooling", POOLINGS)):
        if setting.batches[key] not in values:
            raise UnknownName(f"value of data.{key}:", setting.batches[key], values)
    try:
        dataset.augmentation_type(**setting.augmentation)
    except ValueError as error:
        blamed = _blamed("--set augment.*", setting.augmentation, recipe.augmentation, name)
        raise UserError(f"{blamed}: {error}") from None
    except TypeError:
        names = ", ".join(item.name for item in fields(dataset.augmentation_type))
        raise UserError(
            f"data set {dataset.name!r}: the augmentation of its recipe has {', '.join(setting.augmentation)};"
            f" {dataset.augmentation_type.__name__} has {names}"
        ) from None


@cache
def _split_identity(data: Dataset, validate: tuple[int, ...], folds: int, on_disk: bool) -> tuple[Sizes, str]:
    """Sizes of the splits, and for image files the identity of all of them: computed once for all methods."""
    splits = [data.train_val(fold, folds) for fold in validate]
    parts = (splits[0].train, splits[0].val, data.test()) if on_disk else ()
    files = content_id([part.manifest_sha256() for part in parts]) if parts else ""
    sizes = Sizes(
        classes=min(split.train.num_classes for split in splits),
        images=min(int(split.train.labels.bincount().max()) for split in splits),
        validation=min(split.val.num_classes for split in splits),
    )
    return sizes, files


def files_hash(data: Dataset, fold: int, folds: int) -> str:
    """Hash of the content of the image files of a data set of photographs.

    Args:
        data: The data set.
        fold: Index of the first block of development classes that validates.
        folds: Number of blocks that the development classes are cut into.
    """
    return _split_identity(data, (fold,), folds, True)[1]


@cache
def _try_backbone(name: str, side: int, source: str) -> None:
    """Send one image through a backbone at random weights: some networks read one size only."""
    import torch

    from ..methods.backbones.registry import build_backbone

    if name == "convnet":
        return
    try:
        with torch.no_grad():
            shape = tuple(build_backbone(name, 3).eval()(torch.rand(1, 3, side, side)).shape)
    except Exception as error:  # whatever a network of timm raises on an image it was not made for
        raise UserError(
            f"{source}: backbone {name} cannot read images of {side} x {side} ({first_line(error)}); try another"
            " data.image_size"
        ) from None
    if len(shape) != 2:
        raise UserError(f"{source}: backbone {name} gives features of shape {list(shape)}, not one vector per image")


def _fitting_scorers(names: tuple[str, ...], method: Method, dim: int) -> tuple[str, ...]:
    """The scorers that are defined for the distributions of a method."""
    import torch

    from ..methods.scorers.registry import paired_score

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
    """SHA-256 of the file that a backbone starts from; None for random weights.

    Raises:
        UserError: If there is no such file.
        MissingWeights: If no file is named, and none is on this machine.
    """
    from ..methods.backbones.registry import NoWeights, find_weights

    try:
        path = find_weights(backbone, asked)
    except NoWeights as error:
        raise MissingWeights(str(error)) from None
    return None if path is None else _file_hash(path)


@cache
def _file_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"--weights {path}: {error.strerror}") from error
