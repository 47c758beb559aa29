"""Recall@k, MAP@R and R-precision of every query, exact under ties.

Every metric is its expectation over the random orders of tied items, in closed form (McSherry and Najork 2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .ranking import Ranking, Scorer, full_depth, rank
from .rows import Row, row


@dataclass(frozen=True)
class Places:
    """Groups of tied items in the rankings of Q queries: four tables ``[Q, K]`` with a value for each of K places.

    They have the number of items and of relevant items in the place's tie group (``size``, ``hits``), and of places and
    relevant items before the group (``start``, ``before``).
    """

    size: Tensor
    hits: Tensor
    start: Tensor
    before: Tensor

    @classmethod
    def of(
        cls,
        relevant: Tensor,
        group: Tensor,
        valid: Tensor,
        beyond: Tensor,
        beyond_relevant: Tensor,
        need: int | None = None,
    ) -> Places:
        """Describe the groups of tied items in rankings ``[Q, K]``, in which places with an item come first.

        ``group`` ascends along a row; ``beyond`` ``[Q]`` are items that are tied with the last place but lie beyond it.
        Only the first ``need`` places are described, all if None.
        """
        relevant = relevant & valid
        need = group.shape[1] if need is None else min(need, group.shape[1])
        if need < group.shape[1]:
            # What follows counts only as far as it is tied with the last place that is kept.
            tail = (group[:, need:] == group[:, need - 1 : need]) & valid[:, need:]
            reaches = group[:, -1] == group[:, need - 1]
            beyond = tail.sum(1) + torch.where(reaches, beyond, 0)
            beyond_relevant = (tail & relevant[:, need:]).sum(1) + torch.where(reaches, beyond_relevant, 0)
            relevant, group, valid = relevant[:, :need], group[:, :need], valid[:, :need]
        # Group numbers may have gaps, once filtering has removed items: number them again from 0.
        new = torch.cat([torch.ones_like(valid[:, :1]), group[:, 1:] != group[:, :-1]], dim=1)
        hits = relevant.double()
        start = torch.arange(need, dtype=torch.float64).repeat(len(hits), 1)
        places = cls(valid.double(), hits, start, hits.cumsum(1) - hits)
        tied = ((~new).any(1) | (beyond > 0)).nonzero().squeeze(1)
        if len(tied):
            whole = cls._tied(relevant[tied], new[tied], valid[tied], beyond[tied], beyond_relevant[tied])
            for table, rows in zip(vars(places).values(), vars(whole).values()):
                table[tied] = rows
        return places

    @classmethod
    def _tied(cls, relevant: Tensor, new: Tensor, valid: Tensor, beyond: Tensor, beyond_relevant: Tensor) -> Places:
        index = new.long().cumsum(1) - 1
        zeros = torch.zeros(index.shape, dtype=torch.float64)
        size = zeros.scatter_add(1, index, valid.double())
        hits = zeros.scatter_add(1, index, relevant.double())
        last = torch.where(valid, index, -1).amax(1, keepdim=True).clamp_min(0)
        size = size.scatter_add(1, last, beyond.double()[:, None])
        hits = hits.scatter_add(1, last, beyond_relevant.double()[:, None])
        start = size.cumsum(1) - size
        before = hits.cumsum(1) - hits
        return cls(*(table.gather(1, index) for table in (size, hits, start, before)))


def expected_precisions(places: Places) -> Tensor:
    """Expected product of the relevance of place i and the precision at i, ``[Q, K]``: the summands of MAP@R."""
    m, r, s, b = places.size.clamp_min(1.0), places.hits, places.start, places.before
    i = torch.arange(1, m.shape[1] + 1, dtype=torch.float64)[None, :]
    within = (i - s - 1.0) * (r - 1.0) / (m - 1.0).clamp_min(1.0)
    return r / m * (b + 1.0 + torch.where(m > 1.0, within, 0.0)) / i


def expected_metrics(places: Places, positives: Tensor, ks: Sequence[int]) -> dict[str, Tensor]:
    """Metrics of every query, ``[Q]`` each, in expectation over random orders of ties; nan without a positive."""
    m, r, s, b = places.size.clamp_min(1.0), places.hits, places.start, places.before
    i = torch.arange(1, m.shape[1] + 1, dtype=torch.float64)[None, :]
    share = r / m
    precision = expected_precisions(places)
    total = positives.double()
    counted = (i <= total[:, None]).double()
    lone = positives == 0
    divisor = total.clamp_min(1.0)
    result = {
        "map_at_r": (precision * counted).sum(1) / divisor,
        "r_precision": (share * counted).sum(1) / divisor,
        "precision_at_1": share[:, 0].clone(),
    }
    for k in ks:
        place = min(k, m.shape[1]) - 1
        result[f"recall_at_{k}"] = _recall(m[:, place], r[:, place], s[:, place], b[:, place], place + 1)
    return {name: values.masked_fill(lone, math.nan) for name, values in result.items()}


def _recall(m: Tensor, r: Tensor, s: Tensor, b: Tensor, k: int) -> Tensor:
    """P(a relevant item among the first k): 1 - C(m-r, t) / C(m, t) with t = k - s draws from the group of place k."""
    t = (k - s).clamp(min=0.0)
    t = torch.minimum(t, m)
    possible = t <= m - r
    log_miss = (
        torch.lgamma(m - r + 1)
        - torch.lgamma((m - r - t).clamp_min(0.0) + 1)
        - torch.lgamma(m + 1)
        + torch.lgamma(m - t + 1)
    )
    miss = torch.where(possible, log_miss.exp().clamp(max=1.0), 0.0)
    miss = torch.where(r == 0, 1.0, miss)
    return torch.where(b > 0, 1.0, 1.0 - miss)


def per_query(ranking: Ranking, ks: Sequence[int] = (1,)) -> dict[str, Tensor]:
    """Compute the retrieval metrics of every query, in expectation over random orders of tied scores.

    A query is never its own neighbour. R is the number of its relevant gallery items.

    Args:
        ranking: Ranking at least as deep as the largest R and the largest k, or of the whole gallery.
        ks: Values of k for Recall@k.

    Returns:
        ``map_at_r``, ``r_precision``, ``precision_at_1``, ``recall_at_{k}``, each ``[Q]``; nan for queries
        without a relevant item in the gallery.

    Raises:
        ValueError: If the ranking is not deep enough.

    Example:
        >>> from .ranking import ScoreMatrix
        >>> scores = torch.tensor([[9.0, 2.0, 2.0], [2.0, 9.0, 0.0], [2.0, 0.0, 9.0]])
        >>> per_query(rank(ScoreMatrix(scores), torch.tensor([0, 0, 1]), depth=2))["recall_at_1"].tolist()
        [0.5, 1.0, nan]
    """
    need = max([int(ranking.positives.max()), *ks])
    if need > ranking.depth and not ranking.exhausted:
        raise ValueError(f"ranking has {ranking.depth} places, metrics need {need}")
    blocks = []
    for block in ranking.blocks():
        valid = block.neighbours >= 0
        places = Places.of(block.relevant, block.group, valid, block.beyond, block.beyond_relevant, need)
        blocks.append(expected_metrics(places, block.positives, ks))
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


def mean_of_counted(values: Tensor) -> float:
    """Mean over the queries whose value is not nan, the same to the last bit in any order; nan if there are none.

    Example:
        >>> mean_of_counted(torch.tensor([1.0, 0.0, float("nan")]))
        0.5
    """
    counted = values[~values.isnan()].tolist()
    return math.fsum(counted) / len(counted) if counted else math.nan


def mean_row(metric: str, values: Tensor, **columns: Any) -> Row:
    """Row of the mean of a metric over the queries ``[Q]`` whose value is not nan; the others are counted as lone."""
    lone = int(values.isnan().sum())
    return row(metric, mean_of_counted(values), n_queries=len(values) - lone, n_lone=lone, **columns)


def map_at_r(scorer: Scorer, labels: Tensor) -> float:
    """MAP@R over the full gallery, without the other metrics, for model selection; every image is query and gallery.

    Example:
        >>> from .ranking import ScoreMatrix
        >>> map_at_r(ScoreMatrix(torch.tensor([[9.0, 2.0, 1.0], [2.0, 9.0, 0.0], [1.0, 0.0, 9.0]])), torch.zeros(3))
        1.0
    """
    return mean_of_counted(per_query(rank(scorer, labels, depth=full_depth(labels)))["map_at_r"])
