"""Retrieval over the full gallery: Recall@k, MAP@R, R-precision, Precision@1 and mAP@1000.

A query's own row is removed by identity; queries without a positive are left out of every metric and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from .declare import test
from .embeddings import Embeddings
from .query_metrics import Places, expected_precisions, mean_row
from .rows import Row


def map_at_k(view: Embeddings, scorer: str, k: int = 1000) -> Iterator[Row]:
    """Mean average precision at k (mAP@1000 by default), under the two denominators in use in deep metric learning.

    The precisions at the relevant places among the first k are summed and divided by ``n``, the class size including
    the query (Roth et al. 2020; a perfect ranking then has (n - 1) / n), or by ``min(k, n - 1)``, the number of
    positives that can be found. Tied scores are treated exactly, by the expectation over their random orders. The
    variants of the two rows are ``denominator=n`` and ``denominator=min(k,n-1)``. Images that are no neighbours of the
    query (:attr:`.Embeddings.kin`) do not count in n, but for the query.

    Example:
        >>> from .ranking import ScoreMatrix
        >>> given = ScoreMatrix(torch.tensor([[9.0, 2.0, 1.0], [2.0, 9.0, 0.0], [1.0, 0.0, 9.0]]))
        >>> view = Embeddings(labels=torch.tensor([0, 0, 1]), ids=("a", "b", "c"), scorers={"given": lambda: given})
        >>> [(row["variant"], row["value"]) for row in map_at_k(view, "given")]
        [('denominator=n', 0.5), ('denominator=min(k,n-1)', 1.0)]
    """
    sums, counts = [], []
    for block in view.query_rows.split(2048):  # a thousand places of every query at once would not fit
        ranking = view.rank(scorer, min(k, len(view.gallery_rows)), queries=block)
        places = Places.of(
            ranking.relevant, ranking.group, ranking.neighbours >= 0, ranking.beyond, ranking.beyond_relevant
        )
        sums.append(expected_precisions(places).sum(1))
        counts.append(ranking.positives)
    precision, positives = torch.cat(sums), torch.cat(counts)
    r, lone = positives.double(), positives == 0
    for variant, denominator in (("denominator=n", r + 1), ("denominator=min(k,n-1)", r.clamp(1, k))):
        each = (precision / denominator).masked_fill(lone, math.nan)
        yield mean_row(f"map_at_{k}", each, variant=variant)


@test(group="retrieval", per="scorer")
def retrieval(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Recall@k, MAP@R, R-precision and Precision@1 over the full gallery: means of queries that have a positive."""
    for metric, each in view.query_values(scorer).items():
        yield mean_row(metric, each)


@test(group="map_at_1000", per="scorer", clean_only=True)
def map_at_1000(view: Embeddings, scorer: str) -> Iterator[Row]:
    """mAP@1000 under two definitions, which differ in the number that the sum of a query's precisions is divided by.

    It is divided by n, the class size including the query, or by min(1000, n - 1), the number of positives that can be
    found.
    """
    yield from map_at_k(view, scorer)
