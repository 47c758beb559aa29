"""Similarity between embedding distributions: full matrices and aligned pairs, higher = more similar.

Every scorer is symmetric and works in the dtype of its inputs. Rankings use float64 inputs. Naming scorers imports
nothing heavy; a scorer's module is imported when it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .registry import SCORERS, get_scorer, paired_score, pairwise_score, register_scorer, scorer_module

__all__ = [
    "SCORERS",
    "DistributionScorer",
    "ScorerSpec",
    "get_scorer",
    "paired_score",
    "pairwise_score",
    "register_scorer",
    "scorer_module",
]

if TYPE_CHECKING:
    from .spec import DistributionScorer, ScorerSpec
else:
    _LAZY = {"DistributionScorer": ".spec", "ScorerSpec": ".spec"}

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            return getattr(import_module(_LAZY[name], __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
