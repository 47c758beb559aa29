"""The setting of one cell: layers from every source, merged once and checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..protocols.recipes._base import Range
from ..site import Site
from ..store.specs import Parameters
from .checks import Checked, check_setting
from .pins import Pinned, from_pins
from .published import find_published
from .request import Experiment, Request, resolve_fidelity
from .setting import Setting, checked_params, merge
from .sources import from_preset, from_recipe, search_ranges, usual_params

if TYPE_CHECKING:
    from ..methods._base import Method


@dataclass(frozen=True, kw_only=True)
class CellSetting:
    """A cell with its setting.

    Attributes:
        request: The cell, its recipe and its base.
        method: Class of the method.
        fidelity: A form that the method has.
        params: Parameters of the method, defaults filled in.
        setting: Everything else that can be set.
        space: What is tuned.
        pinned: Settings pinned by the user.
        select_by: Scorer that selects epochs and trials, if it was asked for; a base that only serves has its own.
        checked: What the checks found.
    """

    request: Request
    method: type[Method]
    fidelity: str
    params: Parameters
    setting: Setting
    space: dict[str, Range]
    pinned: Pinned
    select_by: str | None
    checked: Checked


def cell_setting(experiment: Experiment, request: Request, site: Site) -> CellSetting:
    """Setting of a cell.

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
    params = checked_params(method, merge(usual, pinned.layer).params)
    frozen = "backbone" not in method(method.Params(**params), fidelity).trained_parts
    stage = recipe.frozen if frozen else recipe.end_to_end
    asked = {"backbone": experiment.backbone, "dim": experiment.dim}
    layers = [
        from_recipe(recipe, stage),
        from_preset(preset, recipe, stage),
        usual,
        Setting(network={key: value for key, value in asked.items() if value is not None}),
    ]
    space = search_ranges(preset, recipe, method, stage, pinned.layer) if experiment.hparams == "tuned" else {}
    network = merge(*layers).network
    if experiment.hparams == "published":
        base = request.base.method if request.base else recipe.base
        layers.append(find_published(method, request.cell.dataset, base, network, fidelity, params))
    if experiment.file is not None:
        layers.append(experiment.file.layer(method, merge(*layers)))
    setting = merge(*layers, pinned.layer)
    params = checked_params(method, setting.params)
    checked = check_setting(experiment, request, setting, method(method.Params(**params), fidelity), site)
    return CellSetting(
        request=request,
        method=method,
        fidelity=fidelity,
        params=params,
        setting=setting,
        space=space,
        pinned=pinned,
        select_by=experiment.select_by if request.requested else None,
        checked=checked,
    )
