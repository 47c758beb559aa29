"""Verification over all pairs of images: the exact true positive rate, and what other classes would give.

A false positive rate of 0.001 rests on very few sampled pairs. All pairs are scored in square tiles, and only the best
negative pairs are kept, so that memory stays bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .ranking import Scorer, bound_of, require_finite, tolerance_of

LIMIT = 20_000
"""Largest number of images whose pairs are all scored: it takes about as long as one more ranking."""

DRAWS = 200
"""Draws of classes behind an interval."""

_KEPT = 1 << 17
"""Least number of negative pairs that are kept if there are as many: 2 MiB."""

_SIDE = 1 << 8
"""Images on a side of a tile."""

_SLACK = 8
"""Negative pairs that are kept, as a multiple of those that may be accepted: draws of classes may reach further."""

_STEP = 1 << 12
"""Least number of negative pairs that a draw looks at together."""


@dataclass(frozen=True)
class _Negatives:
    """The best pairs of different classes, best first: scores and both classes ``[P]``; whether they are all pairs."""

    scores: Tensor
    first: Tensor
    second: Tensor
    complete: bool


def class_draws(classes: int, seed: int, draws: int = DRAWS) -> Tensor:
    """How often each of C classes is drawn, if C are drawn with replacement, int64 ``[draws, C]``."""
    drawn = torch.from_numpy(np.random.default_rng(seed).integers(classes, size=(draws, classes)))
    return torch.zeros(draws, classes, dtype=torch.long).scatter_add_(1, drawn, torch.ones_like(drawn))


def all_pairs_tpr(
    scorer: Scorer,
    labels: Tensor,
    weights: Tensor,
    rate: float,
    *,
    kin: Tensor | None = None,
    kept: int = _KEPT,
    side: int = _SIDE,
) -> Tensor:
    """Largest true positive rate over all pairs of N images at a false positive rate of at most ``rate``, ``[W]``.

    It is given for W weightings of the classes ``[W, C]``, whole numbers: a positive pair counts as often as its class,
    a negative pair as the product of both. Weights of 1 are for the images as they are; the rows of :func:`class_draws`
    are for other classes of the same kind. The value is nan if no positive or no negative pair counts. Scores that are
    equal up to rounding are accepted together.

    Args:
        scorer: Similarity of images, symmetric; images are given by their positions in ``labels``.
        labels: Classes 0 to C - 1, ``[N]``.
        weights: How often each class counts, int64 ``[W, C]``.
        rate: Largest false positive rate, in [0, 1].
        kin: That of :func:`~bench.protocols.ranking.rank`: images of one number are no pair.
        kept: Least number of negative pairs that are kept at first. More are kept if a weighting needs them, which
            takes another pass; neither this nor the next changes a value.
        side: Images on a side of a tile.

    Raises:
        ValueError: If a score is not finite.

    Example:
        >>> from .ranking import ScoreMatrix
        >>> scores = torch.tensor([[9.0, 3.0, 1.0], [3.0, 9.0, 4.0], [1.0, 4.0, 9.0]])
        >>> ones = torch.ones(1, 2, dtype=torch.long)
        >>> [all_pairs_tpr(ScoreMatrix(scores), torch.tensor([0, 0, 1]), ones, rate).item() for rate in (0.1, 0.5)]
        [0.0, 1.0]
    """
    kin = torch.arange(len(labels)) if kin is None else kin
    sizes = torch.bincount(labels, minlength=weights.shape[1])
    # Sorted by class, positives fill few tiles.
    parts = labels.argsort(stable=True).split(side)
    each = weights * sizes
    negatives = (each.sum(1).square() - each.square().sum(1)) // 2
    # A billionth of a pair more: 0.29 * 100 is a little less than 29.
    allowed = (rate * negatives.double() + 1e-9).floor().long()
    total = int((sizes.sum().square() - sizes.square().sum()) // 2)
    keep = max(kept, math.ceil(_SLACK * rate * total))
    cuts = torch.full((len(weights),), math.nan, dtype=torch.float64)
    waiting = (negatives > 0).nonzero().squeeze(1).tolist()
    while waiting:
        best = _best_negatives(scorer, labels, parts, keep)
        for i in waiting:
            cuts[i] = _first_rejected(best, weights[i], int(allowed[i]))
        waiting = [i for i in waiting if cuts[i].isnan()]
        keep *= 4
    accepted = _positives_above(scorer, labels, kin, parts, cuts.nan_to_num(0.0), weights.shape[1])
    positives = (weights * (pairs_by_class(labels, kin, len(sizes)) // 2)).sum(1)
    return ((weights * accepted).sum(1).double() / positives).masked_fill(cuts.isnan(), math.nan)


def pairs_by_class(labels: Tensor, kin: Tensor, classes: int) -> Tensor:
    """Number of pairs of images of each of C classes ``[C]``, those of one ``kin`` left out; each pair twice."""
    left_out = torch.bincount(kin)[kin]
    sizes = torch.bincount(labels, minlength=classes)
    return sizes.square().index_add(0, labels, left_out, alpha=-1)


def _tiles(scorer: Scorer, parts: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows of the images on both sides of each tile, and which of its pairs count: each pair of images once."""
    for number, right in enumerate(parts):  # the scorer keeps what it prepared for the right side
        for left in parts[: number + 1]:
            once = torch.ones(len(left), len(right), dtype=torch.bool)
            yield left, right, once.triu(1) if left is right else once


def _scores(scorer: Scorer, left: Tensor, right: Tensor) -> Tensor:
    scores = scorer.matrix(left, right).double().cpu()
    require_finite(scorer, scores, left, right)
    return scores


def _best_negatives(scorer: Scorer, labels: Tensor, parts: tuple[Tensor, ...], keep: int) -> _Negatives:
    """The ``keep`` best pairs of different classes, any of those that are tied with the last one."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    count, dropped, floor = 0, False, -math.inf

    def best(in_order: bool) -> tuple[Tensor, Tensor, Tensor]:
        scores, first, second = (torch.cat(columns) for columns in zip(*found))
        top = scores.topk(min(keep, len(scores)), sorted=in_order).indices
        return scores[top], first[top], second[top]

    for left, right, once in _tiles(scorer, parts):
        scores, one, other = _scores(scorer, left, right), labels[left].int(), labels[right].int()
        i, j = (once & (one[:, None] != other[None, :]) & (scores > floor)).nonzero(as_tuple=True)
        found.append((scores[i, j], one[i], other[j]))
        count += len(i)
        if count > 2 * keep:
            found = [best(False)]
            count, floor, dropped = keep, float(found[0][0].min()), True
    dropped |= count > keep
    return _Negatives(*best(True), complete=not dropped)


def _first_rejected(best: _Negatives, weights: Tensor, allowed: int) -> float:
    """Score of the first negative pair, best first, at which the weights exceed those allowed.

    Minus infinity if all pairs are allowed; nan if the pairs that were kept do not tell.
    """
    taken, step = 0, max(_STEP, 2 * allowed)
    for start in range(0, len(best.scores), step):
        part = slice(start, start + step)
        total = taken + (weights[best.first[part]] * weights[best.second[part]]).cumsum(0)
        place = int(torch.searchsorted(total, allowed, right=True))
        if place < len(total):
            return float(best.scores[start + place])
        taken = int(total[-1])
    return -math.inf if best.complete else math.nan


def _positives_above(
    scorer: Scorer, labels: Tensor, kin: Tensor, parts: tuple[Tensor, ...], cuts: Tensor, classes: int
) -> Tensor:
    """Number of positive pairs of each class above each score, int64 ``[W, C]``; a tie is not above."""
    bound = bound_of(scorer)
    ascending, place = torch.unique(cuts, return_inverse=True)
    counts = torch.zeros(classes * (len(ascending) + 1), dtype=torch.long)
    for left, right, once in _tiles(scorer, parts):
        one, other = labels[left], labels[right]
        if one[-1] < other[0]:
            continue
        scores = _scores(scorer, left, right)
        counted = (one[:, None] == other[None, :]) & (kin[left, None] != kin[right])
        i, j = (once & counted).nonzero(as_tuple=True)
        found = scores[i, j, None]
        typical = None if bound is not None else scores.abs().median(1).values[i]
        least = found - tolerance_of(bound, left[i], found, right[j, None], typical)
        reached = torch.searchsorted(ascending, least.squeeze(1))
        counts += torch.bincount(one[i] * (len(ascending) + 1) + reached, minlength=len(counts))
    above: Tensor = counts.view(classes, -1).flip(1).cumsum(1).flip(1)[:, 1:]
    return above.mT[place]
