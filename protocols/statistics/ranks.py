"""Ranks of methods over seeds and data sets, which of them may be the best, and tests over many data sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters

import numpy as np

from .paired import holm, p_greater


@dataclass(frozen=True)
class RankInterval:
    """Ranks that a method may have, from best to worst, and the names of its tie groups, such as ``ab``.

    Two methods share a letter if and only if neither is significantly better than the other.
    """

    low: int
    high: int
    ties: str

    @property
    def text(self) -> str:
        """Interval as text, such as ``1-3``, or ``2`` if there is one rank only."""
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def significantly_better(values: np.ndarray, alpha: float = 0.05) -> np.ndarray:
    """Decide for every ordered pair of K methods if the first has a higher mean than the second: booleans ``[K, K]``.

    One-sided paired t-tests of all K (K - 1) ordered pairs, adjusted by Holm's method: the chance of any false decision
    is at most ``alpha`` for normal differences, whatever their variances and correlations. Arguments and errors are
    those of :func:`rank_intervals`.
    """
    if values.ndim != 2:
        raise ValueError(f"expected values of seeds by methods [S, K], got shape {values.shape}")
    methods = values.shape[1]
    p = p_greater(values[:, :, None] - values[:, None, :])
    ordered = ~np.eye(methods, dtype=bool)
    better = np.zeros((methods, methods), dtype=bool)
    better[ordered] = holm(p[ordered]) <= alpha
    return better


def rank_intervals(values: np.ndarray, alpha: float = 0.05) -> list[RankInterval]:
    """Simultaneous confidence intervals of the ranks of K methods, and their tie groups.

    The best rank of a method is 1 plus the number of methods that are significantly better than it, the worst rank K
    minus the number of methods that are significantly worse (Mogstad, Romano, Shaikh and Wilhelm 2024). All
    K intervals contain the true ranks at once with a chance of at least ``1 - alpha``. They account for the draw of the
    seeds, not for that of the test images.

    Args:
        values: Values of K methods at S common seeds, ``[S, K]``, higher is better; S of at least 2.
        alpha: Largest chance that any interval misses.

    Returns:
        The interval of each method, K in all.

    Raises:
        ValueError: If ``values`` is not two-dimensional, has fewer than two seeds or a value that is not finite.

    Example:
        >>> seeds = np.array([[0.80, 0.79, 0.20], [0.81, 0.83, 0.21], [0.79, 0.79, 0.20]])
        >>> [(rank.text, rank.ties) for rank in rank_intervals(seeds)]
        [('1-2', 'a'), ('1-2', 'a'), ('3', 'b')]
    """
    better = significantly_better(values, alpha)
    letters = tie_groups(better | better.T, np.argsort(-values.mean(0), kind="stable"))
    low, high = 1 + better.sum(0), values.shape[1] - better.sum(1)
    return [RankInterval(int(a), int(b), ties) for a, b, ties in zip(low, high, letters)]


def tie_groups(different: np.ndarray, order: Sequence[int] | np.ndarray | None = None) -> list[str]:
    """Compact letter display: two methods share a letter if and only if they do not differ (Piepho 2004).

    Each letter is a group of methods of which no two differ. Groups are made from the best method down, one for each
    pair without a common letter so far, and take in all that fit, best first. Making every such group, as Piepho does,
    can take as many as 3 to the power K / 3. With more than 52 groups, the letters are numbers, joined by dots.

    Args:
        different: Decisions for K methods, ``[K, K]`` symmetric booleans; the diagonal is ignored.
        order: Methods from best to worst, K positions; letters are given in this order. None for the order as it is.

    Example:
        >>> tie_groups(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], dtype=bool))
        ['a', 'ab', 'b']
    """
    count = len(different)
    ranked = list(range(count)) if order is None else [int(method) for method in order]
    tied = ~different | np.eye(count, dtype=bool)
    together = np.zeros((count, count), dtype=bool)
    groups: list[list[int]] = []
    for place, first in enumerate(ranked):
        # The method itself is last: one that differs from all others is a group of its own.
        for second in (*ranked[place + 1 :], first):
            if tied[first, second] and not together[first, second]:
                group = [first] if second == first else [first, second]
                for method in ranked:
                    if method not in group and tied[method, group].all():
                        group.append(method)
                together[np.ix_(group, group)] = True
                groups.append(group)
    lettered = len(groups) <= len(ascii_letters)
    names = ascii_letters if lettered else [str(number + 1) for number in range(len(groups))]
    return [
        ("" if lettered else ".").join(name for name, group in zip(names, groups) if method in group)
        for method in range(count)
    ]


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Mean over data sets of the rank of each method, 1 for the highest value; ties share a mean rank (Demšar 2006).

    The values of K methods on D data sets are ``[D, K]``, higher is better, the mean ranks ``[K]`` in [1, K].

    Raises:
        ValueError: If there is no data set or a value is not finite: every method needs a value on every data set.

    Example:
        >>> mean_ranks(np.array([[0.9, 0.8, 0.8], [0.5, 0.7, 0.6]]))
        array([2.  , 1.75, 2.25])
    """
    if values.ndim != 2 or not len(values):
        raise ValueError(f"expected values of data sets by methods [D, K] with D > 0, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("mean ranks need a value of every method on every data set")
    from scipy import stats  # late: two seconds to import

    ranks: np.ndarray = stats.rankdata(-values, axis=1).mean(0)
    return ranks


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
