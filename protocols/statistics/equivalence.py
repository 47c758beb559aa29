"""Verdicts on a difference of two methods: probability of superiority, and better, worse or practically equivalent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .paired import ROUNDING

Outcome = Literal["better", "worse", "equivalent", "undecided"]


@dataclass(frozen=True)
class Superiority:
    """Probability that one of n runs of a method is better than the paired run of another, with its 95 % interval.

    Ties count half.
    """

    probability: float
    ci_low: float
    ci_high: float
    n: int


def probability_of_superiority(differences: np.ndarray) -> Superiority:
    """P(A > B) over paired runs (Bouthillier et al. 2021) with an exact 95 % interval.

    The interval is that of Clopper and Pearson (1934), with a tie as half a success. It covers at least 95 %. The
    percentile bootstrap of the publication has no width at all if every run is won, which is common among five.
    Differences A - B are ``[N]``, positive if A is better; up to 1e-12 is a tie.

    Raises:
        ValueError: If there is no run or a value is not finite.

    Example:
        >>> s = probability_of_superiority(np.array([0.1, 0.2, 0.1, 0.3, -0.1]))
        >>> (s.probability, round(s.ci_low, 3), round(s.ci_high, 3), s.n)
        (0.8, 0.284, 0.995, 5)
    """
    runs = len(differences)
    if not runs or not np.isfinite(differences).all():
        raise ValueError("expected finite differences of one run or more; leave out seeds without a value")
    from scipy import special  # late: half a second to import

    won = float((differences > ROUNDING).sum() + 0.5 * (np.abs(differences) <= ROUNDING).sum())
    low = 0.0 if won == 0 else float(special.betaincinv(won, runs - won + 1, 0.025))
    high = 1.0 if won == runs else float(special.betaincinv(won + 1, runs - won, 0.975))
    return Superiority(won / runs, low, high, runs)


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
