"""Statistics of few seeds: intervals, paired tests, ranks, verdicts, bootstrap, and the seeds that a result needs.

Pure functions of NumPy arrays, SciPy underneath. docs/protocol.md says how often their intervals contain the truth.
"""

from __future__ import annotations

from .best import BestIntervals, best_intervals, dunnett_quantile, may_be_best
from .bootstrap import FEW, Interval, NestedInterval, nested_bootstrap, paired_bootstrap
from .paired import (
    ROUNDING,
    Outcome,
    Summary,
    Superiority,
    VarianceShare,
    holm,
    p_different,
    p_equivalent,
    p_greater,
    paired_difference,
    power_of_seeds,
    probability_of_superiority,
    seeds_needed,
    summarise,
    variance_by_source,
    verdict,
)
from .ranks import (
    PROFILED,
    RANKED,
    RankInterval,
    critical_difference,
    friedman,
    mean_ranks,
    performance_profile,
    rank_intervals,
    significantly_better,
    tie_groups,
)

__all__ = [
    "FEW",
    "PROFILED",
    "RANKED",
    "ROUNDING",
    "BestIntervals",
    "Interval",
    "NestedInterval",
    "Outcome",
    "RankInterval",
    "Summary",
    "Superiority",
    "VarianceShare",
    "best_intervals",
    "critical_difference",
    "dunnett_quantile",
    "friedman",
    "holm",
    "may_be_best",
    "mean_ranks",
    "nested_bootstrap",
    "p_different",
    "p_equivalent",
    "p_greater",
    "paired_bootstrap",
    "paired_difference",
    "performance_profile",
    "power_of_seeds",
    "probability_of_superiority",
    "rank_intervals",
    "seeds_needed",
    "significantly_better",
    "summarise",
    "tie_groups",
    "variance_by_source",
    "verdict",
]
