"""Planning: from an experiment to a setting for each method and data set, and from settings to plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from ..datasets.corruptions.registry import CORRUPTIONS
from ..errors import UnknownName, UserError
from ..methods.scorers.registry import SCORERS
from ..names import expand, split_names
from ..protocols._base import PROTOCOLS, Preset, Protocol, get_protocol
from ..site import Site
from ..store.specs import AXES
from .corruptions import corruption_ranges
from .experiment import Experiment
from .files import read_settings_file
from .plan import Plan, PlanKey, make_plan
from .published import NothingPublished
from .setting import FIDELITIES, Setting, known_keys, resolve_fidelity
from .settle import Asked, settle
from .variance import SOURCES, check_sources, with_frozen


@dataclass(frozen=True)
class Plans:
    """Plans of an experiment, with what the user should be told about them.

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


def build_plans(experiment: Experiment, site: Site) -> Plans:
    """Plan every method and data set of an experiment; with a sweep, at each of its values.

    Raises:
        UserError: If a name or a value is not known, with what to do.
    """
    # What does not have a swept value is the same plan at all of them.
    plans: dict[PlanKey, Plan] = {}
    left_out: dict[str, None] = {}
    floors: dict[str, None] = {}
    for run in _runs(experiment):
        settings, reasons = _settings(run, site)
        left_out |= dict.fromkeys(reasons)
        floors |= dict.fromkeys(setting.floor for setting in settings if setting.floor)
        made: dict[int, Plan] = {}
        for setting in settings:
            base = None if setting.base is None else made[id(setting.base)]
            plan = made[id(setting)] = make_plan(setting, base, site)
            # A base that was asked for by name may serve as well.
            if plan.key not in plans or plan.requested:
                plans[plan.key] = plan
    every = tuple(plans.values())
    if experiment.vary:
        sources = expand(experiment.vary, list(SOURCES if any(plan.trials for plan in every) else AXES))
        check_sources(sources, every[0].seeds, any(plan.trials for plan in every))
        every = with_frozen(every, sources)
    lines = (
        f"{plan.cell.method} on {plan.cell.dataset}{f', stage 1 of {plan.stage}' if plan.stage else ''} is not what"
        f" its paper did: {', '.join(plan.differences)}"
        for plan in plans.values()
        if plan.differences
    )
    adapted = dict.fromkeys(plan.adapted for plan in plans.values() if plan.adapted)
    return Plans(every, tuple(left_out), tuple(dict.fromkeys(lines)), tuple(adapted), tuple(floors))


def _runs(experiment: Experiment) -> Iterator[Experiment]:
    """One experiment for each combination of swept values, as if each value were fixed by the user."""
    for chosen in product(*experiment.sweep.values()):
        fixed = {**experiment.set, **dict(zip(experiment.sweep, chosen, strict=True))}
        yield experiment.model_copy(update={"set": fixed, "sweep": {}})


def _settings(experiment: Experiment, site: Site) -> tuple[list[Setting], list[str]]:
    """Setting of every method and data set, each base before the methods on it, and lines about what is left out."""
    groups = site.plugin_tests  # imports the plug-ins, whose names are then known
    _check_names(experiment)
    protocol = get_protocol(experiment.protocol)
    preset = _preset(experiment, protocol)
    methods, left_out = _without_lone(experiment, preset.seeds, site)
    datasets = expand(experiment.datasets, site.datasets.names)
    _check_fidelity(experiment, methods, site)
    ranges, corruptions = corruption_ranges(experiment.corruptions, preset.tests.corruptions)
    file = None
    if experiment.hparams not in ("tuned", "default", "published"):
        file = read_settings_file(experiment.hparams, site.methods.names)
    tests = replace(preset.tests, groups=tuple(dict.fromkeys([*preset.tests.groups, *groups])), corruptions=ranges)
    asked = Asked(
        experiment=experiment,
        site=site,
        protocol=protocol,
        preset=replace(preset, tests=tests),
        corruptions=tuple(corruptions),
        methods=methods,
        file=file,
    )
    settings: dict[tuple[str, str, str], Setting] = {}
    missing: list[NothingPublished] = []
    for dataset in datasets:
        for name in methods:
            try:
                settings |= settle(asked, dataset, name, settings)
            except NothingPublished as error:
                missing.append(error)
    if not settings:
        raise missing[0]
    found = [*settings.values()]
    _check_bases_are_named(asked, found)
    _check_all_used(asked, found, datasets)
    return found, [*left_out, *map(str, missing)]


# What is refused


def _check_names(experiment: Experiment) -> None:
    """Refuse a name of a protocol, preset, fidelity, scorer or corruption that does not exist.

    Raises:
        UnknownName: With the nearest one that does.
    """
    presets = get_protocol(experiment.protocol).presets if experiment.protocol in PROTOCOLS else {}
    corruptions = [text.partition(":")[0] for text in split_names(experiment.corruptions)]
    asked = experiment.tuning.select_by
    for what, names, known in (
        ("protocol", (experiment.protocol,), PROTOCOLS),
        ("preset", (experiment.preset,), presets),
        ("scorer", split_names(experiment.scorers), [*SCORERS, "all"]),
        ("scorer", () if asked is None else (asked,), SCORERS),
        ("corruption", corruptions, [*CORRUPTIONS, "all"]),
        ("fidelity", (experiment.fidelity,), FIDELITIES),
    ):
        for name in names:
            if name not in known:
                raise UnknownName(what, name, [other for other in known if other != "all"])


def _preset(experiment: Experiment, protocol: Protocol) -> Preset:
    """The preset with the seeds, trials and folds that were asked for.

    Raises:
        UserError: If something is asked for that the preset does not do.
    """
    usual, tuning = protocol.presets[experiment.preset], experiment.tuning
    tunes, named = experiment.hparams == "tuned", f"protocol {experiment.protocol!r}"
    if tuning.tune_for != "retrieval":
        reason = ""
        if usual.trials == 0:
            reason = f"{named} holds out no classes and tunes nothing"
        elif not tunes:
            reason = f"--hparams {experiment.hparams} tunes nothing; leave out one of the two"
        elif usual.selection.reranked:
            # Its trials are chosen as in public code, by a re-ranked MAP@R: there is no such confidence.
            reason = f"preset {experiment.preset!r} selects everything by MAP@R, as the public code does"
            reason += "; use another preset"
        if reason:
            raise UserError(f"--tune-for {tuning.tune_for}: {reason}")
    if usual.trials == 0 and tunes:
        raise UserError(
            f"{named} holds out no classes, so there is nothing to tune on: use --hparams default or a file"
        )
    if tuning.select_by is not None and usual.selection.metric == "last":
        raise UserError(f"--select-by {tuning.select_by}: {named} keeps the last epoch and selects nothing")
    if experiment.frozen and experiment.hparams == "published":
        raise UserError(
            "--frozen: published settings are those of trained backbones; use --hparams tuned, default or a file"
        )
    folds, validate = tuning.folds, usual.validate
    if folds is not None:
        if folds > usual.folds or usual.folds == 1:
            said = f"preset {experiment.preset!r} cuts the development classes into {usual.folds}"
            raise UserError(f"--folds {folds}: {said}")
        validate = tuple(range(folds))
    return replace(
        usual,
        validate=validate,
        seeds=experiment.seeds or usual.seeds,
        trials=(experiment.trials or usual.trials) if tunes else 0,
    )


def _without_lone(experiment: Experiment, seeds: int, site: Site) -> tuple[tuple[str, ...], list[str]]:
    """Methods without those that a single seed cannot make, and a line about each of these.

    Raises:
        UserError: If one was asked for by name, not by ``all``.
    """
    methods = expand(experiment.methods, site.methods.names)
    lone = [name for name in methods if seeds < site.methods.method(name).least_seeds]
    lines = [f"{name}: an ensemble of the models of all seeds; use --seeds 2 or more" for name in lone]
    if lone and "all" not in split_names(experiment.methods):
        raise UserError(f"--seeds 1: {lines[0]}")
    return tuple(name for name in methods if name not in lone), lines


def _check_fidelity(experiment: Experiment, methods: tuple[str, ...], site: Site) -> None:
    fidelity = experiment.fidelity
    forms = {resolve_fidelity(site.methods.method(name), fidelity, experiment.protocol) for name in methods}
    if fidelity != "corrected" and forms == {"corrected"}:
        raise UserError(
            f"--fidelity {fidelity}: {', '.join(methods)} {'has' if len(methods) == 1 else 'have'} one form only,"
            " the corrected one (`bench show METHOD` says where a public code differs)"
        )


def _check_bases_are_named(asked: Asked, settings: list[Setting]) -> None:
    """Refuse options about trainings if all that was asked for are ensembles: a base that only serves ignores them."""
    named = [setting for setting in settings if setting.cell.method in asked.methods]
    if not named or any(setting.method.trains for setting in named):
        return
    tuning, base = asked.experiment.tuning, next(setting.base.cell.method for setting in named if setting.base)
    ignored = [f"--set {key}" for key in _unused(asked, settings)]
    ignored += [f"--select-by {tuning.select_by}"] if tuning.select_by else []
    ignored += [f"--tune-for {tuning.tune_for}"] if tuning.tune_for != "retrieval" else []
    if ignored:
        methods = ",".join([base, *asked.methods])
        raise UserError(f"{ignored[0]}: an ensemble trains nothing; ask for its base, too: --method {methods}")


def _unused(asked: Asked, settings: list[Setting]) -> Iterator[str]:
    """Keys that the user fixed and that nothing has."""
    return (key for key in asked.experiment.set if not any(key in setting.fixed for setting in settings))


def _check_all_used(asked: Asked, settings: list[Setting], datasets: tuple[str, ...]) -> None:
    """Refuse scorers and fixed values that were typed and that nothing has; ``all`` is those that are defined."""
    site = asked.site
    for name in split_names(asked.experiment.scorers):
        if name != "all" and not any(name in setting.scorers for setting in settings):
            raise UserError(f"--scorers {name}: not defined for the distributions of {', '.join(asked.methods)}")
    for key in _unused(asked, settings):
        methods = [site.methods.method(name) for name in asked.methods]
        known = known_keys(methods, [site.recipe(name) for name in datasets])
        if key not in known:
            raise UnknownName("--set key", key, known)
        what, name = ("base", "BASE") if any(each.on_base for each in methods) else ("method that is", "METHOD")
        raise UserError(
            f"--set {key}: nothing here is trained by steps; ask for a {what}, too:"
            f" --method {name},{','.join(asked.methods)}"
        )
