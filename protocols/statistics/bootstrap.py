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
    units = int(place.max()) + 1
    sums = np.stack([np.bincount(place, column, minlength=units) for column in difference.T], 1)
    sizes = np.bincount(place, minlength=units)
    generator = np.random.default_rng(seed)
    drawn = np.empty((resamples, difference.shape[1]))
    for i in range(resamples):
        times = np.bincount(generator.integers(units, size=units), minlength=units)
        drawn[i] = times @ sums / (times @ sizes)
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    mean = [math.fsum(column) / len(a) for column in difference.T]
    return [Interval(m, float(lo), float(hi), units) for m, lo, hi in zip(mean, low, high)]
