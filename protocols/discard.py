"""Error versus discard characteristic (EDC) of image quality: false non-matches as the worst images are left out.

Two forms are in use for faces. ``threshold_fixed`` (Schlett et al. 2023) discards comparisons at one threshold;
``threshold_refit`` (the evaluation of SER-FIQ, Terhoerst et al. 2020) discards images and chooses the threshold anew
each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .vectors import as_vectors
from .verification import tpr_at_fpr

LIMIT = 0.2
"""Largest share that is discarded in a partial area, by default."""

FRACTIONS = tuple(i / 100 for i in range(21))
"""Shares of images that are discarded with a threshold chosen anew, by default."""


@dataclass(frozen=True, eq=False)
class DiscardCurve:
    """Error versus discard characteristic: a step function of the discarded share, constant from each point on.

    Attributes:
        discarded: Discarded share at each point, ascending from 0, float64 ``[K]``; no points if there was nothing to
            discard.
        fnmr: False non-match rate from there on, float64 ``[K]``: share of the remaining pairs of one class whose score
            is below the threshold. nan if it does not exist.
    """

    discarded: Tensor
    fnmr: Tensor


def pair_quality(quality: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Quality of pairs of images, ``[P]``: the smaller of the two, so that discarding pairs is discarding images.

    Args:
        quality: Quality, or confidence, of each image, ``[N]``.
        left: Position of the first image of each pair, ``[P]``.
        right: Position of the second image, ``[P]``.

    Example:
        >>> pair_quality(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0, 0]), torch.tensor([1, 2])).tolist()
        [1.0, 2.0]
    """
    return torch.minimum(quality[left], quality[right])


def discard_threshold_fixed(scores: Tensor, quality: Tensor, *, start: float = 0.05) -> DiscardCurve:
    """Error versus discard characteristic with one threshold for all points (Schlett et al. 2023, arXiv:2303.13294).

    The threshold is the quantile ``start`` of the scores of all pairs, interpolated linearly, so that about this share
    of them is below it. Then the pairs of the lowest quality are discarded, equal ones together. At the end, all are
    discarded and the error is 0. The definition and the values are those of the authors' public code
    (dasec/quality-assessment-evaluation).

    Args:
        scores: Similarity of each pair of images of one class, ``[P]``.
        quality: Quality of each pair (:func:`pair_quality`), ``[P]``, higher = better.
        start: False non-match rate aimed at before anything is discarded, in [0, 1].

    Raises:
        ValueError: If the vectors do not have one length, or a value is not finite.

    Example:
        >>> curve = discard_threshold_fixed(torch.tensor([0.1, 0.8, 0.9]), torch.tensor([1.0, 2.0, 2.0]), start=0.3)
        >>> curve.fnmr.tolist()
        [0.3333333333333333, 0.0, 0.0]
    """
    x, y = as_vectors(scores, quality)
    if not len(x):
        return DiscardCurve(torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
    wrong = x < np.quantile(x, start)
    _, group, sizes = np.unique(y, return_inverse=True, return_counts=True)
    discarded = np.cumsum(sizes) - sizes
    errors = np.cumsum(np.bincount(group, weights=wrong)[::-1])[::-1]
    fnmr = errors / (len(x) - discarded)
    return DiscardCurve(
        torch.from_numpy(np.append(discarded / len(x), 1.0)),
        torch.from_numpy(np.append(fnmr, 0.0)),
    )


def discard_threshold_refit(
    scores: Tensor,
    same: Tensor,
    left: Tensor,
    right: Tensor,
    quality: Tensor,
    *,
    fractions: Sequence[float] = FRACTIONS,
    false_match_rate: float = 1e-3,
) -> DiscardCurve:
    """Error versus discard characteristic with a threshold chosen anew at each point (Terhoerst et al. 2020, SER-FIQ).

    At each share the images of the lowest quality are discarded, at most this share of them and equal ones together,
    with all their pairs. The threshold is the one of the lowest false non-match rate at which at most
    ``false_match_rate`` of the remaining pairs of different classes match.

    Args:
        scores: Similarity of each pair of images, ``[P]``.
        same: Whether the pair shares a class, bool ``[P]``.
        left: Position of the first image of each pair, ``[P]``.
        right: Position of the second image, ``[P]``.
        quality: Quality of each image, ``[N]``, higher = better.
        fractions: Shares of the images that are discarded, ascending from 0.
        false_match_rate: Largest share of pairs of different classes that may match.

    Returns:
        The curve at these shares; nan where no pairs of both kinds remain.

    Raises:
        ValueError: If a score or a quality is not finite.

    Example:
        >>> curve = discard_threshold_refit(
        ...     torch.tensor([0.2, 0.9, 0.5]), torch.tensor([True, True, False]), torch.tensor([0, 2, 1]),
        ...     torch.tensor([1, 3, 2]), torch.tensor([1.0, 2.0, 3.0, 4.0]), fractions=(0.0, 0.25))
        >>> curve.fnmr.tolist()
        [0.5, 0.0]
    """
    ordered = as_vectors(quality, quality)[0]
    of_pair = pair_quality(quality, left, right).double()
    values, sizes = np.unique(ordered, return_counts=True)
    gone = np.cumsum(sizes)
    rates = []
    for fraction in fractions:
        count = int(np.searchsorted(gone, fraction * len(ordered) + 1e-9, side="right"))
        kept = of_pair > values[count - 1] if count else torch.ones_like(same)
        both = bool(same[kept].any()) and not bool(same[kept].all())
        rates.append(1.0 - tpr_at_fpr(scores[kept], same[kept], false_match_rate) if both else math.nan)
    return DiscardCurve(
        torch.tensor(list(fractions), dtype=torch.float64),
        torch.tensor(rates, dtype=torch.float64),
    )


def discard_area(curve: DiscardCurve, limit: float = LIMIT) -> float:
    """Partial area under an error versus discard characteristic minus that of the ideal, lower is better.

    The ideal falls by what is discarded, ``max(0, e - x)`` with the error ``e`` of the start (Schlett et al. 2023). No
    curve of ``threshold_fixed`` is below it. One of ``threshold_refit`` may be: an image that is discarded takes
    several pairs along, and the threshold changes.

    Args:
        curve: The curve.
        limit: Largest share that is discarded, in (0, 1].

    Returns:
        The difference of the areas; nan if the curve has no points, or none of a known rate in the range.

    Raises:
        ValueError: If the limit is not in (0, 1].

    Example:
        >>> discard_area(DiscardCurve(torch.tensor([0.0, 0.25]), torch.tensor([0.5, 0.0])), 0.5)
        0.0
    """
    if not 0 < limit <= 1:
        raise ValueError(f"limit must be in (0, 1], not {limit:g}")
    if not len(curve.discarded):
        return math.nan
    x, y = curve.discarded.double().numpy(), curve.fnmr.double().numpy()
    inside = x < limit
    widths = np.diff(np.append(x[inside], limit))
    ideal = (y[0] ** 2 - max(0.0, y[0] - limit) ** 2) / 2
    return float(widths @ y[inside] - ideal)
