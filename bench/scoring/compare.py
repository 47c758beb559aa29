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
    """Difference of a metric between two sets of embeddings of the same images, with its 95 % bootstrap interval.

    Attributes:
        scorer: Name of the scorer, the similarity that ranks.
        metric: Name of the metric, a mean over queries.
        difference: Value of the other set minus that of the first set, as :func:`compare` was given them.
        ci95_low: Lower end of the interval.
        ci95_high: Upper end of the interval.
        resampled: Units that were drawn with replacement: ``queries`` or ``classes``.
        units: Number of these units.
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

    Differences are paired by query and have 95 % bootstrap intervals.

    Args:
        first: Scores of the first set.
        other: Scores of a set that was aligned with it (:meth:`EmbeddingSet.aligned_with`), by the same scorers
            (similarities).
        metrics: Names of metrics or groups of metrics. Only those that are means over queries are compared.
        by: Units that are drawn with replacement: ``queries`` (the classes stay as they are) or whole ``classes``.
        resamples: Number of bootstrap resamples.

    Returns:
        One row per scorer and metric.
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
