"""Bootstrap over queries or classes, paired between methods."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

FEW = 100
"""Number of resampled units below which a percentile interval is not called one of 95 %; from there on, it was
measured to cover at least 93 %."""


@dataclass(frozen=True)
class Interval:
    """Mean of a metric over queries for a first method minus that for a second, with its 95 % percentile interval.

    ``units`` is the number of queries, or of groups of queries, that were resampled.
    """

    difference: float
    ci_low: float
    ci_high: float
    units: int


def paired_bootstrap(
    a: np.ndarray, b: np.ndarray, groups: np.ndarray | None = None, *, resamples: int = 2000, seed: int = 0
) -> list[Interval]:
    """Bootstrap of ``mean(a) - mean(b)`` over paired values of queries, by metric (Efron 1979, percentile interval).

    Queries are drawn with replacement, the same ones for both methods and for every metric. With ``groups``, whole
    groups are drawn instead (classes, say): queries of one class rise and fall together, and intervals that treat them
    as independent are too narrow for a statement about other classes.

    Args:
        a: Values of M metrics of the first method for every query, ``[Q, M]``.
        b: Values of the second method for the same queries and metrics, ``[Q, M]``.
        groups: Group of each query, ``[Q]`` integers; None makes each query a group of its own.
        resamples: Number of draws.
        seed: Seed of the draws.

    Raises:
        ValueError: If shapes differ, there is no query, or a value is not finite.

    Example:
        >>> paired_bootstrap(np.full((4, 1), 0.75), np.full((4, 1), 0.5))
        [Interval(difference=0.25, ci_low=0.25, ci_high=0.25, units=4)]
    """
    if a.shape != b.shape or a.ndim != 2 or not len(a):
        raise ValueError(f"expected two arrays [Q, M] of one shape with Q > 0, got {a.shape} and {b.shape}")
    difference = a.astype(np.float64) - b
    if not np.isfinite(difference).all():
        raise ValueError("values must be finite; leave lone queries out")
    place = np.arange(len(a)) if groups is None else np.unique(groups, return_inverse=True)[1]
    low, high = ratio_intervals(difference, np.ones((len(a), 1)), place, resamples=resamples, seed=seed)
    mean = [math.fsum(column) / len(a) for column in difference.T]
    return [Interval(m, float(lo), float(hi), int(place.max()) + 1) for m, lo, hi in zip(mean, low, high)]


def ratio_intervals(
    top: np.ndarray,
    bottom: np.ndarray,
    groups: np.ndarray,
    others: np.ndarray | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of 95 % percentile intervals of M ratios of sums, ``[M]`` each, by draws of whole groups.

    Draws in which the sum below is 0 are left out; the ends are nan if none is left.

    Args:
        top: What is summed above the line, ``[Q, M]``.
        bottom: What is summed below the line, ``[Q, M]`` or ``[Q, 1]``.
        groups: Number of the group of each row, ``[Q]``, from 0.
        others: Group of the other image of each row, if rows are pairs: a pair of two groups counts as often as the
            product of their draws (the pigeonhole bootstrap of Owen 2007), one of the same group as often as that.
        resamples: Number of draws.
        seed: Seed of the draws.
    """
    units = int(groups.max() if others is None else max(groups.max(), others.max())) + 1
    if others is None:
        top, bottom = (np.stack([np.bincount(groups, c, minlength=units) for c in x.T], 1) for x in (top, bottom))
    generator = np.random.default_rng(seed)
    drawn = np.empty((resamples, top.shape[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        for i in range(resamples):
            times = np.bincount(generator.integers(units, size=units), minlength=units)
            if others is not None:
                times = np.where(groups == others, times[groups], times[groups] * times[others])
            drawn[i] = times @ top / (times @ bottom)
    kept = [column[np.isfinite(column)] for column in drawn.T]
    ends = [np.percentile(column, [2.5, 97.5]) if len(column) else (math.nan, math.nan) for column in kept]
    low, high = np.array(ends).T
    return low, high
