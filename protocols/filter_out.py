"""Filter-out curves: retrieval as the least confident images are removed.

Two variants: ``query_only`` removes queries and leaves the gallery alone; ``query_and_gallery`` (PER's) removes images
from both, so R and the number of distractors shrink and the curve moves under any order of removal. Compare the latter
with its random control. ``query_only`` removes a share of the queries that have a positive: the others count nowhere.
Confidence ties are broken by a hash of the image's identity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from .declare import test
from .embeddings import Embeddings
from .query_metrics import Places, expected_metrics, mean_row, per_query
from .ranking import BLOCK_PLACES, Ranking, positives_of
from .retrieval_confidence import JUDGED_BY, oracle_confidence, uniform_by_identity
from .rows import Row


@test(group="filter_out", per="own scorer", needs=("confidences",), version=4)
def filter_out(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Filter-out curves of confidences: MAP@R and Recall@1 as the least confident images are removed.

    Those of the training data and of views have none (:data:`~bench.protocols.rows.UNDRAWN`).
    Two confidences serve for comparison: a random one and the oracle, the best possible one, which is each query's own
    value of the metric. Retrieval confidences, which the ranking itself gives, belong to queries: they remove queries
    alone. The variant is ``query_only``, or ``query_and_gallery`` if gallery images are removed too: unless every image
    is query and gallery, the oracle has none of these, which would need the metric's value for every image. The gallery
    is ranked once, deep enough for most queries after any removal; the others are ranked again against what is left.
    """
    fractions, count = view.options.filter_fractions, len(view)
    if not fractions:
        return
    is_query, searched = _mask(count, view.queries), _mask(count, view.gallery)
    values = view.query_values(scorer, (1,))
    jobs: list[tuple[str, Tensor, tuple[str, ...]]] = [
        (name, confidence, JUDGED_BY) for name, confidence in view.drawn_confidences().items()
    ]
    for metric in JUDGED_BY:
        best = torch.full((count,), -1.0, dtype=torch.float64)
        best[is_query] = oracle_confidence(values[metric])
        jobs.append(("oracle", best, (metric,)))
    tie_break = uniform_by_identity(view.ids, view.seed("confidence ties"), "confidence ties").numpy()
    for name, confidence, metrics in jobs:
        order = _by_confidence(confidence, tie_break)
        of_queries = (is_query.cumsum(0) - 1)[order[is_query[order]]]
        for fraction in fractions:
            by_variant = {"query_only": _of_most_confident(values, of_queries, fraction)}
            if name != "oracle" or bool(is_query.all() and searched.all()):
                kept = _mask(count, order[: round((1.0 - fraction) * count)])
                by_variant["query_and_gallery"] = _on_subset(view, scorer, kept & is_query, kept & searched)
            for variant, found in by_variant.items():
                at = {"confidence": name, "variant": variant, "fraction": fraction}
                yield from (mean_row(f"filter_out_{metric}", found[metric], **at) for metric in metrics)
    values = view.query_values(scorer, view.options.risk_ks)
    for name, confidence in view.retrieval_confidences(scorer).items():
        order = _by_confidence(confidence, tie_break[is_query.numpy()])
        for fraction in fractions:
            found = _of_most_confident(values, order, fraction)
            at = {"confidence": name, "variant": "query_only", "fraction": fraction}
            yield from (mean_row(f"filter_out_{metric}", found[metric], **at) for metric in JUDGED_BY)


def _mask(count: int, rows: Tensor | None) -> Tensor:
    """Which of some images are among these rows, bool ``[N]``; all if None."""
    if rows is None:
        return torch.ones(count, dtype=torch.bool)
    return torch.zeros(count, dtype=torch.bool).index_fill(0, rows, True)


def _by_confidence(confidence: Tensor, tie_break: np.ndarray) -> Tensor:
    """Positions from the most to the least confident."""
    return torch.from_numpy(np.lexsort((tie_break, -confidence.double().numpy())).copy())


def _of_most_confident(values: Mapping[str, Tensor], order: Tensor, fraction: float) -> dict[str, Tensor]:
    """Values of the queries that are left, in the order of the rows, so that sums do not depend on the confidence.

    Queries without a positive, whose values are nan, are all left: none of them stands for a query that counts.
    """
    lone = values["recall_at_1"][order].isnan()
    counted = order[~lone]
    kept = torch.cat([counted[: round((1.0 - fraction) * len(counted))], order[lone]]).sort().values
    return {metric: each[kept] for metric, each in values.items() if metric in JUDGED_BY}


def _on_subset(view: Embeddings, scorer: str, asked: Tensor, searched: Tensor) -> dict[str, Tensor]:
    """Metrics of the queries that are left, against what is left of the gallery, from the deep ranking of all."""
    deep = view.ranking(scorer)
    rows, left = asked[deep.queries].nonzero().squeeze(1), searched.nonzero().squeeze(1)
    queries = deep.queries[rows]
    if not len(rows) or len(left) < 2:
        return {metric: torch.full((len(rows),), math.nan, dtype=torch.float64) for metric in JUDGED_BY}
    positives = positives_of(view.labels, queries, left, view.kin)
    width = max(1, int(positives.max()))
    blocks, again = [], []
    for block in torch.arange(len(rows)).split(max(1, BLOCK_PLACES // deep.depth)):
        values, good = _compacted(deep, rows[block], searched, positives[block], width)
        blocks.append(values)
        again.append(block[~good & (positives[block] > 0)])
    result = {metric: torch.cat([values[metric] for values in blocks]) for metric in JUDGED_BY}
    missing = torch.cat(again)
    if len(missing):
        depth = max(1, int(positives[missing].max()))
        fresh = per_query(view.rank(scorer, depth, queries=queries[missing], gallery=left))
        for metric in JUDGED_BY:
            result[metric][missing] = fresh[metric]
    return result


def _compacted(
    deep: Ranking, at: Tensor, keep: Tensor, positives: Tensor, width: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Metrics of some rows of a ranking whose neighbours outside ``keep`` are removed, and which of them are right."""
    stored = deep.neighbours[at].long()
    valid = (stored >= 0) & keep[stored.clamp_min(0)]
    count, places = valid.sum(1), deep.depth
    # Kept neighbours first, in their old order and with the numbers of their tie groups; each place behind them is a
    # group of its own.
    target = torch.where(valid, valid.cumsum(1) - 1, places)
    empty = torch.arange(1 << 30, (1 << 30) + places + 1, dtype=torch.int32).repeat(len(at), 1)
    group = empty.scatter_(1, target, deep.group[at])[:, :places]
    relevant = torch.zeros(len(at), places + 1, dtype=torch.bool).scatter_(1, target, deep.relevant[at])[:, :places]
    valid = torch.arange(places) < count[:, None]
    need = positives.clamp_min(1)
    last = group.gather(1, (need - 1).clamp_max(places - 1)[:, None]).squeeze(1)
    exhausted = (deep.neighbours[at, -1] < 0) | (places >= deep.gallery_size)
    cut = (deep.beyond[at] > 0) & (last == deep.group[at, -1])
    none = torch.zeros(len(at), dtype=torch.long)
    values = expected_metrics(Places.of(relevant, group, valid, none, none, width), positives, (1,))
    return values, ((count >= need) | exhausted) & ~cut
