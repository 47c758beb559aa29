"""Statistics of few seeds: mean, standard deviation, t-interval, paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
    from scipy import stats  # late: a second to import

    half = float(stats.t.ppf(0.975, n - 1)) * sd / math.sqrt(n)
    return Summary(mean, sd, mean - half, mean + half, n)


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Summary:
    """Mean, standard deviation and 95 % t-interval of ``a - b``, values by seed, over the seeds that both methods have.

    A ValueError is raised if they share no seed.

    Example:
        >>> paired_difference({0: 1.0, 1: 2.0, 9: 0.0}, {0: 0.5, 1: 1.5}).mean
        0.5
    """
    return summarise([a[seed] - b[seed] for seed in sorted(set(a) & set(b))])
