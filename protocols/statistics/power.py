"""Planning of seeds: how many pairs a difference needs, and which source of randomness the variance comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


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
    low, high = 1, 2
    while high < most and power_of_seeds(high, sd, effect, alpha) < power:
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of_seeds(middle, sd, effect, alpha) >= power else (middle, high)
    return high


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
    return float(1 - above + below)


@dataclass(frozen=True)
class VarianceShare:
    """Share of the variance between runs that one source of randomness accounts for, with its 95 % interval.

    ``variance`` vanishes if the source is frozen; ``share`` is at most 1. Both are below 0 if the n runs with a frozen
    source happened to vary more; the ends of the interval of the share are at least 0.
    """

    variance: float
    share: float
    ci_low: float
    ci_high: float
    n: int


def variance_by_source(varied: np.ndarray, frozen: Mapping[str, Sequence[np.ndarray]]) -> dict[str, VarianceShare]:
    """Variance of a metric by source of randomness: initialisation, order, augmentation, tuning.

    The first-order component of a source is the variance of all runs minus that of runs that share its value (Sobol'
    1993; Bouthillier et al. 2021 vary one source at a time instead). Components add up to less than the
    whole if sources interact. The interval of the share is from the F distribution of the ratio of the two variances,
    exact for normal values.

    Args:
        varied: Values of N runs in which every source varies, ``[N]``; N of at least 2.
        frozen: For each source, groups of other runs, ``[n]`` each with n of at least 2: the runs of a group share the
            source's value, and all else varies.

    Returns:
        The component of each source.

    Raises:
        ValueError: If there are fewer than two runs in which everything varies, or in a group, or a value is not
            finite.

    Example:
        >>> frozen = {"initialisation": [np.array([0.1, 0.2, 0.3])]}
        >>> part = variance_by_source(np.array([0.0, 0.2, 0.4]), frozen)["initialisation"]
        >>> round(part.share, 3), part.ci_low, round(part.ci_high, 3)
        (0.75, 0.0, 0.994)
    """
    groups = [varied, *(group for parts in frozen.values() for group in parts)]
    if not all(len(group) >= 2 and np.isfinite(group).all() for group in groups):
        raise ValueError("variance needs two runs or more with a value, in all and in every group")
    from scipy import special  # late: half a second to import

    whole = float(np.var(varied, ddof=1))
    if whole == 0:
        raise ValueError("runs in which everything varies have one value: there is no variance to divide")
    found = {}
    for source, parts in frozen.items():
        freedom = sum(len(group) - 1 for group in parts)
        if not freedom:
            raise ValueError(f"no runs in which {source!r} is frozen")
        left = sum(float(np.var(group, ddof=1)) * (len(group) - 1) for group in parts) / freedom
        ends = (special.fdtri(freedom, len(varied) - 1, level) for level in (0.025, 0.975))
        low, high = (max(0.0, 1 - left / whole / float(end)) for end in ends)
        runs = freedom + len(parts)
        found[source] = VarianceShare(whole - left, 1 - left / whole, low, high, runs)
    return found
