"""Planning: from a request to plans, each base before the methods that stand on it.

A request is resolved once. For each cell, every source of settings gives one layer, the layers are merged once, the
result is checked once, and a plan is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnknownName, UserError
from ..protocols.recipes import get_recipe
from ..site import Site
from ..store.specs import Cell
from .cell import CellSetting, cell_setting
from .plan import Plan, make_plan
from .published import NothingPublished
from .request import Experiment, RunRequest, resolve
from .sources import known_keys


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
    settings: dict[Cell, CellSetting] = {}
    missing: dict[Cell, NothingPublished] = {}
    for asked in experiment.requests:
        try:
            if asked.base in missing:
                raise missing[asked.base]
            settings[asked.cell] = cell_setting(experiment, asked, site)
        except NothingPublished as error:
            missing[asked.cell] = error
    if missing and not any(setting.request.requested for setting in settings.values()):
        raise next(iter(missing.values()))
    needed = {setting.request.base for setting in settings.values()}
    plans: dict[Cell, Plan] = {}
    for cell, setting in settings.items():
        if setting.request.requested or cell in needed:
            base = setting.request.base
            plans[cell] = make_plan(experiment, setting, plans[base] if base else None, site)
    _check_all_used(experiment, site, plans)
    named = [error for cell, error in missing.items() if cell.method in experiment.methods]
    return Plans(tuple(plans.values()), tuple(str(error) for error in named))


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
        raise UnknownName("--set key", unused[0], known_keys(methods, recipes))
