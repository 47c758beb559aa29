"""Planning: from an experiment to a setting for each method and data set, and from settings to plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..datasets.corruptions.registry import CORRUPTIONS
from ..errors import UnknownName, UserError
from ..methods.scorers.registry import SCORERS
from ..protocols import PROTOCOLS, get_protocol
from ..protocols._base import Preset, Protocol
from ..protocols.recipes._base import Recipe, Stage
from ..site import Site
from ..store.pinned import place
from ..store.specs import AXES, Cell
from .checks import checked
from .corruptions import corruption_ranges
from .experiment import Experiment, expand, split_names
from .files import SettingsFile, read_settings_file
from .plan import Plan, PlanKey, make_plan
from .published import NothingPublished, Published, find_published, stage_one
from .setting import (
    FIDELITIES,
    Setting,
    Values,
    checked_params,
    from_fidelity,
    from_file,
    from_preset,
    from_recipe,
    from_user,
    known_keys,
    layer,
    part,
    resolve_fidelity,
    search_ranges,
    usual_params,
)
from .variance import SOURCES, check_sources, with_frozen

if TYPE_CHECKING:
    from ..methods._base import Method


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
    for run in experiment.runs():
        settings, reasons = _settings(run, site)
        left_out |= dict.fromkeys(reasons)
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
    floors = dict.fromkeys(line for plan in plans.values() if (line := _said_of_random_weights(plan, site)))
    return Plans(every, tuple(left_out), tuple(dict.fromkeys(lines)), tuple(adapted), tuple(floors))


def _said_of_random_weights(plan: Plan, site: Site) -> str:
    """Line about a method that leaves a network as it starts, if that is at random weights; else empty."""
    spec = plan.template
    method = site.methods.method(spec.method)
    if spec.weights is not None or method.by_steps or method.on_base:
        return ""
    return (
        f"{spec.method} on {spec.dataset}: {spec.backbone} starts at random weights, so this is a random network: a"
        " floor, not what a pretrained network can do"
    )


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """An experiment after its names were looked up and its file of settings was read."""

    experiment: Experiment
    site: Site
    protocol: Protocol
    preset: Preset
    corruptions: tuple[str, ...]
    methods: tuple[str, ...]
    file: SettingsFile | None


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
    asked = _Asked(
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
                settings |= _of_method(asked, dataset, name, settings)
            except NothingPublished as error:
                missing.append(error)
    if not settings:
        raise missing[0]
    found = [*settings.values()]
    _check_bases_are_named(asked, found)
    _check_all_used(asked, found, datasets)
    return found, [*left_out, *map(str, missing)]


def _of_method(
    asked: _Asked, dataset: str, name: str, known: dict[tuple[str, str, str], Setting]
) -> dict[tuple[str, str, str], Setting]:
    """Settings of a method and of its base, by data set, method, and the head that a published first stage serves."""
    experiment, methods = asked.experiment, asked.site.methods
    method, base_name = methods.method(name), experiment.base or asked.site.recipe(dataset).base
    key = (dataset, name, "")
    if not method.on_base:
        return {} if key in known else {key: _setting(asked, dataset, name)}
    _check_base(method, methods.method(base_name))
    setting = _setting(asked, dataset, name, base=base_name)
    # A published setting of a head has a first stage of its own: the base is there once more, for it alone.
    at = (dataset, base_name, name if experiment.hparams == "published" else "")
    base = known.get(at) or _setting(asked, dataset, base_name, head=at[2])
    if not method.trains:
        # An ensemble is at the setting of its models: nothing else was fixed, selected or tuned.
        setting = replace(setting, fixed=base.fixed, select_by=base.select_by, tune_for=base.tune_for)
    return {at: base, key: replace(setting, base=base)}


def _setting(asked: _Asked, dataset: str, name: str, head: str = "", base: str = "") -> Setting:
    """Setting of a method: layers of values from every source, merged once and checked once.

    Args:
        asked: What is asked for.
        dataset: Name of the data set.
        name: Name of the method.
        head: Two-stage method whose published first stage this is; empty if it serves several, or is no base.
        base: Name of the method's base, if it needs one.

    Raises:
        NothingPublished: If published settings are asked for and there is none.
        UserError: If a value does not fit, or the data cannot be used.
    """
    experiment, preset, site = asked.experiment, asked.preset, asked.site
    recipe, method = site.recipe(dataset), site.methods.method(name)
    named = name in asked.methods
    # What is fixed for a method is not fixed for a base that only serves it, unless it concerns the data.
    texts = {k: v for k, v in experiment.set.items() if named or k.split(".")[0] in ("data", "augment")}
    fixed = from_user(texts, method, recipe)
    form = fixed.get("method.form", resolve_fidelity(method, experiment.fidelity, experiment.protocol))
    before, stage = _usual(asked, recipe, method, form, fixed)
    published = None
    if experiment.hparams == "published":
        published = _published(asked, dataset, name, {**before, **fixed}, head, base)
    unfixed = {**before, **(published.layer if published else {})}
    if asked.file is not None:
        unfixed |= from_file(asked.file.of(name), asked.file.path, method, unfixed)
    values = {**unfixed, **fixed}
    values |= layer(method=checked_params(method, part(values, "method")))
    built = method(method.Params(**part(values, "method")))
    space = {}
    if experiment.hparams == "tuned":
        below = site.methods.method(base)() if base else None
        space = search_ranges(preset, recipe, built, stage, values, below, experiment.frozen)
    requested = named and not head
    setting = checked(
        Setting(
            experiment=experiment,
            protocol=asked.protocol,
            preset=preset,
            cell=Cell(experiment.protocol, dataset, name),
            requested=requested,
            method=built,
            values=values,
            fixed=fixed,
            hparams=asked.file.label if asked.file else experiment.hparams,
            space={key: value for key, value in space.items() if key not in fixed},
            select_by=experiment.tuning.select_by if requested else None,
            tune_for=experiment.tuning.tune_for if requested else "retrieval",
            corruptions=asked.corruptions,
            scorers=expand(experiment.scorers, list(SCORERS)) if experiment.scorers else (),
        ),
        site,
    )
    if published is None:
        return setting
    try:
        alone = _published(asked, dataset, name, {**before, **fixed}) if head else None
    except NothingPublished:
        alone = None
    stage_of = "" if alone is not None and published.layer == alone.layer else head
    return replace(setting, differences=_differences(published, setting, unfixed), stage=stage_of)


def _usual(asked: _Asked, recipe: Recipe, method: type[Method], form: str, fixed: Values) -> tuple[Values, Stage]:
    """Values of recipe, preset, form and network options, and the stage of the recipe that they are for."""
    experiment, preset = asked.experiment, asked.preset
    params = layer(method=usual_params(recipe, preset, method, form))
    # Parameters say which parts are trained, and that says which of the recipe's stages is meant.
    checked = checked_params(method, part({**params, **fixed}, "method"))
    frozen = experiment.frozen or "backbone" not in method(method.Params(**checked)).trained_parts
    stage = recipe.frozen if frozen else recipe.end_to_end
    network = {"backbone": experiment.backbone, "dim": experiment.dim}
    values = {
        **from_recipe(recipe, stage),
        **from_preset(preset, recipe, stage),
        **from_fidelity(experiment.fidelity, recipe),
        **params,
        **layer(model={key: value for key, value in network.items() if value is not None}),
    }
    return values, stage


def _published(asked: _Asked, dataset: str, name: str, values: Values, head: str = "", base: str = "") -> Published:
    """Published setting of a method; of the first stage of a head, what the head's row has for it.

    Raises:
        NothingPublished: If there is none.
    """
    experiment, methods = asked.experiment, asked.site.methods
    method = methods.method(head or name)
    form = resolve_fidelity(method, experiment.fidelity, experiment.protocol)
    found = find_published(
        method,
        dataset,
        base or (name if head else asked.site.recipe(dataset).base),
        network=f"{values['model.backbone']}/{values['model.dim']}",
        params=checked_params(method, method.defaults(form) if head else part(values, "method")),
        pooling=experiment.set.get("data.pooling", "avg"),
    )
    return stage_one(found, methods.method(name)) if head else found


def _differences(published: Published, setting: Setting, unfixed: Values) -> tuple[str, ...]:
    """Differences of a replay from what its source ran."""
    run, method, experiment = published.run, setting.method, setting.experiment
    said = run.differences(experiment.protocol, experiment.preset, setting.cell.dataset)
    if method.form not in run.forms and len(method.forms()) > 1:
        said.append(f"fidelity {method.form} instead of {run.forms[0]}")
    if setting.folds is not None:
        said.append(f"{setting.folds} folds")
    before = {**unfixed, **layer(method=checked_params(type(method), part(unfixed, "method")))}
    changed = [key for key, value in setting.values.items() if value != before[key]]
    said += [key for key in sorted(changed, key=place) if not key.startswith("model.")]
    if setting.partial:
        said.append("a partial release")
    if setting.weights is None:
        said.append("random weights instead of ImageNet's")
    return tuple(said)


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


def _check_base(method: type[Method], base: type[Method]) -> None:
    """Refuse a base without what a method needs of it, before the base is trained."""
    from ..methods._base import UnfitBase

    if base.on_base:
        raise UserError(f"--base {base.name}: {base.name!r} needs a base itself; name a one-stage method")
    try:
        method.check_base(base)
    except UnfitBase as error:
        raise UserError(f"--base {base.name}: {error}") from None


def _check_bases_are_named(asked: _Asked, settings: list[Setting]) -> None:
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


def _unused(asked: _Asked, settings: list[Setting]) -> Iterator[str]:
    """Keys that the user fixed and that nothing has."""
    return (key for key in asked.experiment.set if not any(key in setting.fixed for setting in settings))


def _check_all_used(asked: _Asked, settings: list[Setting], datasets: tuple[str, ...]) -> None:
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
