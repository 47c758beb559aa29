"""Planning: from a request to plans, each base before the methods that stand on it.

Each source of settings gives one layer; `merge` makes one setting of them; a `TrainSpec` and a `Plan` are made of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..code_id import code_id
from ..datasets.corruptions.registry import corruption_module
from ..errors import UserError, unknown
from ..methods.backbones.registry import backbone_module
from ..methods.scorers.registry import scorer_module
from ..protocols._base import Tests
from ..protocols.known_tests import modules_of
from ..protocols.recipes import get_recipe
from ..protocols.recipes._base import Optim, Range, Recipe, Stage
from ..site import Site
from ..specs import TUNING, Batches, Cell, Parameters, StageSelection, TrainSpec
from .checks import Data, check_data, check_setting, checked_params, fitting_scorers, weights_hash
from .plan import Plan, TestPlan
from .published import NothingPublished, find_published
from .request import Experiment, RunRequest, resolve
from .setting import Setting, merge
from .sources import from_pins, from_preset, from_recipe, known_keys, pinned_text, search_ranges

if TYPE_CHECKING:
    from ..methods._base import Method


@dataclass(frozen=True)
class Plans:
    """Plans of a request, and a line for every cell that has no published setting while others have one."""

    plans: tuple[Plan, ...]
    left_out: tuple[str, ...]


def build_plans(request: RunRequest, site: Site) -> Plans:
    """Plan every requested cell.

    Raises:
        UserError: If a name or a value is not known, with what to do.
    """
    experiment = resolve(request, site)
    plans: dict[Cell, Plan] = {}
    missing: list[NothingPublished] = []
    for dataset in experiment.datasets:
        for method in experiment.methods:
            try:
                for plan in _with_base(experiment, site, dataset, method, plans):
                    plans[plan.cell] = plan
            except NothingPublished as error:
                missing.append(error)
    if missing and not plans:
        raise missing[0]
    _check_all_used(experiment, site, plans)
    return Plans(tuple(plans.values()), tuple(str(error) for error in missing))


def _with_base(experiment: Experiment, site: Site, dataset: str, name: str, plans: dict[Cell, Plan]) -> list[Plan]:
    """Plan of a cell, after that of its base; what is planned already is taken as it is."""
    planned = plans.get(Cell(experiment.protocol.name, dataset, name))
    if planned is not None:
        return [planned]
    draft = _draft(experiment, site, dataset, name)
    if not draft.method.on_base:
        return [_finished(draft, None, experiment, site)]
    if site.methods.method(draft.base).on_base:
        raise UserError(f"--base {draft.base}: {draft.base!r} needs a base itself; name a one-stage method")
    base = plans.get(Cell(experiment.protocol.name, dataset, draft.base)) or _finished(
        _draft(experiment, site, dataset, draft.base), None, experiment, site
    )
    return [base, _finished(draft, base, experiment, site)]


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """A cell whose setting is known, before its base is planned."""

    cell: Cell
    method: type[Method]
    fidelity: str
    params: Parameters
    setting: Setting
    space: dict[str, Range]
    pinned: Setting
    pins_used: frozenset[str]
    data: Data
    base: str


def _draft(experiment: Experiment, site: Site, dataset: str, name: str) -> _Draft:
    method, data_type = site.methods.method(name), site.datasets.dataset(dataset)
    # A method whose public code computes what its paper says has one form, which is both.
    fidelity = experiment.fidelity if experiment.fidelity in method.fidelities else "corrected"
    preset, recipe = experiment.preset, get_recipe(data_type.recipe)
    # What is pinned for a method is not pinned for a base that only serves it.
    pins = tuple(pin for pin in experiment.pins if name in experiment.methods or pin.shared)
    pinned, used = from_pins(pins, method, recipe)
    params = checked_params(method, {**recipe.methods.get(name, {}), **preset.methods.get(name, {}), **pinned.params})
    stage = _stage(recipe, method(method.Params(**params), fidelity))
    base = experiment.base or recipe.base
    asked = {"backbone": experiment.backbone, "dim": experiment.dim}
    usual = [
        from_recipe(recipe, name, stage),
        from_preset(preset, recipe, name, stage),
        Setting(network={key: value for key, value in asked.items() if value is not None}),
    ]
    layers = [*usual, *_from_hparams(experiment, method, dataset, base, fidelity, params, merge(*usual)), pinned]
    setting = merge(*layers)
    check_setting(setting, data_type)
    return _Draft(
        cell=Cell(experiment.protocol.name, dataset, name),
        method=method,
        fidelity=fidelity,
        params=checked_params(method, setting.params),
        setting=setting,
        space=search_ranges(preset, recipe, method, stage, pinned) if experiment.hparams == "tuned" else {},
        pinned=pinned,
        pins_used=used,
        data=check_data(dataset, setting, preset, site),
        base=base,
    )


def _stage(recipe: Recipe, method: Method) -> Stage:
    return recipe.end_to_end if "backbone" in method.trained_parts else recipe.frozen


def _from_hparams(
    experiment: Experiment,
    method: type[Method],
    dataset: str,
    base: str,
    fidelity: str,
    params: Parameters,
    usual: Setting,
) -> list[Setting]:
    """The layer that ``--hparams`` names, if it names one."""
    if experiment.file is not None:
        return [experiment.file.layer(method, usual)]
    if experiment.hparams != "published":
        return []
    network = f"{usual.network['backbone']}/{usual.network['dim']}"
    return [find_published(method, dataset, base, network, fidelity, params).layer]


def _finished(draft: _Draft, base: Plan | None, experiment: Experiment, site: Site) -> Plan:
    setting, preset = draft.setting, experiment.preset
    instance = draft.method(draft.method.Params(**draft.params), draft.fidelity)
    entry = site.methods.get(draft.cell.method)
    chosen = preset.selection
    template = TrainSpec(
        code=_training_code(draft, site),
        protocol=draft.cell.protocol,
        version=experiment.protocol.version,
        dataset=draft.cell.dataset,
        folds=preset.folds,
        fold=preset.validate[0],
        replicate=TUNING,
        method=draft.cell.method,
        fidelity=draft.fidelity,
        params=draft.params,
        backbone=setting.network["backbone"],
        weights=weights_hash(setting.network["backbone"], site.weights),
        dim=setting.network["dim"],
        optim=Optim(**setting.optim),
        batches=Batches(**setting.batches),
        view=dict(setting.view),
        augmentation=dict(setting.augmentation),
        selection=StageSelection(
            metric=chosen.frozen_metric if instance.means_frozen else chosen.metric,
            patience=chosen.patience,
            min_improvement=chosen.min_improvement,
        ),
        partial=draft.data.partial,
        files=draft.data.files,
        base=None,
    )
    tuned = experiment.hparams == "tuned"
    scorers = fitting_scorers(experiment.scorers, instance, template.dim)
    return Plan(
        template=template,
        validate_folds=preset.validate,
        space=draft.space,
        # With nothing to tune, one trial is the study.
        trials=1 if tuned and not draft.space else experiment.trials,
        seeds=experiment.seeds,
        hparams=experiment.hparams,
        sampler=experiment.sampler,
        trial_batch=preset.trial_batch,
        base=base,
        testing=TestPlan(
            code=_testing_code(instance, scorers, preset.tests),
            tests=preset.tests,
            scorers=scorers,
            soft_labels=draft.data.soft_labels,
        ),
        preset=experiment.preset_name,
        pinned=_pinned(experiment, draft, template, code_id(entry.code)[:8] if entry.plugin else ""),
        pins_used=draft.pins_used,
        requested=draft.cell.method in experiment.methods,
    )


def _training_code(draft: _Draft, site: Site) -> str:
    """Id of what a training runs: the engine's loop and the entries of the registries that it uses."""
    return code_id(
        "bench.engine.training",
        site.methods.get(draft.cell.method).code,
        site.datasets.get(draft.cell.dataset).code,
        backbone_module(draft.setting.network["backbone"]),
        scorer_module(draft.method.scorer),
    )


def _testing_code(method: Method, scorers: tuple[str, ...], tests: Tests) -> str:
    """Id of what a test runs; the ids of the trained models cover the rest."""
    ranked = {method.scorer, "cosine", *scorers} | ({"l2"} if method.released else set())
    return code_id(
        "bench.engine.testing",
        *modules_of(tests.groups),
        *map(scorer_module, sorted(ranked)),
        *map(corruption_module, sorted(tests.corruptions)),
    )


def _pinned(experiment: Experiment, draft: _Draft, template: TrainSpec, plugin: str) -> str:
    """What sets this run apart from one with the same method, data set and budget."""
    parts = [] if experiment.unusual_folds is None else [f"folds={experiment.unusual_folds}"]
    parts += pinned_text(draft.pinned)
    if experiment.unusual_corruptions:
        parts.append(f"corruptions={','.join(experiment.unusual_corruptions)}")
    if experiment.sampler != "gp" and experiment.hparams == "tuned":
        parts.append(f"sampler={experiment.sampler}")
    if template.partial:
        parts.append(f"partial release: {template.partial}")
    if template.weights:
        parts.append(f"weights={template.weights[:8]}")
    if plugin:
        parts.append(f"plugin={plugin}")
    return "; ".join(parts)


def _check_all_used(experiment: Experiment, site: Site, plans: dict[Cell, Plan]) -> None:
    """Refuse scorers and pinned values that no plan has."""
    for name in experiment.scorers:
        if not any(name in plan.testing.scorers for plan in plans.values()):
            raise UserError(f"--scorers {name}: not defined for the distributions of {', '.join(experiment.methods)}")
    used = {key for plan in plans.values() for key in plan.pins_used}
    unused = [pin.key for pin in experiment.pins if pin.key not in used]
    if unused:
        methods = [site.methods.method(name) for name in experiment.methods]
        recipes = [get_recipe(site.datasets.dataset(name).recipe) for name in experiment.datasets]
        raise unknown("--set key", unused[0], known_keys(methods, recipes))
