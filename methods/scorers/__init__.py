"""Similarity between embedding distributions: full matrices and aligned pairs, higher = more similar.

Every scorer is symmetric and works in the dtype of its inputs. Rankings use float64 inputs. Naming scorers imports
nothing heavy; a scorer's module is imported when it is used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .registry import SCORERS as SCORERS
    from .registry import get_scorer as get_scorer
    from .registry import paired_score as paired_score
    from .registry import pairwise_score as pairwise_score
    from .registry import register_scorer as register_scorer
    from .registry import scorer_module as scorer_module
    from .spec import DistributionScorer as DistributionScorer
    from .spec import ScorerSpec as ScorerSpec
else:
    from .._lazy import lazy

    __all__, __getattr__ = lazy(__name__, __file__)
