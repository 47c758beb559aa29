"""Planning: from what was asked for to units with content-derived ids.

A unit is a plain JSON value that holds everything its result depends on; its id is the hash of that value. Training
units are shared: a base serves all two-stage methods on it, and a setting that two budgets agree on is trained once.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import UserError, unknown
from ..protocols import PROTOCOLS, get_protocol
from ..protocols.recipes import Recipe, get_recipe
from ..registry import code_digest, shared_digest
from ..seeds import content_id
from .context import Cell, Context
from .settings import (
    NothingPublished,
    RunSettings,
    apply_file,
    apply_published,
    corruption_ranges,
    expand,
    overrides_of,
    published_or_refuse,
    unknown_key,
    validated,
)
from .space import Space, clip_to_space


def engine_digest(*names: str) -> str:
    """Identity of engine and protocol code: results of other code are not reused, comments and docstrings aside."""
    root = Path(__file__).parents[1]
    paths = [root / "seeds.py", *(root / "engine" / f"{name}.py" for name in names)]
    return content_id([[code_digest(path) for path in paths], shared_digest("bench.protocols")])


ENSEMBLES = ("separated", "concatenated")
"""How the models of one replicate are taken together: mean of their results, and their embeddings side by side."""

Specs = dict[int, dict[str, Any]]
"""Training specifications of one replicate, by the block of classes that validates: one model each."""

TUNING = "tuning"
"""Replicate of every trial; the final seeds are others, so the best trial's luck is not part of the result."""


@dataclass(frozen=True)
class Plan:
    """One (protocol, data set, method) cell: how its units are specified.

    Attributes:
        cell: Folder of the units.
        template: Training specification at the default setting, without fold, replicate and base unit.
        validate: The blocks of classes that validate; a replicate is one model for each.
        space: What is tuned.
        trials: Budget; 0 where nothing is tuned.
        seeds: Replicates 0 .. seeds-1 are trained and tested at the best setting.
        hparams: Label of where the setting comes from.
        sampler: Optuna sampler.
        trial_batch: Trials asked before any is told.
        base: Plan of the base method, for two-stage methods.
        tests: What the tests measure.
        preset: Name of the protocol's preset.
        version: Version of the protocol.
        pinned: What was fixed by hand, as text: runs that differ in it are different rows of every table.
    """

    cell: Cell
    template: dict[str, Any]
    validate: tuple[int, ...]
    space: Space
    trials: int
    seeds: int
    hparams: str
    sampler: str
    trial_batch: int
    base: Plan | None
    tests: dict[str, Any]
    preset: str
    version: int
    pinned: str = ""

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.cell[2]

    def defaults(self) -> dict[str, Any]:
        """The recipe's setting of the tuned parameters: the first trial of every study."""
        groups = {"method": self.template["params"], "optim": self.template["optim"]}
        flat = {f"{group}.{key}": value for group, values in groups.items() for key, value in values.items()}
        return clip_to_space(flat, self.space)

    @property
    def models(self) -> int:
        """Models of one replicate: trainings that a trial, or a seed, takes."""
        return len(self.validate)

    @property
    def trainings(self) -> int:
        """Trainings of the study and of all seeds."""
        return (self.trials + self.seeds) * self.models

    @property
    def tuning_trainings(self) -> int:
        """Trainings that the setting has cost, those of the base included."""
        return (self.trials + (self.base.trials if self.base else 0)) * self.models

    def train_specs(self, setting: dict[str, Any], replicate: str | int, bases: Specs | None) -> Specs:
        """Specifications of the trainings of one replicate.

        Args:
            setting: Tuned values, ``{"method.scale": .., "optim.lr": ..}``.
            replicate: Seed number, or :data:`TUNING`.
            bases: Training specifications of the trained bases, for two-stage methods.
        """
        groups = {"params": dict(self.template["params"]), "optim": dict(self.template["optim"])}
        for name, value in setting.items():
            group, _, key = name.partition(".")
            groups[{"method": "params", "optim": "optim"}[group]][key] = value
        common = {**self.template, **groups, "replicate": replicate}
        return {fold: {**common, "fold": fold, "base": bases and base_reference(bases[fold])} for fold in self.validate}

    def study_spec(self, bases: Specs | None) -> dict[str, Any]:
        """Specification of the study; the number of trials is not part of it, so that a study can be extended."""
        return {
            "kind": "study",
            "template": self.template,
            "validate": self.validate,
            "space": self.space,
            "sampler": self.sampler,
            "trial_batch": self.trial_batch,
            "base": bases and [base_reference(bases[fold]) for fold in self.validate],
        }

    def test_specs(self, trained: Specs) -> list[dict[str, Any]]:
        """Specifications of the tests of one replicate: of its one model, or of its models taken together."""
        common = {
            "kind": "test",
            "engine": engine_digest("evaluate", "subject", "model"),
            "pinned": self.pinned,
            "train": [unit_id(trained[fold]) for fold in self.validate],
            "hparams": self.hparams,
            "trials": self.trials,
            "tuning_trainings": self.tuning_trainings,
            "tests": self.tests,
            "preset": self.preset,
            "protocol": [self.cell[0], self.version],
        }
        return [{**common, "ensemble": kind} for kind in (ENSEMBLES if self.models > 1 else ("",))]


def base_reference(spec: dict[str, Any]) -> dict[str, Any]:
    """What a two-stage unit says of its base: enough to find its weights and to build its objective again."""
    return {
        "method": spec["method"],
        "params": spec["params"],
        "fidelity": spec["fidelity"],
        "unit": unit_id(spec),
    }


def unit_id(spec: dict[str, Any]) -> str:
    """Content-derived id of a specification."""
    return content_id(spec)


def build_plans(settings: RunSettings, context: Context, left_out: list[str] | None = None) -> list[Plan]:
    """Plans of every requested cell, each base before the methods that stand on it.

    Args:
        settings: What was asked for.
        context: Paths and device.
        left_out: If given, receives a line for every cell that has no published setting where others have one.

    Raises:
        UserError: If a name or a value is not known, with what to do.
    """
    from ..methods.scorers.registry import SCORERS

    if settings.protocol not in PROTOCOLS:
        raise unknown("protocol", settings.protocol, PROTOCOLS)
    presets = get_protocol(settings.protocol).PRESETS
    if settings.preset not in presets:
        raise unknown("preset", settings.preset, presets)
    preset = presets[settings.preset]
    if preset.trials == 0 and settings.hparams == "tuned":
        raise UserError(
            f"protocol {settings.protocol!r} holds no class out, so there is nothing to tune on: use --hparams default"
            " or a file"
        )
    if settings.folds is not None:
        if settings.folds > preset.folds or preset.folds == 1:
            raise UserError(
                f"--folds {settings.folds}: preset {settings.preset!r} cuts the development classes into {preset.folds}"
            )
        usual, preset = preset, replace(preset, validate=tuple(range(settings.folds)))
        if preset == usual:
            settings = settings.model_copy(update={"folds": None})  # what the preset does anyway sets no run apart
    scorers = tuple(expand(settings.scorers, list(SCORERS))) if settings.scorers else ()
    for name in scorers:
        if name not in SCORERS:
            raise unknown("scorer", name, SCORERS)
    ranges, unusual = corruption_ranges(settings.corruptions, preset.tests.corruptions)
    preset = replace(preset, tests=replace(preset.tests, corruptions=ranges))
    # From here on only what sets the rows apart is of interest.
    settings = settings.model_copy(update={"scorers": scorers, "corruptions": tuple(unusual)})
    names = expand(settings.methods, [entry.name for entry in context.methods])
    datasets = expand(settings.datasets, [entry.name for entry in context.datasets])
    if settings.fidelity not in ("corrected", "released"):
        raise unknown("fidelity", settings.fidelity, ("corrected", "released"))
    if not any(settings.fidelity in context.methods.get(name).load().fidelities for name in names):
        raise UserError(
            f"--fidelity {settings.fidelity}: {', '.join(names)} {'has' if len(names) == 1 else 'have'} one form only,"
            " the corrected one (`bench show METHOD` says where a public code differs)"
        )
    for name in datasets:
        context.datasets.get(name)
    used: set[str] = set()
    plans: dict[Cell, Plan] = {}
    missing: list[NothingPublished] = []
    for dataset in datasets:
        for name in names:
            try:
                _plan(settings, context, preset, dataset, name, plans, used)
            except NothingPublished as error:
                missing.append(error)
    if missing and (left_out is None or not plans):
        raise missing[0]
    if left_out is not None:
        left_out += [str(error) for error in missing]
    for name in settings.scorers:
        if not any(name in plan.tests["scorers"] for plan in plans.values()):
            raise UserError(f"--scorers {name}: not defined for the distributions of {', '.join(names)}")
    unused = [key for key, _ in settings.sets if key not in used]
    if unused:
        raise unknown_key(unused[0], settings, context, names, datasets)
    return list(plans.values())


def _plan(
    settings: RunSettings,
    context: Context,
    preset: Any,
    dataset: str,
    name: str,
    plans: dict[Cell, Plan],
    used: set[str],
) -> Plan:
    cell = (settings.protocol, dataset, name)
    if cell in plans:
        return plans[cell]
    entry = context.methods.get(name)
    method = entry.load()
    # A method whose public code computes what its paper says has one form, which is both.
    fidelity = settings.fidelity if settings.fidelity in method.fidelities else "corrected"
    recipe = get_recipe(dataset)
    if recipe.view and preset.photographs:
        recipe = replace(recipe, **preset.photographs, end_to_end=replace(recipe.end_to_end, **preset.optim))
    backbone, dim = settings.backbone or recipe.backbone, settings.dim or recipe.dim
    overrides = overrides_of(settings, method, recipe, used)
    recipe_params = {**recipe.methods.get(name, {}), **preset.methods.get(name, {})}
    params = validated(method, {**recipe_params, **overrides["method"]}, name)
    published = None
    if settings.hparams == "published":
        base_name = settings.base or recipe.base
        published = published_or_refuse(method, dataset, base_name, f"{backbone}/{dim}", fidelity, params)
        # Batches are checked against the data, and --set against them.
        recipe = replace(recipe, **published.data)
    base = None
    if method.on_base:
        base_name = settings.base or recipe.base
        if context.methods.get(base_name).load().on_base:
            raise UserError(f"--base {base_name}: {base_name!r} stands on a base itself; name a one-stage method")
        # What is pinned for a method is not pinned for a base that only serves it.
        named = base_name in expand(settings.methods, [entry.name for entry in context.methods])
        shared = tuple(item for item in settings.sets if named or item[0].split(".")[0] in ("data", "augment"))
        base_settings = settings.model_copy(update={"sets": shared})
        base = _plan(base_settings, context, preset, dataset, base_name, plans, used)
    instance = method(method.Params(**params), fidelity)
    frozen = "backbone" not in instance.trained_parts
    view = {**recipe.view, **(preset.view if recipe.view else {}), **overrides["view"]}
    optim_defaults = asdict(recipe.frozen if frozen else recipe.end_to_end)
    optim_space = optim_defaults.pop("search")
    optim = {**optim_defaults, **overrides["optim"]}
    selection = asdict(preset.selection)
    frozen_metric = selection.pop("frozen_metric")
    if instance.means_frozen:
        selection["metric"] = frozen_metric
    partial, files = _check(context, preset, dataset, backbone, optim, recipe, overrides, view)
    trained = {"lr", "weight_decay", "gamma"} | ({"lr_objective"} if not frozen else set())
    space: Space = {}
    for key, field in method.Params.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and "search" in extra and key not in overrides["method"]:
            space[f"method.{key}"] = dict(extra["search"])
    for key, bounds in optim_space.items():
        if key in trained and key not in overrides["optim"]:
            space[f"optim.{key}"] = dict(bounds)
    template: dict[str, Any] = {
        "kind": "train",
        "engine": engine_digest("train", "model", "optim"),
        "protocol": [settings.protocol, _version(settings.protocol)],
        "dataset": dataset,
        "dataset_source": context.datasets.get(dataset).source_hash(),
        "folds": preset.folds,
        "method": name,
        "method_source": entry.source_hash(),
        "fidelity": fidelity,
        "params": params,
        "backbone": backbone,
        "weights": _weights_hash(backbone, context.weights),
        "dim": dim,
        "optim": optim,
        "classes_per_batch": recipe.classes_per_batch,
        "images_per_class": recipe.images_per_class,
        "feature_views": recipe.feature_views,
        "freeze_norm": recipe.freeze_norm,
        "epoch_repeats": recipe.epoch_repeats,
        "view": view,
        "partial": partial,
        "files": files,
        **overrides["data"],
        "augmentation": {**recipe.augmentation, **overrides["augment"]},
        "selection": selection,
    }
    trials, hparams = settings.trials or preset.trials, "tuned"
    if settings.hparams != "tuned":
        trials, hparams, space = 0, settings.hparams, {}
        if published is not None:
            apply_published(template, method, published, overrides)
        elif settings.hparams != "default":
            known = [entry.name for entry in context.methods]
            hparams = apply_file(Path(settings.hparams), name, template, method, known)
    elif not space:
        trials = 1
    plan = Plan(
        cell=cell,
        template=template,
        validate=preset.validate,
        space=space,
        trials=trials,
        seeds=settings.seeds or preset.seeds,
        hparams=hparams,
        sampler=settings.sampler,
        trial_batch=preset.trial_batch,
        base=base,
        tests={
            **asdict(preset.tests),
            "scorers": _fitting(settings.scorers, instance, template["dim"]),
            "soft_labels": context.dataset(dataset, view).soft_labels_sha256,
        },
        preset=settings.preset,
        version=_version(settings.protocol),
        pinned=_pinned(settings, overrides, template, entry.plugin and entry.source_hash()),
    )
    plans[cell] = plan
    return plan


def _fitting(names: tuple[str, ...], method: Any, dim: int) -> list[str]:
    """Those of some scorers that are defined for the distributions of a method."""
    import torch

    from ..methods.scorers.registry import paired_score

    head = method.spread_head(8, dim)
    spread = None if head is None else head(torch.zeros(1, 8))
    distribution = method.distribution(torch.ones(1, dim), spread)
    fitting = []
    for name in names:
        with contextlib.suppress(ValueError):
            paired_score(name, distribution, distribution)
            fitting.append(name)
    return fitting


def _pinned(
    settings: RunSettings, overrides: dict[str, dict[str, Any]], template: dict[str, Any], plugin: str | bool
) -> str:
    """What sets this run apart from one with the same method, data set and budget."""
    named = {"view": "data"}
    parts = [] if settings.folds is None else [f"folds={settings.folds}"]
    parts += [
        f"{named.get(group, group)}.{key}={value}"
        for group, values in overrides.items()
        for key, value in sorted(values.items())
    ]
    if settings.corruptions:
        parts.append(f"corruptions={','.join(settings.corruptions)}")
    if settings.sampler != "gp" and settings.hparams == "tuned":
        parts.append(f"sampler={settings.sampler}")
    if template["partial"]:
        parts.append(f"partial release: {template['partial']}")
    if template["weights"]:
        parts.append(f"weights={template['weights'][:8]}")
    if plugin:
        parts.append(f"plugin={str(plugin)[:8]}")
    return "; ".join(parts)


def _check(
    context: Context,
    preset: Any,
    dataset: str,
    backbone: str,
    optim: dict[str, Any],
    recipe: Recipe,
    overrides: dict[str, dict[str, Any]],
    view: dict[str, Any],
) -> tuple[str, str]:
    """Find what would stop a training before any is started.

    Returns:
        What the data set lacks, if that is allowed, and the identity of its files.
    """
    from ..methods.backbones.registry import FREEZE_NORM, check_backbone
    from .optim import check_names

    cls = context.datasets.get(dataset).load()
    try:
        check_backbone(backbone)
    except ValueError as error:
        raise UserError(f"--backbone: {error}") from None
    check_names(optim)
    freeze = overrides["data"].get("freeze_norm", recipe.freeze_norm)
    if freeze not in FREEZE_NORM:
        raise unknown("value of data.freeze_norm:", freeze, FREEZE_NORM)
    try:
        cls.augmentation_type(**{**recipe.augmentation, **overrides["augment"]})
    except ValueError as error:
        raise UserError(f"--set augment.*: {error}") from None
    try:
        data = context.dataset(dataset, view)
    except ValueError as error:
        raise UserError(f"--set data.*: {error}") from None
    try:
        classes, files = _split_identity(data, preset.validate, preset.folds, bool(view))
    except ValueError as error:
        raise UserError(f"data set {dataset!r}: {error}") from None
    wanted = overrides["data"].get("classes_per_batch", recipe.classes_per_batch)
    if wanted > classes:
        raise UserError(
            f"batches of {wanted} classes need more than the {classes} training classes of {dataset!r};"
            f" use --set data.classes_per_batch={classes} or less"
        )
    if view:
        _try_backbone(backbone, view["image_size"])
        return data.partial, files
    return "", ""


@cache
def _split_identity(data: Any, validate: tuple[int, ...], folds: int, on_disk: bool) -> tuple[int, str]:
    """Training classes, and for image files the identity of all of them: computed once for all methods."""
    splits = [data.train_val(fold, folds) for fold in validate]
    parts = (splits[0].train, splits[0].val, data.test()) if on_disk else ()
    files = content_id([part.manifest_sha256() for part in parts]) if parts else ""
    return min(split.train.num_classes for split in splits), files


@cache
def _try_backbone(name: str, side: int) -> None:
    """One image through a backbone at random weights: some networks read one size only."""
    import torch

    from ..methods.backbones.registry import build_backbone

    if name == "convnet":
        return
    try:
        with torch.no_grad():
            shape = tuple(build_backbone(name, 3).eval()(torch.rand(1, 3, side, side)).shape)
    except Exception as error:  # whatever a network of timm raises on an image it was not made for
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"--backbone {name} cannot read images of {side} x {side} ({first}); try another --set data.image_size"
        ) from None
    if len(shape) != 2:
        raise UserError(f"--backbone {name} gives features of shape {list(shape)}, not one vector per image")


def _version(protocol: str) -> int:
    version: int = get_protocol(protocol).VERSION
    return version


def _weights_hash(backbone: str, asked: str | None) -> str | None:
    """Content of the file that the backbone starts from; None for random weights."""
    from ..methods.backbones.registry import find_weights

    try:
        path = find_weights(backbone, asked)
        return None if path is None else _file_hash(path)
    except ValueError as error:
        raise UserError(str(error)) from None


@cache
def _file_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"--weights {path}: {error.strerror}") from error
