"""Comparing sets of embeddings of the same images, query by query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch

from ..protocols.statistics import paired_bootstrap
from ..seeds import seed_for
from .requests import wanted_metrics
from .score import Scored
from .view import numbered_classes


class Difference(TypedDict):
    """Difference of a metric, a mean over queries, between two sets of embeddings, with its 95 % bootstrap interval.

    ``resampled`` are the units that were drawn with replacement: ``queries`` or ``classes``.
    """

    scorer: str
    metric: str
    difference: float
    ci95_low: float
    ci95_high: float
    resampled: str
    units: int


def compare(
    first: Scored, other: Scored, metrics: Sequence[str], *, by: str = "queries", resamples: int = 2000
) -> list[Difference]:
    """Compute differences of metrics between two sets of embeddings of the same images, other minus first.

    Differences are paired by query and have 95 % bootstrap intervals. The other set was aligned with the first
    (:meth:`EmbeddingSet.aligned_with`) and scored by the same scorers. Only metrics that are means over queries are
    compared. ``by`` draws ``queries`` (the classes stay as they are) or whole ``classes`` with replacement.
    """
    differences: list[Difference] = []
    for scorer, values in first.values.items():
        names = [name for name in values if name in wanted_metrics(metrics)]
        if not names:
            continue
        a, b = (torch.stack([each[scorer][name] for name in names], 1) for each in (other.values, first.values))
        counted = ~b.isnan().any(1)
        labels = (
            numbered_classes(first.given.labels)[first.queries.numpy()][counted.numpy()] if by == "classes" else None
        )
        seed = seed_for("score", "bootstrap") % 2**32
        intervals = paired_bootstrap(a[counted].numpy(), b[counted].numpy(), labels, resamples=resamples, seed=seed)
        for name, interval in zip(names, intervals):
            differences.append(
                {
                    "scorer": scorer,
                    "metric": name,
                    "difference": interval.difference,
                    "ci95_low": interval.ci_low,
                    "ci95_high": interval.ci_high,
                    "resampled": by,
                    "units": interval.units,
                }
            )
    return differences
