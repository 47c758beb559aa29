"""The setting of one cell: layers from every source, merged once and checked once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..protocols.recipes._base import Range
from ..site import Site
from ..store.specs import Parameters, TuneFor
from .checks import Checked, check_setting
from .pins import COMMAND_LINE, from_pins
from .published import NothingPublished, Published, Wanted, find_published, stage_one
from .request import Place, Request, Resolved, resolve_fidelity
from .setting import Setting, checked_params, merge
from .sources import from_fidelity, from_preset, from_recipe, search_ranges, usual_params

if TYPE_CHECKING:
    from ..methods._base import Method


@dataclass(frozen=True, kw_only=True)
class CellSetting:
    """Complete and checked setting of one cell (protocol, data set, method).

    Attributes:
        request: The cell, the recipe (default training settings) of its data set, and its base.
        method: Class of the method.
        fidelity: Form of the method: ``corrected``, or a released one (what the public code of its paper computes).
        params: Parameters of the method, defaults filled in.
        setting: All values that can be set, by group.
        space: Ranges of the tuned values, by name; empty if nothing is tuned.
        pinned: Values fixed by the user, which are not tuned.
        select_by: Scorer whose validation MAP@R selects epochs and trials, if the user named one; None for the method's
            own. A base that was not asked for by name always has its own.
        tune_for: What the study tunes for. A base that was not asked for by name is tuned for retrieval, its job.
        checked: Facts about data, weights and scorers that the checks found.
        differences: How a run at a published setting differs from what the authors of that setting ran.
        stage: Method of which this base is the first stage, at the setting published for it; else empty.
    """

    request: Request
    method: type[Method]
    fidelity: str
    params: Parameters
    setting: Setting
    space: dict[str, Range]
    pinned: Setting
    select_by: str | None
    tune_for: TuneFor
    checked: Checked
    differences: tuple[str, ...] = ()
    stage: str = ""


def cell_setting(experiment: Resolved, request: Request, site: Site) -> CellSetting:
    """Setting of a cell (protocol, data set, method), merged from all sources and checked.

    The sources are the recipe (default training settings of the data set), the preset (variant of the protocol), the
    fidelity (method as corrected, or as in its public code), published settings, a file of settings, and the values
    that the user has pinned (fixed).

    Args:
        experiment: Everything that was asked for.
        request: The cell.
        site: Paths, plug-ins and device.

    Raises:
        NothingPublished: If published settings are asked for and there is none.
        UserError: If a value does not fit, or the data cannot be used.
    """
    preset, recipe = experiment.preset, request.recipe
    method = site.methods.method(request.cell.method)
    fidelity = resolve_fidelity(method, experiment.fidelity, request.cell.protocol)
    pinned = from_pins(request.pins, method, recipe)
    usual = Setting(params=usual_params(recipe, preset, method, fidelity))
    # Parameters say which parts are trained, and that says which of the recipe's stages is meant.
    params = checked_params(method, merge(usual, pinned).params)
    frozen = experiment.frozen or "backbone" not in method(method.Params(**params), fidelity).trained_parts
    stage = recipe.frozen if frozen else recipe.end_to_end
    asked = {"backbone": experiment.backbone, "dim": experiment.dim}
    layers = [
        from_recipe(recipe, stage),
        from_preset(preset, recipe, stage),
        from_fidelity(experiment.fidelity, recipe),
        usual,
        Setting(network={key: value for key, value in asked.items() if value is not None}),
    ]
    published = _published(experiment, request, merge(*layers), params, site)
    if published is not None:
        layers.append(published.layer)
    if experiment.file is not None:
        layers.append(experiment.file.layer(method, merge(*layers)))
    setting = merge(*layers, pinned)
    params = checked_params(method, setting.params)
    built = method(method.Params(**params), fidelity)
    space = {}
    if experiment.hparams == "tuned":
        base = site.methods.method(request.base.cell.method)() if request.base else None
        space = search_ranges(preset, recipe, built, stage, pinned, setting, base, experiment.frozen)
    checked = check_setting(experiment, request, setting, built, site)
    cell = CellSetting(
        request=request,
        method=method,
        fidelity=fidelity,
        params=params,
        setting=merge(setting, Setting(batches=checked.batches)),
        space=space,
        pinned=pinned,
        select_by=experiment.select_by if request.requested else None,
        tune_for=experiment.tune_for if request.requested else "retrieval",
        checked=checked,
    )
    if published is None:
        return cell
    serves = request.place.head
    if serves and published.layer == _own_layer(experiment, request, merge(*layers[:-1]), params, site):
        serves = ""
    return replace(cell, differences=_differences(published, experiment, cell, merge(*layers)), stage=serves)


def _published(
    experiment: Resolved, request: Request, setting: Setting, params: Parameters, site: Site
) -> Published | None:
    """Published setting of a cell; of the first stage of a head, what the head's row has for it.

    Raises:
        NothingPublished: If there is none.
    """
    if experiment.hparams != "published":
        return None
    (dataset, name), head = request.cell[1:], request.place.head
    method = site.methods.method(head or name)
    base = request.base.cell.method if request.base else name if head else request.recipe.base
    wanted = Wanted(
        network=setting.network,
        fidelity=resolve_fidelity(method, experiment.fidelity, request.cell.protocol),
        params=checked_params(method, {}) if head else params,
        pooling=next((pin.text for pin in request.pins if pin.key == "data.pooling"), "avg"),
    )
    found = find_published(method, dataset, base, wanted)
    return stage_one(found, site.methods.method(name)) if head else found


def _own_layer(
    experiment: Resolved, request: Request, setting: Setting, params: Parameters, site: Site
) -> Setting | None:
    """Layer of the setting that was published for a base itself, if there is one."""
    alone = replace(request, place=Place(request.cell))
    try:
        found = _published(experiment, alone, setting, params, site)
    except NothingPublished:
        return None
    return None if found is None else found.layer


def _differences(published: Published, experiment: Resolved, cell: CellSetting, unpinned: Setting) -> tuple[str, ...]:
    """Differences of a replay from what its source ran."""
    request, run = cell.request, published.run
    said = run.differences(request.cell.protocol, experiment.preset_name, request.cell.dataset)
    if cell.fidelity not in run.fidelities and len(cell.method.fidelities) > 1:
        said.append(f"fidelity {cell.fidelity} instead of {run.fidelities[0]}")
    if experiment.unusual_folds is not None:
        said.append(f"{experiment.unusual_folds} folds")
    before = replace(unpinned, params=checked_params(cell.method, unpinned.params))
    now = replace(cell.setting, params=cell.params)
    for group, title in COMMAND_LINE.items():
        values, usual = getattr(now, group), getattr(before, group)
        said += [f"{title}.{key}" for key in sorted(values) if values[key] != usual[key]]
    if cell.checked.partial:
        said.append("a partial release")
    if cell.checked.weights is None:
        said.append("random weights instead of ImageNet's")
    return tuple(said)
