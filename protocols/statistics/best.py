"""Multiple comparisons with the best: which of several methods may have the highest mean?"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from .paired import p_greater


class BestIntervals(NamedTuple):
    """Simultaneous intervals of each method's mean minus the highest mean among the others, ``[K]`` each.

    ``low`` is at most 0 and ``high`` at least 0 (Hsu's constrained intervals). A method with ``high`` of 0 is not the
    best, a method with ``low`` of 0 is; all others may be.
    """

    low: np.ndarray
    high: np.ndarray


def best_intervals(values: np.ndarray, alpha: float = 0.05) -> BestIntervals:
    """Hsu's multiple comparisons with the best, over paired seeds, with a pooled variance (Hsu 1984; 1996, chapter 4).

    All K intervals contain the truth at once with a chance of at least ``1 - alpha`` for normal values whose
    differences have equal variances: the residuals of the additive model of seed and method, with
    ``(S - 1) (K - 1)`` degrees of freedom, estimate it. With unequal variances use :func:`may_be_best`.

    Args:
        values: Values of K methods at S common seeds, ``[S, K]``, higher is better; both at least 2.
        alpha: Largest chance that any interval misses.

    Raises:
        ValueError: If there are fewer seeds or methods, or a value is not finite.

    Example:
        >>> seeds = np.array([[0.80, 0.79, 0.20], [0.81, 0.83, 0.21], [0.79, 0.79, 0.20]])
        >>> best_intervals(seeds).high.round(3)
        array([0.017, 0.024, 0.   ])
    """
    _check(values)
    seeds, methods = values.shape
    means = values.mean(0)
    residuals = values - means - values.mean(1, keepdims=True) + values.mean()
    freedom = (seeds - 1) * (methods - 1)
    error = np.sqrt(2 * (residuals**2).sum() / freedom / seeds)
    margin = dunnett_quantile(methods - 1, freedom, alpha) * error
    lead = means - np.array([np.delete(means, method).max() for method in range(methods)])
    return BestIntervals(np.minimum(lead - margin, 0.0), np.maximum(lead + margin, 0.0))


def may_be_best(values: np.ndarray, alpha: float = 0.05) -> np.ndarray:
    """Methods that may have the highest mean, ``[K]`` booleans, by paired t-tests: no variances are pooled.

    A method is left out if one of the other K - 1 is better by a one-sided paired t-test at the level
    ``alpha / (K - 1)``: the largest of its t statistics with Bonferroni's bound. The best method is in the set with a
    chance of at least ``1 - alpha``, whatever the variances and correlations of normal differences; no adjustment over
    methods is needed for that, since only tests against the best one can leave it out (Stefansson, Kim and Hsu 1988).
    Arguments and errors are those of :func:`best_intervals`.

    Example:
        >>> seeds = np.array([[0.80, 0.79, 0.20], [0.81, 0.83, 0.21], [0.79, 0.79, 0.20]])
        >>> may_be_best(seeds).tolist()
        [True, True, False]
    """
    _check(values)
    p = p_greater(values[:, :, None] - values[:, None, :])
    np.fill_diagonal(p, 1.0)
    stays: np.ndarray = p.min(0) > alpha / (values.shape[1] - 1)
    return stays


@cache
def dunnett_quantile(comparisons: int, freedom: int, alpha: float = 0.05) -> float:
    """One-sided critical value of Dunnett's test: ``comparisons`` methods against one, all at the same seeds.

    The ``1 - alpha`` quantile of the largest of as many t statistics with a correlation of 0.5 and common variance
    estimate of ``freedom`` degrees of freedom (Dunnett 1955), by quadrature.

    Example:
        >>> round(dunnett_quantile(1, 10), 3), round(dunnett_quantile(4, 20), 3)
        (1.812, 2.304)
    """
    from scipy import optimize, special  # late: half a second to import

    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()
    # Midpoints of equally likely parts of the distribution of the estimated standard deviation.
    scale = np.sqrt(special.chdtri(freedom, 1 - (np.arange(4000) + 0.5) / 4000) / freedom)

    def excess(bound: float) -> float:
        below = special.ndtr(nodes + np.sqrt(2) * bound * scale[:, None]) ** comparisons
        return float((below @ weights).mean()) - (1 - alpha)

    return float(optimize.brentq(excess, 0.0, 1e3, xtol=1e-10))


def _check(values: np.ndarray) -> None:
    if values.ndim != 2 or min(values.shape) < 2 or not np.isfinite(values).all():
        raise ValueError(f"expected finite values of two seeds and two methods or more, [S, K], got {values.shape}")
