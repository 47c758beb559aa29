"""Times of training steps and of inference, from a few steps on this machine."""

from __future__ import annotations

from ..datasets.errors import DataError
from ..engine.estimate import estimate
from ..errors import UserError
from ..site import Site
from .cells import Cells
from .rows import PlannedItem


def timed(planned: PlannedItem, site: Site) -> Cells:
    """Measure the cells of a paper's table of run times on this machine.

    A column shows the time per image of a training step (metric ``step``) or of inference (``embed``), in the unit of
    the paper.

    Args:
        planned: The table on one data set, with the plans of its runs.
        site: Plug-ins, folder of data sets and weights of this machine.

    Returns:
        For each cell, a key ``(row title, column title)`` with the dictionary ``{0: time}``, as if of seed 0.

    Raises:
        UserError: If the data set cannot be read.
    """
    cells: Cells = {}
    for each in planned.rows:
        try:
            found = estimate(each.plan, site)
        except DataError as error:
            raise UserError(str(error)) from None
        sizes = each.plan.template.batches
        seconds = {"step": found.step / (sizes.classes_per_batch * sizes.images_per_class), "embed": found.embed}
        for column in planned.named.columns(planned.dataset):
            if column.reads is not None:
                cells[each.row.title, column.title] = {0: column.factor * seconds[column.reads.metric]}
    return cells
