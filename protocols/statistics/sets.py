"""Comparison of many methods over many data sets: the Friedman test and Nemenyi's critical difference."""

from __future__ import annotations

import math

import numpy as np

RANKED = 5
"""Smallest number of data sets of these tests; with fewer, no difference of mean ranks can be told from chance."""


def friedman(values: np.ndarray) -> float:
    """P-value of the Friedman test: that all methods have equal mean ranks over data sets (Friedman 1937).

    The values are ``[D, K]``, higher is better, of K methods, at least 3, on D data sets, at least 5.

    Raises:
        ValueError: If there are fewer methods or data sets, or a value is not finite.

    Example:
        >>> round(friedman(np.array([[0.9, 0.8, 0.7]] * 4 + [[0.9, 0.7, 0.8]])), 4)
        0.015
    """
    if values.ndim != 2 or values.shape[1] < 3 or len(values) < RANKED:
        raise ValueError(f"the Friedman test needs 3 methods and {RANKED} data sets or more, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("the Friedman test needs a value of every method on every data set")
    if (values == values[:, :1]).all():
        return 1.0
    from scipy import stats  # late: two seconds to import

    return float(stats.friedmanchisquare(*values.T).pvalue)


def critical_difference(methods: int, datasets: int, alpha: float = 0.05) -> float:
    """Smallest significant difference of two mean ranks by Nemenyi's test (1963; Demsar 2006, equation 3).

    The test adjusts for all pairs of methods. It is valid for many data sets; with few it is conservative, and with
    fewer than 2 methods or 5 data sets it is a ValueError. ``alpha`` is the largest chance of any false decision.

    Example:
        >>> round(critical_difference(5, 10), 3)
        1.929
    """
    if methods < 2 or datasets < RANKED:
        raise ValueError(f"needs 2 methods and {RANKED} data sets or more, got {methods} and {datasets}")
    from scipy import stats  # late: two seconds to import

    quantile = float(stats.studentized_range.ppf(1 - alpha, methods, np.inf))
    return quantile / math.sqrt(2) * math.sqrt(methods * (methods + 1) / (6 * datasets))
