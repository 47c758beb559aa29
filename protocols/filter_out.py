"""Filter-out curves: retrieval as the least confident images are removed.

Two variants: ``query_only`` removes queries and leaves the gallery alone; ``query_and_gallery`` (PER's) removes images
from both, so R and the number of distractors shrink and the curve moves under any order of removal. Read the latter
beside its random control. Confidence ties are broken by a hash of the image's identity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from .embeddings import Row, row
from .retrieval import Ranking, Scorer, _expected, _Places, full_depth, mean_of_counted, per_query, rank

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
    """The best confidence there could be for a metric: each query's own value ``[N]``, lone queries last."""
    return torch.where(values.isnan(), -1.0, values)


def filter_out_rows(
    scorer: Scorer,
    labels: Tensor,
    ids: Sequence[str],
    confidences: Mapping[str, Tensor],
    *,
    oracle: bool = False,
    fractions: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    seed: int = 0,
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

    Yields:
        Rows of ``filter_out_map_at_r`` and ``filter_out_recall_at_1`` with variant and fraction.

    Raises:
        ValueError: If a confidence has the wrong shape or is not finite.

    Example:
        >>> from .retrieval import ScoreMatrix
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> rows = filter_out_rows(ScoreMatrix(x @ x.T), torch.tensor([0, 0, 1, 1]), "abcd",
        ...                        {"method": torch.tensor([4.0, 3.0, 2.0, 1.0])}, fractions=(0.5,))
        >>> [(r["variant"], r["value"]) for r in rows if r["metric"] == "filter_out_recall_at_1"]
        [('query_only', 1.0), ('query_and_gallery', 1.0)]
    """
    count = len(labels)
    deep = rank(scorer, labels, depth=min(4 * full_depth(labels) + 8, count))
    whole = per_query(deep)
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
        for fraction in fractions:
            kept = order[: round((1.0 - fraction) * count)]
            keep = torch.zeros(count, dtype=torch.bool)
            keep[kept] = True
            by_variant = {
                "query_only": {metric: whole[metric][keep] for metric in METRICS},
                "query_and_gallery": _on_subset(scorer, labels, keep, deep),
            }
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


def _on_subset(scorer: Scorer, labels: Tensor, keep: Tensor, deep: Ranking) -> dict[str, Tensor]:
    """Metrics of the kept images against the kept images, from the deep ranking of all."""
    queries = keep.nonzero().squeeze(1)
    if len(queries) < 2:
        return {metric: torch.full((len(queries),), math.nan, dtype=torch.float64) for metric in METRICS}
    _, inverse, counts = torch.unique(labels[queries], return_inverse=True, return_counts=True)
    positives = counts[inverse] - 1
    stored = deep.neighbours[queries]
    valid = (stored >= 0) & keep[stored.clamp_min(0)]
    # Kept neighbours first, in their old order; their tie groups keep their numbers.
    order = (~valid).long().argsort(dim=1, stable=True)
    valid = valid.gather(1, order)
    group = deep.group[queries].gather(1, order)
    relevant = deep.relevant[queries].gather(1, order)
    need = positives.clamp_min(1)
    enough = valid.sum(1) >= need
    at_need = group.gather(1, (need - 1)[:, None]).squeeze(1)
    exhausted = deep.neighbours[queries][:, -1] < 0
    cut = (deep.beyond[queries] > 0) & (at_need == deep.group[queries][:, -1])
    good = (enough | exhausted) & ~cut
    zeros = torch.zeros(len(queries), dtype=torch.long)
    values = _expected(_Places.of(relevant, group, valid, zeros, zeros), positives, (1,))
    again = (~good & (positives > 0)).nonzero().squeeze(1)
    if len(again):
        depth = full_depth(labels[queries])
        fresh = per_query(rank(scorer, labels, depth=depth, queries=queries[again], gallery=queries))
        for metric in METRICS:
            values[metric][again] = fresh[metric]
    return {metric: values[metric] for metric in METRICS}
