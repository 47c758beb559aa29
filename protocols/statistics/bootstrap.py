"""Bootstrap over queries, classes and seeds, paired between methods."""

from __future__ import annotations

import math
from collections.abc import Callable
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


@dataclass(frozen=True)
class NestedInterval:
    """Mean over seeds and queries, of one method or of a difference, with a 95 % interval over both.

    ``seeds`` and ``classes`` were resampled, and ``queries`` within these.
    """

    mean: float
    ci_low: float
    ci_high: float
    seeds: int
    classes: int
    queries: int


def nested_bootstrap(
    values: np.ndarray,
    classes: np.ndarray,
    other: np.ndarray | None = None,
    *,
    widen: bool = True,
    resamples: int = 2000,
    seed: int = 0,
) -> NestedInterval:
    """Bootstrap of a mean over seeds, classes and queries at once: an interval for new trainings and new classes.

    Seeds are drawn with replacement, and so are classes and, within each drawn class, its queries. All drawn seeds are
    judged on the same drawn queries, as all trained models are on the same test images (pigeonhole bootstrap, Owen
    2007): drawing new classes for each seed would average the classes' luck away.

    The percentile interval of five seeds is too narrow. So its two sides are widened by one factor: a t quantile, with
    the degrees of freedom of Satterthwaite (1946) for both sources of variance, in place of a normal one, and n - 1 in
    place of n in their variances. The aim is that of the expanded percentile interval of Hesterberg (2015).

    Args:
        values: Values of Q queries at S seeds, ``[S, Q]``; S of at least 2.
        classes: Class of each query, ``[Q]`` integers, two classes or more.
        other: Values of a second method for the same seeds and queries, ``[S, Q]``, to get an interval of the
            difference ``values - other``; None for the mean of ``values``.
        widen: Whether to widen the percentile interval for few seeds and classes.
        resamples: Number of draws.
        seed: Seed of the draws.

    Raises:
        ValueError: If shapes do not fit, there are fewer than two seeds or classes, or a value is not finite.

    Example:
        >>> quality = np.array([[0.5, 0.7, 0.4, 0.8], [0.6, 0.7, 0.5, 0.8]])
        >>> found = nested_bootstrap(quality, np.array([0, 0, 1, 1]), quality - 0.25)
        >>> round(found.mean, 3), round(found.ci_low, 3), found.seeds, found.classes
        (0.25, 0.25, 2, 2)
    """
    if values.ndim != 2 or classes.shape != values.shape[1:] or (other is not None and other.shape != values.shape):
        raise ValueError("expected values of seeds by queries [S, Q], of both methods, and a class per query [Q]")
    table = values.astype(np.float64) - (0.0 if other is None else other)
    if not np.isfinite(table).all():
        raise ValueError("values must be finite; leave lone queries out")

    def means(weights: np.ndarray) -> np.ndarray:
        drawn: np.ndarray = weights @ table.T / weights.sum(1, keepdims=True)
        return drawn

    return nested_bootstrap_of(means, classes, widen=widen, resamples=resamples, seed=seed)


Statistic = Callable[[np.ndarray], np.ndarray]
"""Values of a statistic at S seeds, ``[B, S]``, for B rows of weights of the queries, ``[B, Q]``; nan for none."""


def nested_bootstrap_of(
    statistic: Statistic, classes: np.ndarray, *, widen: bool = True, resamples: int = 2000, seed: int = 0
) -> NestedInterval:
    """The same bootstrap (:func:`nested_bootstrap`) of any statistic of weighted queries, such as an AUROC.

    It is computed anew from the queries of every draw; draws in which it has no value are left out.

    Raises:
        ValueError: If there are fewer than two seeds or classes.
    """
    place = np.unique(classes, return_inverse=True)[1]
    count = int(place.max(initial=-1)) + 1
    of_seeds = statistic(np.ones((1, len(place))))[0]
    seeds = len(of_seeds)
    if seeds < 2 or count < 2:
        raise ValueError(f"needs two seeds and two classes or more, got {seeds} and {count}")
    generator = np.random.default_rng(seed)
    by_seed = _of_drawn_queries(statistic, seeds, place, resamples, generator)
    times = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    whole = np.isfinite(by_seed).all(1)
    by_seed, drawn = by_seed[whole], (times * by_seed).sum(1)[whole] / seeds
    mean = float(of_seeds.mean())
    low, high = np.percentile(drawn, [2.5, 97.5]) if len(drawn) else (np.nan, np.nan)
    if widen and len(drawn):
        factor = _widening(of_seeds, float(by_seed.mean(1).var()), count, float(drawn.var()))
        low, high = mean - factor * (mean - low), mean + factor * (high - mean)
    return NestedInterval(mean, float(low), float(high), seeds, count, len(place))


def auroc_and_augrc(confidence: np.ndarray, right: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AUROC of telling right from wrong answers, and AUGRC (Traub et al. 2024), for every row of weights, ``[B]`` each.

    A weight is the number of times that a query was drawn; equal confidences count by the expectation over their
    orders. The AUROC is nan if all answers are right or all wrong.

    Args:
        confidence: Confidences of Q queries, ``[Q]``.
        right: Recall@1 of the queries, ``[Q]`` in [0, 1].
        weights: Weights of the queries, ``[B, Q]``.

    Example:
        >>> found = auroc_and_augrc(np.array([3.0, 2.0, 1.0]), np.array([1.0, 1.0, 0.0]), np.ones((1, 3)))
        >>> [float(value[0].round(3)) for value in found]
        [1.0, 0.056]
    """
    order = np.argsort(confidence, kind="stable")
    last = np.append(np.diff(confidence[order]) > 0, True)
    wins, losses = (np.cumsum(weights[:, order] * part, 1)[:, last] for part in (right[order], 1.0 - right[order]))
    below = losses - np.diff(losses, axis=1, prepend=0.0) / 2
    area = (np.diff(wins, axis=1, prepend=0.0) * below).sum(1)
    won, lost = wins[:, -1], losses[:, -1]
    pairs = won * lost
    auroc = np.divide(area, pairs, out=np.full(len(area), np.nan), where=pairs > 0)
    return auroc, (pairs - area + lost**2 / 2) / (won + lost) ** 2


def _of_drawn_queries(
    statistic: Statistic, seeds: int, place: np.ndarray, resamples: int, generator: np.random.Generator
) -> np.ndarray:
    """Statistic of each seed on drawn classes and, within these, drawn queries: ``[resamples, S]``."""
    sizes = np.bincount(place)
    order = np.argsort(place, kind="stable")
    members = np.split(order, np.cumsum(sizes)[:-1])
    found = np.empty((resamples, seeds))
    at_once = max(1, 2_000_000 // len(place))
    for start in range(0, resamples, at_once):
        part = found[start : start + at_once]
        times = generator.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=len(part))
        weights = np.empty((len(part), len(place)))
        for size in np.unique(sizes):
            # A class that was drawn twice draws twice its number of queries.
            alike = np.flatnonzero(sizes == size)
            queries = np.concatenate([members[one] for one in alike])
            drawn = generator.multinomial(times[:, alike] * size, np.full(size, 1 / size))
            weights[:, queries] = drawn.reshape(len(part), -1)
        part[:] = statistic(weights)
    return found


def _widening(means: np.ndarray, between_draws: float, classes: int, spread: float) -> float:
    """Factor on the sides of a percentile interval, from the means of seeds and the variances of draws."""
    from scipy import special  # late: half a second to import

    seeds = len(means)
    of_seeds, of_queries = float(means.var(ddof=1)) / seeds, between_draws * classes / (classes - 1)
    total = of_seeds + of_queries
    if not total or not spread:
        return 1.0
    freedom = total**2 / (of_seeds**2 / (seeds - 1) + of_queries**2 / (classes - 1))
    quantile = special.stdtrit(freedom, 0.975) / special.ndtri(0.975)
    return float(quantile * math.sqrt(total / spread))
