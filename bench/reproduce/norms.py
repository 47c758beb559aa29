"""Smallest and largest norms of images and proxies of trained models (EL-nivMF, Figure 11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from safetensors import safe_open
from torch import Tensor

from ..engine.networks import load_model
from ..methods.norm_concentration import DistributionProxies
from ..report.frame import Results
from ..site import Site
from ..store.records import TestRecord
from .cells import Cells
from .rows import PlannedItem

Norms = Callable[[TestRecord, Site], Tensor]


def image_norms(record: TestRecord, site: Site) -> Tensor:
    """Concentrations of the vMF embeddings of the clean (uncorrupted) test images, ``[N]``.

    In the method EL-nivMF (Kirchhof et al. 2022) they are the norms of the raw embeddings.

    Args:
        record: Record of a test.
        site: The results folder that has its embeddings.

    Returns:
        Empty if the embeddings have no concentration.
    """
    path = site.store.unit_dir(record.cell, "test", record.unit) / min(record.files)
    with safe_open(path, "pt") as file:
        if "clean.concentration" not in set(file.keys()):
            return torch.empty(0)
        kept: Tensor = file.get_tensor("clean.concentration")
    return kept


def proxy_norms(record: TestRecord, site: Site) -> Tensor:
    """Concentrations of the proxies of a tested model, ``[C]`` or ``[C, D]`` for C classes.

    Args:
        record: Record of a test.
        site: The results folder that has the model.

    Returns:
        Empty if the proxies are not distributions.
    """
    model, _ = load_model(record.trained_cell, record.spec.train[0], site)
    if not isinstance(model.objective, DistributionProxies):
        return torch.empty(0)
    return model.objective.concentration().detach()


NORMS: Mapping[str, Norms] = {"norm": image_norms, "proxy_norm": proxy_norms}
"""Functions by the metric that a column reads; its variant is ``min`` or ``max``."""


def norms(planned: PlannedItem, results: Results, site: Site) -> Cells:
    """Compute the cells of a paper's table that show the smallest or largest norm of image embeddings or proxies.

    Args:
        planned: The table on one data set, with the plans of its runs.
        results: Finished tests of the results folder.
        site: The results folder that has the embeddings and models.

    Returns:
        For each of these cells, a key ``(row title, column title)`` with a dictionary of values by seed.
    """
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
