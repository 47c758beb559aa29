"""Retrieval as the public code of "Probabilistic Embeddings Revisited" computes it, variant ``reranked``.

Rankings are those of :mod:`~bench.protocols.near_modes`. Queries without a positive count as 0 in MAP@R and are left
out of Recall@k. A filter-out curve keeps the confidences from its threshold on, in queries and gallery alike, and
counts classes and neighbours anew on what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from .confidence import aurc
from .declare import test
from .embeddings import Embeddings
from .near_modes import NearModes, near_depth, with_lone_queries
from .query_metrics import mean_of_counted
from .ranking import Scorer, rank
from .retrieval_confidence import JUDGED_BY
from .rows import RERANKED, Row, row


def kept_from_threshold(confidence: Tensor, fraction: float) -> Tensor:
    """Mask of the images that a filter-out curve keeps when it removes the least confident share f of N images.

    As in the public code of "Probabilistic Embeddings Revisited" (PER), the threshold is the round((N - 1) f)-th
    smallest confidence, counted from 0, and images at or above it are kept. So up to one image more than a share 1 - f
    is kept, and all that are tied with the threshold.
    """
    # Their grid is np.linspace(0, 0.9, 10): its 0.3 is 3 * 0.1 > 0.3, which decides where the rank ends in one half.
    tenths = round(10 * fraction)
    share = tenths * 0.1 if math.isclose(tenths * 0.1, fraction) else fraction
    return confidence >= confidence.sort().values[round((len(confidence) - 1) * share)]


def _mean_row(metric: str, values: Tensor, name: str, **columns: Any) -> Row:
    """The mean of what counts of the queries' values."""
    counted = with_lone_queries(metric, values)
    lone = len(values) - len(counted)
    return row(name, mean_of_counted(counted), n_queries=len(counted), n_lone=lone, **columns)


def filter_out_rows(near: NearModes, confidences: Mapping[str, Tensor], fractions: Sequence[float]) -> Iterator[Row]:
    """Filter-out curves: MAP@R and Recall@1 as the least confident images are removed from queries and gallery."""
    for name, confidence in confidences.items():
        for fraction in fractions:
            values = near.values(kept_from_threshold(confidence, fraction))
            at: dict[str, Any] = {"confidence": name, "variant": RERANKED, "fraction": fraction}
            yield from (_mean_row(metric, values[metric], f"filter_out_{metric}", **at) for metric in JUDGED_BY)


def _near_modes(view: Embeddings, scorer: str, modes: Callable[[], Scorer]) -> NearModes:
    """The nearest modes with the scores of a scorer; their ranking serves all scorers."""
    ks, by_mode = view.options.recall_ks, view.once("scorer of modes", modes)
    queries, gallery = view.queries, view.gallery
    near = view.once(
        "ranking of modes",
        lambda: rank(by_mode, view.labels, depth=near_depth(view.labels, ks), queries=queries, gallery=gallery),
    )
    return NearModes(view.scorer(scorer), by_mode, view.labels, ks=ks, gallery=gallery, near=near)


@test(group="reranked", per="scorer", needs=("candidates",))
def reranked(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Recall@k and MAP@R as the public code of "Probabilistic Embeddings Revisited" (PER) computes them.

    That code orders only the images whose embedding distributions have their modes nearest to the query's. For scorers
    by which confidences are judged, this function also gives filter-out curves (MAP@R and Recall@1 as the least
    confident images are removed) and areas under risk-coverage curves. ``variant`` is ``reranked``, or for ``aurc``,
    whose risk is 1 - metric, ``map_at_r,reranked`` or ``recall_at_1,reranked``.
    """
    assert view.candidates is not None
    near = _near_modes(view, scorer, view.candidates)
    values = near.values()
    for metric, each in values.items():
        yield _mean_row(metric, each, metric, variant=RERANKED)
    if scorer in view.own_scorers:
        yield from filter_out_rows(near, view.drawn_confidences(), view.options.filter_fractions)
        yield from _risk_rows(near, values, view.confidences)


def _risk_rows(near: NearModes, values: Mapping[str, Tensor], confidences: Mapping[str, Tensor]) -> Iterator[Row]:
    """Areas under the risk-coverage curves; lone queries are errors in that of MAP@R."""
    for name, confidence in confidences.items():
        of_queries = confidence[near.near.queries]
        for metric in JUDGED_BY:
            kept = of_queries if metric == "map_at_r" else of_queries[~values[metric].isnan()]
            counted, variant = with_lone_queries(metric, values[metric]), f"{metric},{RERANKED}"
            area, lone = aurc(kept, 1.0 - counted), len(of_queries) - len(counted)
            yield row("aurc", area, confidence=name, variant=variant, n_queries=len(counted), n_lone=lone)
