"""Paired differences over seeds: summaries, tests, Holm's correction, verdicts, and the seeds that they need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Mean of a metric, or of a difference of two methods, over n seeds, with its spread.

    The spread, the standard deviation ``sd`` (denominator n - 1) and the 95 % t-interval from ``ci_low`` to
    ``ci_high``, is nan for a single seed.
    """

    mean: float
    sd: float
    ci_low: float
    ci_high: float
    n: int


def summarise(values: Sequence[float]) -> Summary:
    """Mean, standard deviation and 95 % t-interval of a metric over seeds; a ValueError without values.

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
    from scipy.special import stdtrit  # late; scipy.stats.t.ppf calls it, and checks more

    half = float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n)
    return Summary(mean, sd, mean - half, mean + half, n)


def summarise_splits(values: Sequence[float], test_over_train: float) -> Summary:
    """Mean, standard deviation and 95 % t-interval of a metric over J class splits (Nadeau and Bengio 2003).

    Splits share classes, so their values are correlated. The variance of the mean is the variance over splits times 1/J
    + n_test/n_train, not 1/J: a heuristic, which takes the correlation for n_test / (n_test + n_train).
    ``test_over_train`` is n_test/n_train, in classes. A ValueError is raised without values.

    Example:
        >>> s = summarise_splits([1.0, 2.0, 3.0], 4 / 3)
        >>> (s.mean, s.sd, round(s.ci_low, 3), s.n)
        (2.0, 1.0, -3.555, 3)
    """
    plain = summarise(values)
    half = (plain.ci_high - plain.mean) * math.sqrt(1 + plain.n * test_over_train)
    return Summary(plain.mean, plain.sd, plain.mean - half, plain.mean + half, plain.n)


ROUNDING = 1e-12
"""Differences up to this size count as 0: a head that leaves the ranking alone repeats its base's value up to rounding,
and the t statistic of rounding errors is of any size."""


def p_greater(differences: np.ndarray, bound: float = 0.0, test_over_train: float = 0.0) -> np.ndarray:
    """One-sided p-values in [0, 1] of paired t-tests against a mean of at most ``bound`` (Student 1908).

    The differences at S seeds are ``[S, ...]``, the p-values ``[...]``: small if the mean is above the bound. Without
    any spread, they are 0 above the bound, 1 below it and 0.5 on it. Differences on class splits, which share classes,
    have a ``test_over_train`` above 0, see :func:`summarise_splits`.

    Raises:
        ValueError: If there are fewer than two seeds or a value is not finite.

    Example:
        >>> round(float(p_greater(np.array([0.01, 0.02, 0.03]))), 4)
        0.0371
    """
    if len(differences) < 2:
        raise ValueError(f"a paired test needs at least two seeds, got {len(differences)}")
    if not np.isfinite(differences).all():
        raise ValueError("values must be finite; leave out seeds without a value")
    from scipy import special  # late: half a second to import

    shifted = np.asarray(differences, dtype=np.float64) - bound
    shifted = np.where(np.abs(shifted) <= ROUNDING, 0.0, shifted)
    mean, error = shifted.mean(0), shifted.std(0, ddof=1) / np.sqrt(len(shifted))
    error = error * np.sqrt(1 + len(shifted) * test_over_train)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean == 0, 0.0, mean / error)
    return np.asarray(special.stdtr(len(shifted) - 1, -t))


def p_different(differences: np.ndarray, test_over_train: float = 0.0) -> np.ndarray:
    """Two-sided p-values ``[...]`` of paired t-tests of differences at S seeds, ``[S, ...]``, against a mean of 0.

    ``test_over_train`` as in :func:`p_greater`.

    Raises:
        ValueError: If there are fewer than two seeds or a value is not finite.

    Example:
        >>> round(float(p_different(np.array([0.01, 0.02, 0.03]))), 4)
        0.0742
    """
    one_sided = (p_greater(side, test_over_train=test_over_train) for side in (differences, -differences))
    p: np.ndarray = 2 * np.minimum(*one_sided)
    return p


def p_equivalent(differences: np.ndarray, region: float, test_over_train: float = 0.0) -> np.ndarray:
    """P-values of equivalence: two one-sided t-tests (TOST, Schuirmann 1987) of a mean inside ``(-region, region)``.

    The differences at S seeds are ``[S, ...]``, the p-values ``[...]``: at most 0.05 if the 90 % t-interval of the mean
    lies inside the region. ``test_over_train`` as in :func:`p_greater`.

    Raises:
        ValueError: If the region is not positive, there are fewer than two seeds or a value is not finite.

    Example:
        >>> round(float(p_equivalent(np.array([0.001, 0.0, -0.001]), 0.005)), 4)
        0.0065
    """
    if not region > 0:
        raise ValueError(f"a region of equivalence is positive, got {region}")
    one_sided = (p_greater(side, -region, test_over_train) for side in (differences, -differences))
    p: np.ndarray = np.maximum(*one_sided)
    return p


def holm(p: np.ndarray) -> np.ndarray:
    """P-values adjusted by Holm's step-down method (1979), which bounds the chance of any false rejection.

    The p-value of a test that could not be made is nan; it counts as no test and stays nan. The order stays, too.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).round(3)
        array([0.03, 0.06, 0.06])
    """
    adjusted = np.full(len(p), np.nan)
    made = np.flatnonzero(~np.isnan(p))
    order = made[np.argsort(p[made], kind="stable")]
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """P-values adjusted by the step-up method of Benjamini and Hochberg (1995), which bounds the false discovery rate.

    Those that are nan count as no test, as in :func:`holm`.

    Example:
        >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03])).round(3)
        array([0.03, 0.04, 0.04])
    """
    adjusted = np.full(len(p), np.nan)
    made = np.flatnonzero(~np.isnan(p))
    order = made[np.argsort(-p[made])]
    adjusted[order] = np.minimum.accumulate(p[order] * (len(order) / np.arange(len(order), 0, -1)))
    return adjusted


Outcome = Literal["better", "worse", "equivalent", "undecided"]


def probability_of_superiority(differences: np.ndarray) -> tuple[float, float, float]:
    """P(A > B) over paired runs (Bouthillier et al. 2021) and the ends of its exact 95 % interval.

    The interval is that of Clopper and Pearson (1934), with a tie as half a success. It covers at least 95 %. The
    percentile bootstrap of the publication has no width at all if every run is won, which is common among five.
    Differences A - B are ``[N]``, positive if A is better; up to 1e-12 is a tie.

    Raises:
        ValueError: If there is no run or a value is not finite.

    Example:
        >>> [round(each, 3) for each in probability_of_superiority(np.array([0.1, 0.2, 0.1, 0.3, -0.1]))]
        [0.8, 0.284, 0.995]
    """
    runs = len(differences)
    if not runs or not np.isfinite(differences).all():
        raise ValueError("expected finite differences of one run or more; leave out seeds without a value")
    from scipy import special  # late: half a second to import

    won = float((differences > ROUNDING).sum() + 0.5 * (np.abs(differences) <= ROUNDING).sum())
    low = 0.0 if won == 0 else float(special.betaincinv(won, runs - won + 1, 0.025))
    high = 1.0 if won == runs else float(special.betaincinv(won + 1, runs - won, 0.975))
    return won / runs, low, high


def verdict(difference: float, p_difference: float, p_equivalence: float, alpha: float = 0.05) -> Outcome:
    """Decision on a mean difference A - B, positive if A is better.

    A difference inside the region of practical equivalence is ``equivalent`` even if it is not 0; that is looked at
    first. One whose sign is certain, but not whether it exceeds the region, is ``better`` or ``worse``.

    Args:
        difference: Mean difference.
        p_difference: P-value of a mean of 0 (:func:`~bench.protocols.statistics.paired.p_different`), adjusted if there
            are several.
        p_equivalence: P-value of equivalence (:func:`~bench.protocols.statistics.paired.p_equivalent`), adjusted
            likewise; nan if the metric has no region.
        alpha: Largest p-value of a decision.

    Example:
        >>> verdict(0.02, 0.01, 0.9), verdict(0.001, 0.04, 0.01), verdict(0.01, 0.2, float("nan"))
        ('better', 'equivalent', 'undecided')
    """
    if p_equivalence <= alpha:
        return "equivalent"
    if p_difference <= alpha:
        return "better" if difference > 0 else "worse"
    return "undecided"


def seeds_needed(sd: float, effect: float, *, power: float = 0.8, alpha: float = 0.05, most: int = 10**6) -> int:
    """Number of paired seeds at which the ``1 - alpha`` t-interval of a difference excludes 0 with chance ``power``.

    From the noncentral t distribution, both tails counted. The SD of a few seeds is itself uncertain: at five, the true
    one is 0.6 to 2.9 times as large, and the number of seeds grows with its square.

    Args:
        sd: Standard deviation of the paired difference over seeds.
        effect: True mean difference; its sign does not matter.
        power: Chance of excluding 0, in (0, 1).
        alpha: 1 minus the level of the interval.
        most: Largest number that is tried.

    Returns:
        Number of seeds in all, at least 2 and at most ``most``.

    Raises:
        ValueError: If the SD is negative, the effect is 0, or one of them is not finite.

    Example:
        >>> seeds_needed(1.0, 1.0), seeds_needed(1.0, 0.5)
        (10, 34)
    """
    if not (0 <= sd < np.inf and 0 < abs(effect) < np.inf):
        raise ValueError(f"expected an SD of 0 or more and an effect other than 0, got {sd} and {effect}")
    if sd == 0:
        return 2
    from scipy import special  # late: half a second to import

    # What the normal distribution needs is near: a few more for the t distribution.
    number = float(special.ndtri(1 - alpha / 2) + special.ndtri(power)) ** 2 * (sd / effect) ** 2
    seeds = int(min(max(number, 2), most))
    while seeds < most and power_of_seeds(seeds, sd, effect, alpha) < power:
        seeds += 1
    while seeds > 2 and power_of_seeds(seeds - 1, sd, effect, alpha) >= power:
        seeds -= 1
    return seeds


def power_of_seeds(seeds: int, sd: float, effect: float, alpha: float = 0.05) -> float:
    """Chance that the ``1 - alpha`` t-interval of a paired difference excludes 0, given its true mean and SD.

    Example:
        >>> round(power_of_seeds(10, 1.0, 1.0), 3)
        0.803
    """
    from scipy import special  # late: half a second to import

    bound = special.stdtrit(seeds - 1, 1 - alpha / 2)
    shift = abs(effect) / sd * np.sqrt(seeds)
    above, below = special.nctdtr(seeds - 1, shift, bound), special.nctdtr(seeds - 1, shift, -bound)
    # SciPy 1.17 has nan for probabilities that are 0 up to rounding.
    return float(1 - (above if above == above else 0) + (below if below == below else 0))
