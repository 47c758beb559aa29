"""Filter-out curves: retrieval as the least confident images are removed.

Two variants: ``query_only`` removes queries and leaves the gallery alone; ``query_and_gallery`` (PER's) removes images
from both, so R and the number of distractors shrink and the curve moves under any order of removal. Read the latter
beside its random control. Confidence ties are broken by a hash of the image's identity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from .embeddings import Row, row
from .retrieval import (
    BLOCK_PLACES,
    Ranking,
    Scorer,
    _expected,
    _Places,
    full_depth,
    mean_of_counted,
    per_query,
    rank,
)

METRICS = ("map_at_r", "recall_at_1")


def _uniform(ids: Sequence[str], seed: int, purpose: str) -> Tensor:
    """Uniform numbers in [0, 1), one per identity."""
    keys = [blake2b(f"{purpose}|{seed}|{name}".encode(), digest_size=8).digest() for name in ids]
    return torch.tensor([int.from_bytes(key, "big") >> 11 for key in keys], dtype=torch.float64) * 2.0**-53


def random_confidence(ids: Sequence[str], seed: int) -> Tensor:
    """A confidence that knows nothing, ``[N]``: the control of every curve.

    Example:
        >>> a = random_confidence(["x", "y"], seed=0)
        >>> bool((a == random_confidence(["y", "x"], seed=0).flip(0)).all())
        True
    """
    return _uniform(ids, seed, "random confidence")


def oracle_confidence(values: Tensor) -> Tensor:
    """The best confidence there could be for a metric: each query's own value ``[N]``, lone queries last.

    Example:
        >>> oracle_confidence(torch.tensor([0.5, float("nan")])).tolist()
        [0.5, -1.0]
    """
    return torch.where(values.isnan(), -1.0, values)


def filter_depth(labels: Tensor) -> int:
    """Places of a ranking in which most queries find their R neighbours again after any removal.

    Twice the largest R for small classes, where chance alone may remove most neighbours; for large ones half of R more,
    which bounds the memory. Queries that need more are ranked anew, so it changes no value.

    Example:
        >>> filter_depth(torch.arange(6) // 3), filter_depth(torch.arange(1000) // 500)
        (12, 876)
    """
    most = full_depth(labels)
    return min(2 * most + 8, most + most // 2 + 128)


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
    ranking: Ranking | None = None,
) -> Iterator[Row]:
    """Filter-out curves of MAP@R and Recall@1 for some confidences.

    The gallery is ranked once, deep enough that most queries find their neighbours again after any removal; the
    others are ranked anew against what is left, so every value is exact.

    Args:
        scorer: Similarity of rows.
        labels: Classes ``[N]``.
        ids: Identities of the N images.
        confidences: Confidences ``[N]`` by name.
        oracle: Add the control ``oracle``: for each metric, the order by the queries' own values of it.
        fractions: Shares removed, in [0, 1).
        seed: Of the order among equal confidences.
        queries: Rows that are queries; all if not given. ``query_only`` then removes a share of these.
        gallery: Rows that are searched; all if not given. Then ``oracle`` has no ``query_and_gallery`` curve: a gallery
            image has no value of a metric to be ordered by.
        ranking: Ranking by this scorer of these queries, in ascending order, and this gallery, if there is one
            already; best of :func:`filter_depth` places.

    Yields:
        Rows of ``filter_out_map_at_r`` and ``filter_out_recall_at_1`` with variant and fraction.

    Raises:
        ValueError: If a confidence has the wrong shape or is not finite, or the ranking is of other queries.

    Example:
        >>> from .retrieval import ScoreMatrix
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> rows = filter_out_rows(ScoreMatrix(x @ x.T), torch.tensor([0, 0, 1, 1]), "abcd",
        ...                        {"method": torch.tensor([4.0, 3.0, 2.0, 1.0])}, fractions=(0.5,))
        >>> [(r["variant"], r["value"]) for r in rows if r["metric"] == "filter_out_recall_at_1"]
        [('query_only', 1.0), ('query_and_gallery', 1.0)]
    """
    count = len(labels)
    roles = _Roles.of(count, queries, gallery)
    deep = ranking
    if deep is None:
        depth = min(filter_depth(labels), len(roles.gallery))
        deep = rank(scorer, labels, depth=depth, queries=roles.queries, gallery=roles.gallery)
    elif not torch.equal(deep.queries, roles.queries):
        raise ValueError("the ranking is not of these queries in ascending order")
    whole = {
        metric: torch.full((count,), math.nan, dtype=torch.float64).index_copy(0, roles.queries, values)
        for metric, values in per_query(deep).items()
    }
    tie_break = _uniform(ids, seed, "confidence ties").numpy()
    jobs: list[tuple[str, Tensor, tuple[str, ...]]] = [
        (name, confidence, METRICS) for name, confidence in confidences.items()
    ]
    if oracle:
        jobs += [("oracle", oracle_confidence(whole[metric]), (metric,)) for metric in METRICS]
    for name, confidence, metrics in jobs:
        if confidence.shape != (count,) or not torch.isfinite(confidence).all():
            raise ValueError(f"confidence {name!r} must be {count} finite values")
        order = torch.from_numpy(np.lexsort((tie_break, -confidence.double().numpy())).copy())
        query_order = order[roles.is_query[order]]
        for fraction in fractions:
            kept = query_order[: round((1.0 - fraction) * len(query_order))]
            keep = torch.zeros(count, dtype=torch.bool)
            keep[order[: round((1.0 - fraction) * count)]] = True
            # In the order of the rows, so that sums do not depend on the confidence.
            by_variant = {"query_only": {metric: whole[metric][kept.sort().values] for metric in METRICS}}
            if name != "oracle" or roles.everything:
                by_variant["query_and_gallery"] = _on_subset(scorer, labels, keep, deep, roles)
            for variant, values in by_variant.items():
                for metric in metrics:
                    lone = int(values[metric].isnan().sum())
                    yield row(
                        f"filter_out_{metric}",
                        mean_of_counted(values[metric]),
                        scorer=scorer.name,
                        confidence=name,
                        variant=variant,
                        fraction=fraction,
                        n_queries=len(values[metric]) - lone,
                        n_lone=lone,
                    )


@dataclass(frozen=True)
class _Roles:
    """Which rows are queries and which are searched."""

    queries: Tensor
    gallery: Tensor
    is_query: Tensor
    is_gallery: Tensor
    position: Tensor
    """Place of each row among the queries."""
    everything: bool
    """Whether every row is both."""

    @classmethod
    def of(cls, count: int, queries: Tensor | None, gallery: Tensor | None) -> _Roles:
        rows = torch.arange(count)
        masks = []
        for chosen in (queries, gallery):
            mask = torch.ones(count, dtype=torch.bool)
            if chosen is not None:
                mask.zero_()[chosen] = True
            masks.append(mask)
        q, g = rows[masks[0]], rows[masks[1]]
        position = torch.zeros(count, dtype=torch.long)
        position[q] = torch.arange(len(q))
        return cls(q, g, masks[0], masks[1], position, len(q) == len(g) == count)


def _on_subset(scorer: Scorer, labels: Tensor, keep: Tensor, deep: Ranking, roles: _Roles) -> dict[str, Tensor]:
    """Metrics of the kept queries against the kept gallery, from the deep ranking of all."""
    queries = (keep & roles.is_query).nonzero().squeeze(1)
    searched = keep & roles.is_gallery
    if len(queries) < 1 or int(searched.sum()) < 2:
        return {metric: torch.full((len(queries),), math.nan, dtype=torch.float64) for metric in METRICS}
    counts = torch.bincount(labels[searched], minlength=int(labels.max()) + 1)
    positives = counts[labels[queries]] - searched[queries].long()
    width = max(1, int(positives.max()))
    parts, again = [], []
    for part in torch.arange(len(queries)).split(max(1, BLOCK_PLACES // deep.depth)):
        values, good = _compacted(deep, roles.position[queries[part]], keep, positives[part], width)
        parts.append(values)
        again.append(part[~good & (positives[part] > 0)])
    result = {metric: torch.cat([values[metric] for values in parts]) for metric in METRICS}
    anew = torch.cat(again)
    if len(anew):
        left = searched.nonzero().squeeze(1)
        depth = max(1, int(positives[anew].max()))
        fresh = per_query(rank(scorer, labels, depth=depth, queries=queries[anew], gallery=left))
        for metric in METRICS:
            result[metric][anew] = fresh[metric]
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
    values = _expected(_Places.of(relevant, group, valid, none, none, width), positives, (1,))
    return values, ((count >= need) | exhausted) & ~cut
