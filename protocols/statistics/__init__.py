"""Statistics of few seeds: intervals, paired tests, ranks, verdicts, bootstrap, and the seeds that a result needs.

Pure functions of NumPy arrays, SciPy underneath. docs/protocol.md says how often their intervals contain the truth.
"""

from __future__ import annotations

from .bootstrap import FEW as FEW
from .bootstrap import Interval as Interval
from .bootstrap import paired_bootstrap as paired_bootstrap
from .paired import ROUNDING as ROUNDING
from .paired import Outcome as Outcome
from .paired import Summary as Summary
from .paired import Superiority as Superiority
from .paired import holm as holm
from .paired import p_different as p_different
from .paired import p_equivalent as p_equivalent
from .paired import p_greater as p_greater
from .paired import paired_difference as paired_difference
from .paired import power_of_seeds as power_of_seeds
from .paired import probability_of_superiority as probability_of_superiority
from .paired import seeds_needed as seeds_needed
from .paired import summarise as summarise
from .paired import summarise_splits as summarise_splits
from .paired import verdict as verdict
from .ranks import RANKED as RANKED
from .ranks import RankInterval as RankInterval
from .ranks import critical_difference as critical_difference
from .ranks import friedman as friedman
from .ranks import mean_ranks as mean_ranks
from .ranks import rank_intervals as rank_intervals
from .ranks import significantly_better as significantly_better
from .ranks import tie_groups as tie_groups
