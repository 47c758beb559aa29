"""Statistics of few seeds: intervals, paired tests, ranks, verdicts, bootstrap, and the seeds that a result needs.

Pure functions of NumPy arrays, SciPy underneath. docs/protocol.md says how often their intervals contain the truth.
"""

from __future__ import annotations

from .bootstrap import FEW, Interval, NestedInterval, nested_bootstrap, paired_bootstrap
from .equivalence import Outcome, Superiority, probability_of_superiority, verdict
from .paired import ROUNDING, holm, p_different, p_equivalent, p_greater
from .power import VarianceShare, power_of_seeds, seeds_needed, variance_by_source
from .ranks import (
    PROFILED,
    RankInterval,
    mean_ranks,
    performance_profile,
    rank_intervals,
    significantly_better,
    tie_groups,
)
from .seeds import Summary, paired_difference, summarise
from .sets import RANKED, critical_difference, friedman

__all__ = [
    "FEW",
    "PROFILED",
    "RANKED",
    "ROUNDING",
    "Interval",
    "NestedInterval",
    "Outcome",
    "RankInterval",
    "Summary",
    "Superiority",
    "VarianceShare",
    "critical_difference",
    "friedman",
    "holm",
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
