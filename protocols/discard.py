"""Error versus discard characteristic (EDC) of image quality: false non-matches as the worst images are left out.

Two forms are in use for faces. ``threshold_fixed`` (Schlett et al. 2023) discards comparisons at one threshold;
``threshold_refit`` (the evaluation of SER-FIQ, Terhoerst et al. 2020) discards images and chooses the threshold anew
each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from .declare import test
from .embeddings import Embeddings
from .retrieval_confidence import as_vectors
from .rows import Row, row
from .verification import Pairs, pair_scores, verification_pairs

LIMIT = 0.2
"""Largest share that is discarded in a partial area, by default."""

FRACTIONS = tuple(i / 100 for i in range(21))
"""Shares of images that are discarded with a threshold chosen anew, by default."""

SHOWN = (0.0, 0.1, 0.2)
"""Shares discarded at which tables give the error."""


@dataclass(frozen=True, eq=False)
class DiscardCurve:
    """Error versus discard characteristic: a step function of the discarded share, constant from each point on.

    ``discarded`` ascends from 0, float64 ``[K]``; there are no points if there was nothing to discard. ``fnmr`` is the
    share of the remaining pairs of one class whose score is below the threshold; nan if it does not exist.
    """

    discarded: np.ndarray
    fnmr: np.ndarray


NOTHING = DiscardCurve(np.zeros(0), np.zeros(0))
"""Curve without a point: there were no pairs."""


def pair_quality(quality: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Quality of pairs of images, ``[P]``: the smaller of the two, so that discarding pairs is discarding images."""
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
        return NOTHING
    wrong = x < np.quantile(x, start)
    _, group, sizes = np.unique(y, return_inverse=True, return_counts=True)
    discarded = np.cumsum(sizes) - sizes
    errors = np.cumsum(np.bincount(group, weights=wrong)[::-1])[::-1]
    fnmr = errors / (len(x) - discarded)
    return DiscardCurve(np.append(discarded / len(x), 1.0), np.append(fnmr, 0.0))


def discard_threshold_refit(
    scores: Tensor,
    pairs: Pairs,
    quality: Tensor,
    *,
    fractions: Sequence[float] = FRACTIONS,
    false_match_rate: float = 1e-3,
) -> DiscardCurve:
    """Error versus discard characteristic with a threshold chosen anew at each point (Terhoerst et al. 2020, SER-FIQ).

    At each share the images of the lowest quality are discarded, at most this share of them and equal ones together,
    with all their pairs. The threshold is the one of the lowest false non-match rate at which at most
    ``false_match_rate`` of the remaining pairs of different classes match; nan where no pairs of both kinds remain.

    Args:
        scores: Similarity of each pair of images, ``[P]``.
        pairs: The pairs.
        quality: Quality of each image, ``[N]``, higher = better.
        fractions: Shares of the images that are discarded, ascending from 0.
        false_match_rate: Largest share of pairs of different classes that may match.

    Raises:
        ValueError: If a score or a quality is not finite.

    Example:
        >>> pairs = Pairs(torch.tensor([0, 2, 1]), torch.tensor([1, 3, 2]), torch.tensor([True, True, False]))
        >>> curve = discard_threshold_refit(
        ...     torch.tensor([0.2, 0.9, 0.5]), pairs, torch.tensor([1.0, 2.0, 3.0, 4.0]), fractions=(0.0, 0.25))
        >>> curve.fnmr.tolist()
        [0.5, 0.0]
    """
    x, of_images = as_vectors(scores, scores)[0], as_vectors(quality, quality)[0]
    order = np.argsort(-x, kind="stable")  # sorted once, not at each share
    last_of_equal = np.flatnonzero(np.diff(x[order], append=-math.inf))
    of_pair = pair_quality(quality, pairs.left, pairs.right).double().numpy()[order]
    mated = pairs.same.numpy()[order]
    values, sizes = np.unique(of_images, return_counts=True)
    gone = np.cumsum(sizes)
    rates = []
    for fraction in fractions:
        count = int(np.searchsorted(gone, fraction * len(of_images) + 1e-9, side="right"))
        kept = of_pair > (values[count - 1] if count else -math.inf)
        matches, false_matches = (np.cumsum(kept & kind)[last_of_equal] for kind in (mated, ~mated))
        rates.append(_fnmr(matches, false_matches, false_match_rate))
    return DiscardCurve(np.array(fractions), np.array(rates))


def _fnmr(matches: np.ndarray, false_matches: np.ndarray, rate: float) -> float:
    """Lowest false non-match rate at a bounded false match rate; both counted at descending thresholds."""
    if not len(matches) or not matches[-1] or not false_matches[-1]:
        return math.nan
    allowed = false_matches / false_matches[-1] <= rate
    return float(1.0 - matches[allowed].max(initial=0) / matches[-1])


def fnmr_at(curve: DiscardCurve, fraction: float) -> float:
    """False non-match rate of a curve once at most a share in [0, 1] is discarded; nan if the curve has no points."""
    # A billionth more: 0.07 * 100 is a little more than 7.
    reached = int((curve.discarded <= fraction + 1e-9).sum())
    return float(curve.fnmr[reached - 1]) if reached else math.nan


def discard_area(curve: DiscardCurve, limit: float = LIMIT) -> float:
    """Partial area under an error versus discard characteristic minus that of the ideal, lower is better.

    The ideal falls by what is discarded, ``max(0, e - x)`` with the error ``e`` of the start (Schlett et al. 2023). No
    curve of ``threshold_fixed`` is below it. One of ``threshold_refit`` may be: an image that is discarded takes
    several pairs along, and the threshold changes. The area, up to a share ``limit`` in (0, 1], is nan if the curve has
    no points, or none of a known rate in the range.

    Example:
        >>> discard_area(DiscardCurve(np.array([0.0, 0.25]), np.array([0.5, 0.0])), 0.5)
        0.0
    """
    if not 0 < limit <= 1:
        raise ValueError(f"limit must be in (0, 1], not {limit:g}")
    if not len(curve.discarded):
        return math.nan
    x, y = curve.discarded, curve.fnmr
    inside = x < limit
    widths = np.diff(np.append(x[inside], limit))
    ideal = (y[0] ** 2 - max(0.0, y[0] - limit) ** 2) / 2
    return float(widths @ y[inside] - ideal)


@test(group="discard", per="own scorer", needs=("confidences",))
def discard(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Error versus discard characteristic (EDC) of every image confidence, taken as the quality of the image.

    The pairs are those of verification. With ``threshold_fixed``, pairs of one class are discarded, by the smaller of
    their two confidences; with ``threshold_refit``, images are, and the threshold is chosen anew for the false positive
    rate of the options. The metric is ``edc_fnmr``, the false non-match rate once the share ``fraction`` is discarded,
    or ``edc_pauc``, the area up to a share of 0.2 minus that of the ideal (:func:`discard_area`). ``n_queries`` is the
    number of pairs of one class. All values are nan if there are no pairs of both kinds.
    """
    sizes = torch.unique(view.labels, return_counts=True)[1]
    paired = len(sizes) > 1 and int(sizes.max()) > 1
    mates = int(verification_pairs(view).same.sum()) if paired else 0
    for name, confidence in view.confidences.items():
        curves = (
            _curves(view, scorer, confidence) if paired else {"threshold_fixed": NOTHING, "threshold_refit": NOTHING}
        )
        for variant, curve in curves.items():
            made = partial(row, confidence=name, variant=variant, n_queries=mates)
            for fraction in SHOWN:
                yield made("edc_fnmr", fnmr_at(curve, fraction), fraction=fraction)
            yield made("edc_pauc", discard_area(curve))


def _curves(view: Embeddings, scorer: str, confidence: Tensor) -> dict[str, DiscardCurve]:
    """Both forms of the curve, by the names of their variants."""
    pairs, scores = verification_pairs(view), pair_scores(view, scorer)
    mated = pairs.same.nonzero().squeeze(1)
    quality = pair_quality(confidence, pairs.left[mated], pairs.right[mated])
    refit = discard_threshold_refit(scores, pairs, confidence, false_match_rate=view.options.false_positive_rate)
    return {"threshold_fixed": discard_threshold_fixed(scores[mated], quality), "threshold_refit": refit}
