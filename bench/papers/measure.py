"""Values of cells that are not in the tidy table: norms of images and proxies, and times of steps on this machine."""

from __future__ import annotations

import torch
from torch import Tensor

from ..engine.estimate import estimate
from ..engine.networks import load_model
from ..errors import UnitFailed
from ..methods.norm_concentration import DistributionProxies
from ..report.figures.registry import Missing
from ..report.figures.tested import read_model
from ..report.frame import Results
from ..site import Site
from ..store.records import TestRecord
from .run import PlannedItem
from .tables import Cells


def image_norms(record: TestRecord, site: Site) -> Tensor:
    """Concentrations of the vMF embeddings of the clean test images, ``[N]``; empty if they have none, or are not kept.

    In the method EL-nivMF (Kirchhof et al. 2022) they are the norms of the raw embeddings.
    """
    try:
        kept: Tensor = getattr(read_model(site.store, record, "").distribution, "concentration", torch.empty(0))
    except (Missing, UnitFailed):
        return torch.empty(0)
    return kept


def proxy_norms(record: TestRecord, site: Site) -> Tensor:
    """Concentrations of the proxies of a tested model, ``[C]`` or ``[C, D]``; empty if they are no distributions."""
    model, _ = load_model(record.trained_cell, record.spec.train[0], site)
    if not isinstance(model.objective, DistributionProxies):
        return torch.empty(0)
    return model.objective.concentration().detach()


NORMS = {"norm": image_norms, "proxy_norm": proxy_norms}
"""Functions by the metric that a column reads; its variant is ``min`` or ``max``."""


def norms(planned: PlannedItem, results: Results, site: Site) -> Cells:
    """Cells with the smallest or largest norm of image embeddings or proxies (EL-nivMF, Figure 11)."""
    columns = [c for c in planned.named.columns(planned.dataset) if c.reads and c.reads.metric in NORMS]
    cells: Cells = {}
    for each in planned.rows if columns else ():
        for record in filter(each.tested, results.tests):
            values = {metric: function(record, site) for metric, function in NORMS.items()}
            for column in columns:
                assert column.reads is not None
                found = values[column.reads.metric]
                if len(found):
                    extreme = float(found.min() if column.reads.variant == ("min",) else found.max())
                    by_seed = cells.setdefault((each.row.title, column.title), {})
                    by_seed[record.columns.seed] = column.factor * extreme
    return cells


def timed(planned: PlannedItem, site: Site) -> Cells:
    """Cells of a table of run times, as if of seed 0: time per image of a training step or of inference."""
    cells: Cells = {}
    for each in planned.rows:
        found = estimate(each.plan, site)
        sizes = each.plan.template.batches
        seconds = {"step": found.step / (sizes.classes_per_batch * sizes.images_per_class), "embed": found.embed}
        for column in planned.named.columns(planned.dataset):
            if column.reads is not None:
                cells[each.row.title, column.title] = {0: column.factor * seconds[column.reads.metric]}
    return cells
