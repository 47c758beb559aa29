"""Consistency of a threshold over classes: does one threshold accept and reject alike in every class?

The measure is the operating-point-inconsistency score (OPIS) of Zhang et al., "Threshold-Consistent Margin Loss for
Open-World Deep Metric Learning" (ICLR 2024, arXiv:2307.04047).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from .all_pairs import pairs_by_class
from .declare import test
from .embeddings import Embeddings
from .ranking import BLOCK_BYTES, Scorer, require_finite
from .retrieval_confidence import as_vectors, uniform_by_identity
from .rows import Row, row
from .verification import classes_in_random_order, pair_scores, verification_pairs

ACCEPT_RATES = (0.01, 0.1)
"""False accept rates at the ends of the calibration range, by default."""

STEPS = 100
"""Steps of the threshold through the calibration range."""

LIMIT = 1 << 13
"""Largest number of images whose pairs are all scored; of more images, a random part is taken."""

_EACH = 8
"""Images that are taken of a class, if it has as many, before whole classes are left out."""


def calibration_range(scores: Tensor, rates: tuple[float, float] = ACCEPT_RATES) -> tuple[float, float]:
    """Lowest and highest threshold between two false accept rates of all classes together; nan without pairs.

    Thresholds are quantiles of the scores ``[P]`` of pairs of different classes, of which a random sample suffices,
    interpolated linearly. A score that is not finite is a ValueError.
    """
    x, _ = as_vectors(scores, scores)
    if not len(x):
        return math.nan, math.nan
    low, high = np.quantile(x, [1 - max(rates), 1 - min(rates)])
    return float(low), float(high)


def class_rates(
    scorer: Scorer,
    labels: Tensor,
    thresholds: Tensor,
    *,
    images: Tensor | None = None,
    kin: Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> tuple[Tensor, Tensor]:
    """Sensitivity and specificity of every class at T ascending thresholds, float64 ``[C, T]`` each, over all pairs.

    The sensitivity is the share of the pairs of two images of the class that are accepted, having a score at or above
    the threshold; the specificity is the share of its pairs with images of other classes that are rejected. Classes are
    in ascending order. The sensitivity of a class without pairs is nan, and so is the specificity if there is one class
    only. Images of one ``kin`` (:func:`~bench.protocols.ranking.rank`) are no pair.

    Raises:
        ValueError: If a score is not finite.

    Example:
        >>> from .ranking import ScoreMatrix
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> sensitivity, specificity = class_rates(ScoreMatrix(x @ x.T), torch.tensor([0, 0, 1]), torch.tensor([0.5]))
        >>> sensitivity.tolist(), specificity.tolist()
        ([[1.0], [nan]], [[1.0], [1.0]])
    """
    rows, places = torch.arange(len(labels)) if images is None else images, len(thresholds) + 1
    classes, of_images = torch.unique(labels[rows], return_inverse=True)
    label = torch.zeros(len(labels), dtype=torch.long).index_copy(0, rows, of_images)
    kin = torch.arange(len(labels)) if kin is None else kin
    lowest = float(thresholds.min()) if len(thresholds) else math.inf
    counts = torch.zeros(2 * len(classes) * places, dtype=torch.long)
    for block in rows.split(max(1, block_bytes // (40 * max(1, len(rows))))):
        scores = scorer.matrix(block, rows).double().cpu()
        require_finite(scorer, scores, block, rows)
        # Most pairs are of different classes, and few of these are accepted at all.
        left, right = (scores >= lowest).nonzero(as_tuple=True)
        left, right = (ends[kin[block[left]] != kin[rows[right]]] for ends in (left, right))
        # Number of thresholds that accept the pair.
        reached = torch.searchsorted(thresholds.double(), scores[left, right], right=True)
        first, second = label[block[left]], of_images[right]
        cell = ((first != second) * len(classes) + first) * places + reached
        counts += torch.bincount(cell, minlength=len(counts))
    by_class = counts.double().view(2, len(classes), places)
    sizes = torch.bincount(of_images).double()
    within = pairs_by_class(of_images, torch.unique(kin[rows], return_inverse=True)[1], len(classes)).double()
    pairs = torch.stack([within, sizes * (len(rows) - sizes)])
    accepted = by_class.flip(2).cumsum(2).flip(2)[:, :, 1:] / pairs[:, :, None]
    return accepted[0], 1.0 - accepted[1]


def opis(sensitivity: Tensor, specificity: Tensor) -> float:
    """Operating-point-inconsistency score (OPIS, Zhang et al. 2024) in [0, 1/4]: variance of a utility over classes.

    The utility of a class at a threshold is the harmonic mean of its sensitivity and specificity, 0 if both are 0. Its
    squared difference from the mean over classes is integrated over thresholds of equal steps, by trapezoids, and
    divided by their range; the score is the mean of that over classes. Lower is better. It depends on the scale of the
    scores within the range, as the paper's does on its distance. Both rates are ``[C, T]`` (:func:`class_rates`);
    classes with nan are left out, and with fewer than two others the score is nan.

    Example:
        >>> opis(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
        0.25
    """
    a, b = sensitivity.double(), specificity.double()
    total = a + b
    utility = torch.where(total == 0, 0.0, 2 * a * b / total.masked_fill(total == 0, 1.0))
    utility = utility[~utility.isnan().any(1)]
    if len(utility) < 2:
        return math.nan
    spread = (utility - utility.mean(0)).square().mean(0)
    return float(torch.trapezoid(spread) / (len(spread) - 1) if len(spread) > 1 else spread[0])


def sampled_images(labels: Tensor, ids: Sequence[str], seed: int, limit: int = LIMIT) -> Tensor:
    """Positions of at most ``limit`` images, ascending: all of them, or random ones of equally many a class.

    If there are too many classes for eight images of each, random classes are left out. The draws depend on the
    identities, not on the order of the images.
    """
    if len(labels) <= limit:
        return torch.arange(len(labels))
    classes = classes_in_random_order(labels, ids, seed)
    number = torch.zeros(int(labels.max()) + 1, dtype=torch.long)
    number[classes] = torch.arange(len(classes))
    by_draw = uniform_by_identity(ids, seed, "threshold consistency").argsort()
    order = by_draw[number[labels[by_draw]].argsort(stable=True)]
    sizes = torch.bincount(number[labels])
    place = torch.arange(len(order)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    chosen = order[place < max(_EACH, limit // len(classes))]
    # Classes follow one another, so what fits is whole classes and a part of one, which is left out.
    of_class = number[labels[chosen]]
    return chosen[of_class < of_class[limit]].sort().values if len(chosen) > limit else chosen.sort().values


@test(group="threshold_consistency", per="own scorer", clean_only=True)
def threshold_consistency(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Consistency of one threshold over classes (OPIS), for thresholds that accept 1 to 10 % of the negative pairs.

    The range comes from the negative pairs of verification. Rates of the classes are over all pairs of images; of more
    than 8,192 images, over those of a random part (:func:`sampled_images`). ``n_queries`` is the number of images. The
    value is nan if fewer than two classes have two images.
    """
    images = view.once(
        "images of threshold consistency",
        lambda: sampled_images(view.labels, view.ids, view.seed("threshold consistency")),
        shared=True,
    )
    value = math.nan
    sizes = torch.unique(view.labels, return_counts=True)[1]
    if int((sizes > 1).sum()) > 1:
        scores = pair_scores(view, scorer)
        low, high = calibration_range(scores[~verification_pairs(view).same])
        thresholds = torch.linspace(low, high, STEPS + 1, dtype=torch.float64)
        value = opis(*class_rates(view.scorer(scorer), view.labels, thresholds, images=images, kin=view.kin))
    yield row("opis", value, n_queries=len(images))
