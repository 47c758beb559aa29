"""Planning: from a request to plans, each base before the methods that use it.

A request is resolved once. For each cell, every source of settings gives one layer, the layers are merged once, the
result is checked once, and a plan is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnknownName, UserError
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
    # A base that only serves is looked at after the methods it serves: without them it is not needed.
    for asked in sorted(experiment.requests, key=lambda request: not request.requested):
        if asked.requested or any(setting.request.base == asked.cell for setting in settings.values()):
            try:
                settings[asked.cell] = cell_setting(experiment, asked, site)
            except NothingPublished as error:
                missing[asked.cell] = error
    for cell, setting in list(settings.items()):
        if setting.request.base in missing:
            missing[cell] = missing[setting.request.base]
            del settings[cell]
    if not settings:
        raise next(iter(missing.values()))
    plans: dict[Cell, Plan] = {}
    for asked in experiment.requests:
        if asked.cell in settings:
            base = plans[asked.base] if asked.base else None
            plans[asked.cell] = make_plan(experiment, settings[asked.cell], base, site)
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
        recipes = [site.recipe(name) for name in experiment.datasets]
        raise UnknownName("--set key", unused[0], known_keys(methods, recipes))
