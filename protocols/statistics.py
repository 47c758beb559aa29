"""Statistics of few seeds: mean, standard deviation, t-interval, paired differences, paired bootstrap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Mean of a metric, or of a difference of two methods, over several seeds, with its spread.

    The spread, ``sd``, ``ci_low`` and ``ci_high``, is nan for a single seed.

    Attributes:
        mean: Mean.
        sd: Standard deviation (denominator n - 1).
        ci_low: Lower end of the 95 % t-interval of the mean.
        ci_high: Upper end.
        n: Number of seeds.
    """

    mean: float
    sd: float
    ci_low: float
    ci_high: float
    n: int


def summarise(values: Sequence[float]) -> Summary:
    """Mean, standard deviation and 95 % t-interval of a metric over the seeds of one setting.

    Args:
        values: Value of the metric for each seed.

    Raises:
        ValueError: If there is no value.

    Example:
        >>> s = summarise([1.0, 2.0, 3.0])
        >>> (s.mean, s.sd, round(s.ci_low, 3), s.n)
        (2.0, 1.0, -0.484, 3)
    """
    n = len(values)
    if n == 0:
        raise ValueError("no values to summarise")
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(mean, math.nan, math.nan, math.nan, 1)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    from scipy import stats  # late: a second to import

    half = float(stats.t.ppf(0.975, n - 1)) * sd / math.sqrt(n)
    return Summary(mean, sd, mean - half, mean + half, n)


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Summary:
    """Mean, standard deviation and 95 % t-interval of ``a - b`` over the seeds that both methods have.

    Args:
        a: Values of a metric for the first method, by seed.
        b: Values of the metric for the second method, by seed.

    Raises:
        ValueError: If they share no seed.

    Example:
        >>> paired_difference({0: 1.0, 1: 2.0, 9: 0.0}, {0: 0.5, 1: 1.5}).mean
        0.5
    """
    return summarise([a[seed] - b[seed] for seed in sorted(set(a) & set(b))])


@dataclass(frozen=True)
class Interval:
    """Mean of a metric over queries for a first method minus that for a second, with a bootstrap interval.

    Attributes:
        difference: Mean over queries of the first method's values minus that of the second method's.
        ci_low: Lower end of the 95 % percentile interval of the difference.
        ci_high: Upper end.
        units: Number of queries, or of groups of queries, that were resampled.
    """

    difference: float
    ci_low: float
    ci_high: float
    units: int


def paired_bootstrap(
    a: np.ndarray, b: np.ndarray, groups: np.ndarray | None = None, *, resamples: int = 2000, seed: int = 0
) -> list[Interval]:
    """Bootstrap of ``mean(a) - mean(b)`` over paired values of queries (Efron 1979, percentile interval).

    Queries are drawn with replacement, the same ones for both methods and for every metric. With ``groups``, whole
    groups are drawn instead (classes, say): queries of one class rise and fall together, and intervals that treat them
    as independent are too narrow for a statement about other classes.

    Args:
        a: Values of M metrics of the first method for every query, ``[Q, M]``.
        b: Values of the second method for the same queries and metrics, ``[Q, M]``.
        groups: Group of each query, ``[Q]`` integers; None makes each query a group of its own.
        resamples: Number of draws.
        seed: Seed of the draws.

    Returns:
        For each metric, the difference ``mean(a) - mean(b)`` over queries and its 95 % interval.

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
