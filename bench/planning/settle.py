"""From what is asked for to the setting of each method on each data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import UserError
from ..methods.scorers.registry import SCORERS
from ..names import expand
from ..protocols._base import Preset, Protocol
from ..protocols.recipes._base import Recipe, Stage
from ..site import Site
from ..store.pinned import place
from ..store.specs import Cell
from .checks import checked
from .experiment import Experiment
from .files import SettingsFile
from .published import NothingPublished, Published, find_published, stage_one
from .setting import (
    Setting,
    Values,
    checked_params,
    from_fidelity,
    from_file,
    from_preset,
    from_recipe,
    from_user,
    layer,
    part,
    resolve_fidelity,
    search_ranges,
    usual_params,
)

if TYPE_CHECKING:
    from ..methods._base import Method


@dataclass(frozen=True, kw_only=True)
class Asked:
    """An experiment after its names were looked up and its file of settings was read."""

    experiment: Experiment
    site: Site
    protocol: Protocol
    preset: Preset
    corruptions: tuple[str, ...]
    methods: tuple[str, ...]
    file: SettingsFile | None


def settle(
    asked: Asked, dataset: str, name: str, known: dict[tuple[str, str, str], Setting]
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


def _setting(asked: Asked, dataset: str, name: str, head: str = "", base: str = "") -> Setting:
    """Setting of a method: layers of values from every source, merged once and checked once.

    ``head`` is the two-stage method whose published first stage this is, ``base`` the name of the method's own base.

    Raises:
        NothingPublished: If published settings are asked for and there is none.
        UserError: If a value does not fit, or the data cannot be used.
    """
    experiment, preset, site = asked.experiment, asked.preset, asked.site
    recipe, method = site.recipe(dataset), site.methods.method(name)
    named = name in asked.methods
    # What is fixed for a method is not fixed for a base that only serves it, unless it concerns the data.
    texts = {k: v for k, v in experiment.set.items() if named or k.split(".")[0] in ("data", "augment")}
    fixed, before, stage = _usual(asked, recipe, method, texts)
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
    requested, usual = named and not head, asked.protocol.presets[experiment.preset]
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
            folds=None if preset.validate == usual.validate else experiment.tuning.folds,
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


def _usual(
    asked: Asked, recipe: Recipe, method: type[Method], texts: Mapping[str, str]
) -> tuple[Values, Values, Stage]:
    """Values that the user fixed; those of recipe, preset, form and network options; the recipe's stage for them."""
    experiment, preset = asked.experiment, asked.preset
    fixed = from_user(texts, method, recipe)
    form = fixed.get("method.form", resolve_fidelity(method, experiment.fidelity, experiment.protocol))
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
    return fixed, values, stage


def _published(asked: Asked, dataset: str, name: str, values: Values, head: str = "", base: str = "") -> Published:
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


def _check_base(method: type[Method], base: type[Method]) -> None:
    """Refuse a base without what a method needs of it, before the base is trained."""
    from ..methods._base import UnfitBase

    if base.on_base:
        raise UserError(f"--base {base.name}: {base.name!r} needs a base itself; name a one-stage method")
    try:
        method.check_base(base)
    except UnfitBase as error:
        raise UserError(f"--base {base.name}: {error}") from None
