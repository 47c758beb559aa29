"""Filter-out curves: retrieval as the least confident images are removed.

Two variants: ``query_only`` removes queries and leaves the gallery alone; ``query_and_gallery`` (PER's) removes images
from both, so R and the number of distractors shrink and the curve moves under any order of removal. Compare the latter
with its random control. ``query_only`` removes a share of the queries that have a positive: the others count nowhere.
Confidence ties are broken by a hash of the image's identity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from .declare import test
from .embeddings import Embeddings
from .query_metrics import Places, expected_metrics, mean_row, per_query
from .ranking import BLOCK_PLACES, Ranking, Scorer, filter_depth, positives_of, rank
from .retrieval_confidence import JUDGED_BY, oracle_confidence, uniform_by_identity
from .rows import Row


def filter_out_rows(
    scorer: Scorer,
    labels: Tensor,
    ids: Sequence[str],
    confidences: Mapping[str, Tensor],
    *,
    oracle: bool = False,
    fractions: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    seed: int = 0,
    queries: Tensor | None = None,
    gallery: Tensor | None = None,
    kin: Tensor | None = None,
    ranking: Ranking | None = None,
) -> Iterator[Row]:
    """Filter-out curves of each confidence: MAP@R and Recall@1 as the least confident images are removed.

    There are two curves: ``query_only`` removes queries and leaves the gallery alone; ``query_and_gallery`` removes
    images from both. The gallery is ranked once, deep enough to serve most queries after any removal; the other queries
    are ranked again against what is left, so every value is exact. Positions of images are those in ``labels``;
    ``kin`` is that of :func:`~bench.protocols.ranking.rank`.

    ``oracle`` adds the best possible confidence: each query's own value of the metric. Unless every image is query and
    gallery, it has no ``query_and_gallery`` curve, which needs the metric's value for every image. Shares removed are
    in [0, 1); ``seed`` orders images of equal confidence. A ranking that is given is by this scorer, of these queries
    in ascending order, and should have :func:`~bench.protocols.ranking.filter_depth` places per query.

    Raises:
        ValueError: If a confidence has the wrong shape or is not finite, or the ranking is of other queries.

    Example:
        >>> from .ranking import ScoreMatrix
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> rows = filter_out_rows(ScoreMatrix(x @ x.T), torch.tensor([0, 0, 1, 1]), "abcd",
        ...                        {"method": torch.tensor([4.0, 3.0, 2.0, 1.0])}, fractions=(0.5,))
        >>> [(r["variant"], r["value"]) for r in rows if r["metric"] == "filter_out_recall_at_1"]
        [('query_only', 1.0), ('query_and_gallery', 1.0)]
    """
    count = len(labels)
    is_query, searched = _mask(count, queries), _mask(count, gallery)
    asked, left = (mask.nonzero().squeeze(1) for mask in (is_query, searched))
    if ranking is None:
        depth = min(filter_depth(labels), len(left))
        ranking = rank(scorer, labels, depth=depth, queries=asked, gallery=left, kin=kin)
    if not torch.equal(ranking.queries, asked):
        raise ValueError("the ranking is not of these queries in ascending order")
    values = per_query(ranking)
    jobs: list[tuple[str, Tensor, tuple[str, ...]]] = [
        (name, confidence, JUDGED_BY) for name, confidence in confidences.items()
    ]
    for metric in JUDGED_BY if oracle else ():
        best = torch.full((count,), -1.0, dtype=torch.float64)
        jobs.append(("oracle", best.index_copy(0, asked, oracle_confidence(values[metric])), (metric,)))
    both_removed = bool(is_query.all() and searched.all())
    tie_break = uniform_by_identity(ids, seed, "confidence ties").numpy()
    for name, confidence, metrics in jobs:
        if confidence.shape != (count,) or not torch.isfinite(confidence).all():
            raise ValueError(f"confidence {name!r} must be {count} finite values")
        order = _by_confidence(confidence, tie_break)
        of_queries = (is_query.cumsum(0) - 1)[order[is_query[order]]]
        for fraction in fractions:
            by_variant = {"query_only": _of_most_confident(values, of_queries, fraction)}
            if name != "oracle" or both_removed:
                kept = _mask(count, order[: round((1.0 - fraction) * count)])
                by_variant["query_and_gallery"] = _on_subset(
                    scorer, labels, ranking, kept & is_query, kept & searched, kin
                )
            for variant, found in by_variant.items():
                for metric in metrics:
                    yield _point(metric, found[metric], scorer.name, name, variant, fraction)


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


def _point(metric: str, values: Tensor, scorer: str, confidence: str, variant: str, fraction: float) -> Row:
    """One point of a curve, from the values of the kept queries."""
    at = {"scorer": scorer, "confidence": confidence, "variant": variant, "fraction": fraction}
    return mean_row(f"filter_out_{metric}", values, **at)


def _on_subset(
    scorer: Scorer, labels: Tensor, deep: Ranking, asked: Tensor, searched: Tensor, kin: Tensor | None
) -> dict[str, Tensor]:
    """Metrics of the queries that are left, against what is left of the gallery, from the deep ranking of all."""
    rows, left = asked[deep.queries].nonzero().squeeze(1), searched.nonzero().squeeze(1)
    queries = deep.queries[rows]
    if not len(rows) or len(left) < 2:
        return {metric: torch.full((len(rows),), math.nan, dtype=torch.float64) for metric in JUDGED_BY}
    positives = positives_of(labels, queries, left, kin)
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
        fresh = per_query(rank(scorer, labels, depth=depth, queries=queries[missing], gallery=left, kin=kin))
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


def query_filter_out_rows(
    scorer: str,
    values: Mapping[str, Tensor],
    ids: Sequence[str],
    confidences: Mapping[str, Tensor],
    *,
    fractions: Sequence[float],
    seed: int = 0,
) -> Iterator[Row]:
    """Filter-out curves ``query_only`` of confidences that queries alone have: the gallery is left alone.

    ``values`` has MAP@R and Recall@1 of every query, ``confidences`` any number of confidences, each ``[Q]``.

    Example:
        >>> values = {"map_at_r": torch.tensor([0.5, 1.0]), "recall_at_1": torch.tensor([0.0, 1.0])}
        >>> margin = {"margin": torch.tensor([0.1, 0.3])}
        >>> rows = query_filter_out_rows("cosine", values, "ab", margin, fractions=(0.0, 0.5))
        >>> [(r["metric"], r["fraction"], r["value"]) for r in rows][1:3]
        [('filter_out_recall_at_1', 0.0, 0.5), ('filter_out_map_at_r', 0.5, 1.0)]
    """
    tie_break = uniform_by_identity(ids, seed, "confidence ties").numpy()
    for name, confidence in confidences.items():
        order = _by_confidence(confidence, tie_break)
        for fraction in fractions:
            kept = _of_most_confident(values, order, fraction)
            for metric in JUDGED_BY:
                yield _point(metric, kept[metric], scorer, name, "query_only", fraction)


@test(group="filter_out", per="own scorer", needs=("confidences",), version=4)
def filter_out(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Filter-out curves of confidences: MAP@R and Recall@1 as the least confident images are removed.

    Those of the training data and of views have none (:data:`~bench.protocols.rows.UNDRAWN`).
    Two confidences serve for comparison: a random one and the oracle, the best possible one, which is each query's own
    value of the metric. Retrieval confidences, which the ranking itself gives, belong to queries: they remove queries
    alone. The variant is ``query_only``, or ``query_and_gallery`` if gallery images are removed too.
    """
    if not view.options.filter_fractions:
        return
    yield from filter_out_rows(
        view.scorer(scorer),
        view.labels,
        view.ids,
        view.drawn_confidences(),
        oracle=True,
        fractions=view.options.filter_fractions,
        seed=view.seed("confidence ties"),
        queries=view.queries,
        gallery=view.gallery,
        kin=view.kin,
        ranking=view.ranking(scorer),
    )
    ids = view.ids if view.queries is None else [view.ids[i] for i in view.queries.tolist()]
    yield from query_filter_out_rows(
        scorer,
        view.query_values(scorer, view.options.risk_ks),
        ids,
        view.retrieval_confidences(scorer),
        fractions=view.options.filter_fractions,
        seed=view.seed("confidence ties"),
    )
