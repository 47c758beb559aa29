"""Statistics of few seeds: intervals, paired tests, ranks, verdicts, bootstrap, and the seeds that a result needs.

Pure functions of NumPy arrays, SciPy underneath. docs/protocol.md says how often their intervals contain the truth.
"""

from __future__ import annotations

from .bootstrap import (
    FEW,
    Interval,
    paired_bootstrap,
)
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
    p_over_splits,
    paired_difference,
    power_of_seeds,
    probability_of_superiority,
    seeds_needed,
    summarise,
    summarise_splits,
    variance_by_source,
    verdict,
)
from .ranks import (
    RANKED,
    RankInterval,
    critical_difference,
    friedman,
    may_be_best,
    mean_ranks,
    rank_intervals,
    significantly_better,
    tie_groups,
)

__all__ = [
    "FEW",
    "RANKED",
    "ROUNDING",
    "Interval",
    "Outcome",
    "RankInterval",
    "Summary",
    "Superiority",
    "VarianceShare",
    "critical_difference",
    "friedman",
    "holm",
    "may_be_best",
    "mean_ranks",
    "p_different",
    "p_equivalent",
    "p_greater",
    "p_over_splits",
    "paired_bootstrap",
    "paired_difference",
    "power_of_seeds",
    "probability_of_superiority",
    "rank_intervals",
    "seeds_needed",
    "significantly_better",
    "summarise",
    "summarise_splits",
    "tie_groups",
    "variance_by_source",
    "verdict",
]
