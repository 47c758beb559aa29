"""Planning: from a request to plans, each base before the methods that use it.

A request is resolved once. For each cell, every source of settings gives one layer, the layers are merged once, the
result is checked once, and a plan is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import UnknownName, UserError
from ..site import Site
from ..store.specs import AXES
from .cell import CellSetting, cell_setting
from .experiment import Experiment, expand, split_names
from .pins import by_key
from .plan import Plan, PlanKey, make_plan
from .published import NothingPublished
from .request import Place, Resolved, resolve
from .sources import known_keys
from .variance import SOURCES, check_sources, with_frozen


@dataclass(frozen=True)
class Plans:
    """Plans of a request, with what the user should be told about them.

    Attributes:
        plans: The plans, each once, a base before the methods that are built on it.
        left_out: A line for every method and data set that is left out, since it has no published setting while others
            have one, or since a single seed makes no ensemble.
        differences: A line for every run at a published setting that differs from what its paper did.
        adapted: A line for every data set that is too small for the default batches.
        floors: A line for every method that leaves a network as it starts, if that is at random weights.
    """

    plans: tuple[Plan, ...]
    left_out: tuple[str, ...]
    differences: tuple[str, ...] = ()
    adapted: tuple[str, ...] = ()
    floors: tuple[str, ...] = ()


def build_plans(request: Experiment, site: Site) -> Plans:
    """Plan every requested cell (protocol, data set, method); with a sweep, at each of its values.

    Args:
        request: The options of ``bench run`` that decide about results.
        site: Paths, plug-ins and device.

    Raises:
        UserError: If a name or a value is not known, with what to do.
    """
    # What does not have a swept value is the same plan at all of them.
    plans: dict[PlanKey, Plan] = {}
    left_out: dict[str, None] = {}
    for run in request.runs():
        built = _build(run, site)
        for plan in built.plans:
            # A base that was asked for by name may serve as well.
            if plan.key not in plans or plan.requested:
                plans[plan.key] = plan
        left_out |= dict.fromkeys(built.left_out)
    every = tuple(plans.values())
    if request.vary:
        sources = expand(request.vary, list(SOURCES if any(plan.trials for plan in every) else AXES))
        check_sources(sources, every[0].seeds, any(plan.trials for plan in every))
        every = with_frozen(every, sources)
    lines = (
        f"{plan.cell.method} on {plan.cell.dataset}{f', stage 1 of {plan.stage}' if plan.stage else ''} is not what"
        f" its paper did: {', '.join(plan.differences)}"
        for plan in plans.values()
        if plan.differences
    )
    adapted = dict.fromkeys(plan.adapted for plan in plans.values() if plan.adapted)
    floors = dict.fromkeys(line for plan in plans.values() if (line := _said_of_random_weights(plan, site)))
    return Plans(every, tuple(left_out), tuple(dict.fromkeys(lines)), tuple(adapted), tuple(floors))


def _said_of_random_weights(plan: Plan, site: Site) -> str:
    """Line about a method that leaves a network as it starts, if that is at random weights; else empty."""
    spec = plan.template
    if spec.weights is not None or not site.methods.method(spec.method).fitted_at_start():
        return ""
    return (
        f"{spec.method} on {spec.dataset}: {spec.backbone} starts at random weights, so this is a random network: a"
        " floor, not what a pretrained network can do"
    )


def _build(request: Experiment, site: Site) -> Plans:
    experiment = resolve(request, site)
    settings, missing = _settings(experiment, site)
    if not settings:
        raise next(iter(missing.values()))
    plans: dict[Place, Plan] = {}
    for asked in experiment.requests:
        if asked.place in settings:
            base = plans[asked.base] if asked.base else None
            plans[asked.place] = make_plan(experiment, settings[asked.place], base, site)
    _check_bases_are_named(experiment, settings)
    _check_all_used(experiment, split_names(request.scorers), site, plans)
    named = [error for place, error in missing.items() if place.cell.method in experiment.methods]
    return Plans(tuple(plans.values()), tuple(dict.fromkeys([*experiment.left_out, *map(str, named)])))


def _settings(experiment: Resolved, site: Site) -> tuple[dict[Place, CellSetting], dict[Place, NothingPublished]]:
    """Settings of all cells that are planned, and why others are not."""
    settings: dict[Place, CellSetting] = {}
    missing: dict[Place, NothingPublished] = {}
    # A base that only serves is looked at after the methods it serves: without them it is not needed.
    for asked in sorted(experiment.requests, key=lambda request: not request.requested):
        if asked.requested or any(setting.request.base == asked.place for setting in settings.values()):
            try:
                settings[asked.place] = cell_setting(experiment, asked, site)
            except NothingPublished as error:
                missing[asked.place] = error
    for place, setting in list(settings.items()):
        if setting.request.base in missing:
            missing[place] = missing[setting.request.base]
            del settings[place]
        elif setting.method.ensemble and setting.request.base:
            # An ensemble is at the setting of its models: nothing else was pinned, selected or tuned.
            of = settings[setting.request.base]
            settings[place] = replace(setting, pinned=of.pinned, select_by=of.select_by, tune_for=of.tune_for)
    return settings, missing


def _check_bases_are_named(experiment: Resolved, settings: dict[Place, CellSetting]) -> None:
    """Refuse options about trainings if all that was asked for are ensembles: a base that only serves ignores them."""
    named = [setting for place, setting in settings.items() if place.cell.method in experiment.methods]
    if not named or not all(setting.method.ensemble for setting in named):
        return
    base = next(setting.request.base.cell.method for setting in named if setting.request.base)
    used = {key for setting in settings.values() for key in by_key(setting.pinned)}
    ignored = [f"--set {pin.key}" for pin in experiment.pins if pin.key not in used]
    ignored += [f"--select-by {experiment.select_by}"] if experiment.select_by else []
    ignored += [f"--tune-for {experiment.tune_for}"] if experiment.tune_for != "retrieval" else []
    if ignored:
        methods = ",".join([base, *experiment.methods])
        raise UserError(f"{ignored[0]}: an ensemble trains nothing; ask for its base, too: --method {methods}")


def _check_all_used(experiment: Resolved, scorers: tuple[str, ...], site: Site, plans: dict[Place, Plan]) -> None:
    """Refuse scorers and pinned values that were typed and that no plan has; ``all`` is those that are defined."""
    for name in scorers:
        if name != "all" and not any(name in plan.testing.scorers for plan in plans.values()):
            raise UserError(f"--scorers {name}: not defined for the distributions of {', '.join(experiment.methods)}")
    used = {key for plan in plans.values() for key in plan.pins_used}
    unused = [pin.key for pin in experiment.pins if pin.key not in used]
    if unused:
        methods = [site.methods.method(name) for name in experiment.methods]
        recipes = [site.recipe(name) for name in experiment.datasets]
        known = known_keys(methods, recipes)
        if unused[0] in known:
            on_base = any(method.on_base for method in methods)
            what, name = ("base", "BASE") if on_base else ("method that is", "METHOD")
            raise UserError(
                f"--set {unused[0]}: nothing here is trained by steps; ask for a {what}, too:"
                f" --method {name},{','.join(experiment.methods)}"
            )
        raise UnknownName("--set key", unused[0], known)
