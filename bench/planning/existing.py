"""Check whether plans have results already."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import UserError
from ..store.folder import Store
from ..store.records import Columns
from .plan import Plan


def check_none(plans: Iterable[Plan], store: Store) -> None:
    """Refuse plans that have results at the same setting already, as ``--on-existing error`` asks.

    Args:
        plans: Plans, each for one cell (protocol, data set, method) at one setting.
        store: The results folder.

    Raises:
        UserError: If a plan has such results.
    """
    tested = [(record.cell, record.columns) for record in store.tests()]
    for plan in plans:
        if any(cell == plan.cell and _same(plan, columns) for cell, columns in tested):
            raise UserError(
                f"{plan.cell.method} on {plan.cell.dataset} has results in {store.root} already;"
                " use --on-existing skip (reuse them) or rerun (do them again)"
            )


def _same(plan: Plan, columns: Columns) -> bool:
    template = plan.template
    mine = (plan.preset, plan.hparams, plan.trials, plan.pinned, template.fidelity, template.backbone)
    theirs = (
        columns.preset,
        columns.hparams,
        columns.trials,
        columns.pinned,
        columns.fidelity,
        columns.backbone,
    )
    dims = (template.dim * plan.seeds,) if plan.ensemble else (template.dim, template.dim * plan.models)
    return mine == theirs and columns.dim in dims
