"""Tests of paired differences over seeds, and Holm's correction for many of them."""

from __future__ import annotations

import numpy as np

ROUNDING = 1e-12
"""Differences up to this size count as 0: a head that leaves the ranking alone repeats its base's value up to rounding,
and the t statistic of rounding errors is of any size."""


def p_greater(differences: np.ndarray, bound: float = 0.0) -> np.ndarray:
    """One-sided p-values in [0, 1] of paired t-tests against a mean of at most ``bound`` (Student 1908).

    The differences at S seeds are ``[S, ...]``, the p-values ``[...]``: small if the mean is above the bound. Without
    any spread, they are 0 above the bound, 1 below it and 0.5 on it.

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
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean == 0, 0.0, mean / error)
    return np.asarray(special.stdtr(len(shifted) - 1, -t))


def p_different(differences: np.ndarray) -> np.ndarray:
    """Two-sided p-values ``[...]`` of paired t-tests of differences at S seeds, ``[S, ...]``, against a mean of 0.

    Raises:
        ValueError: If there are fewer than two seeds or a value is not finite.

    Example:
        >>> round(float(p_different(np.array([0.01, 0.02, 0.03]))), 4)
        0.0742
    """
    p: np.ndarray = 2 * np.minimum(p_greater(differences), p_greater(-differences))
    return p


def p_equivalent(differences: np.ndarray, region: float) -> np.ndarray:
    """P-values of equivalence: two one-sided t-tests (TOST, Schuirmann 1987) of a mean inside ``(-region, region)``.

    The differences at S seeds are ``[S, ...]``, the p-values ``[...]``: at most 0.05 if the 90 % t-interval of the mean
    lies inside the region.

    Raises:
        ValueError: If the region is not positive, there are fewer than two seeds or a value is not finite.

    Example:
        >>> round(float(p_equivalent(np.array([0.001, 0.0, -0.001]), 0.005)), 4)
        0.0065
    """
    if not region > 0:
        raise ValueError(f"a region of equivalence is positive, got {region}")
    p: np.ndarray = np.maximum(p_greater(differences, -region), p_greater(-differences, -region))
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
