"""Consistency of a threshold over classes: does one threshold accept and reject alike in every class?

The measure is the operating-point-inconsistency score (OPIS) of Zhang et al., "Threshold-Consistent Margin Loss for
Open-World Deep Metric Learning" (ICLR 2024, arXiv:2307.04047).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .ranking import BLOCK_BYTES
from .scorers import Scorer
from .vectors import as_vectors

ACCEPT_RATES = (0.01, 0.1)
"""False accept rates at the ends of the calibration range, by default."""


def calibration_range(scores: Tensor, rates: tuple[float, float] = ACCEPT_RATES) -> tuple[float, float]:
    """Range of thresholds, lowest first, between two false accept rates of all classes together.

    Args:
        scores: Similarity of pairs of images of different classes, ``[P]``; a random sample of pairs suffices.
        rates: Shares of these pairs at or above the thresholds, lower share first. Thresholds are quantiles of the
            scores, interpolated linearly.

    Returns:
        Lowest and highest threshold; nan without pairs.

    Raises:
        ValueError: If a score is not finite.

    Example:
        >>> calibration_range(torch.arange(101.0))
        (90.0, 99.0)
    """
    x, _ = as_vectors(scores, scores)
    if not len(x):
        return math.nan, math.nan
    low, high = np.quantile(x, [1 - max(rates), 1 - min(rates)])
    return float(low), float(high)


def class_rates(
    scorer: Scorer, labels: Tensor, thresholds: Tensor, *, block_bytes: int = BLOCK_BYTES
) -> tuple[Tensor, Tensor]:
    """Sensitivity and specificity of every class at some thresholds, over all pairs of an image of the class.

    The sensitivity is the share of the pairs of two images of the class that are accepted, having a score at or above
    the threshold; the specificity is the share of its pairs with images of other classes that are rejected.

    Args:
        scorer: Similarity of images, given by their positions in ``labels``.
        labels: Classes of all images, ``[N]``.
        thresholds: Thresholds, ascending, ``[T]``.
        block_bytes: Memory in bytes for the scores of the images that are compared at a time.

    Returns:
        Sensitivity and specificity, float64 ``[C, T]``, classes in ascending order. The sensitivity of a class of one
        image is nan, and so is the specificity if there is one class only.

    Raises:
        ValueError: If a score is not finite.

    Example:
        >>> from .scorers import ScoreMatrix
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> sensitivity, specificity = class_rates(ScoreMatrix(x @ x.T), torch.tensor([0, 0, 1]), torch.tensor([0.5]))
        >>> sensitivity.tolist(), specificity.tolist()
        ([[1.0], [nan]], [[1.0], [1.0]])
    """
    classes, label = torch.unique(labels, return_inverse=True)
    rows, places = torch.arange(len(labels)), len(thresholds) + 1
    counts = torch.zeros(2, len(classes) * places, dtype=torch.float64)
    for block in rows.split(max(1, block_bytes // (40 * max(1, len(labels))))):
        scores = scorer.matrix(block, rows).double().cpu()
        if not torch.isfinite(scores).all():
            raise ValueError(f"scorer {scorer.name!r} gave scores that are not finite")
        # Number of thresholds that accept the pair.
        reached = torch.searchsorted(thresholds.double(), scores, right=True)
        cell = label[block][:, None] * places + reached
        same = label[block][:, None] == label[None, :]
        for kind, pairs in enumerate((same & (block[:, None] != rows[None, :]), ~same)):
            counts[kind] += torch.bincount(cell[pairs], minlength=counts.shape[1])
    by_class = counts.view(2, len(classes), places)
    accepted = by_class.flip(2).cumsum(2).flip(2)[:, :, 1:] / by_class.sum(2, keepdim=True)
    return accepted[0], 1.0 - accepted[1]


def opis(sensitivity: Tensor, specificity: Tensor) -> float:
    """Operating-point-inconsistency score (OPIS, Zhang et al. 2024): variance of a utility over classes.

    The utility of a class at a threshold is the harmonic mean of its sensitivity and specificity, 0 if both are 0. Its
    squared difference from the mean over classes is integrated over thresholds of equal steps, by trapezoids, and
    divided by their range; the score is the mean of that over classes. Lower is better. It depends on the scale of the
    scores within the range, as the paper's does on its distance.

    Args:
        sensitivity: Sensitivity of each class, ``[C, T]`` (:func:`class_rates`), at thresholds of equal steps, such as
            100 steps through the :func:`calibration_range`.
        specificity: Specificity of each class, ``[C, T]``. Classes with nan in either are left out.

    Returns:
        In [0, 1/4]; nan if fewer than two classes count.

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
