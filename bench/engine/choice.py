"""The values that a tuning study maximises, and the trial that it chooses."""

from __future__ import annotations

import math
from collections.abc import Collection

from ..store.records import TrialRecord
from ..store.specs import TuneFor

ONE_POINT = 0.01
"""MAP@R that a study for both gives up, at most, for a better confidence."""

_ROUNDING = 1e-12


def objectives(tune_for: TuneFor, trial: TrialRecord) -> tuple[float, ...] | None:
    """Values of a trial that its study maximises, two for ``both`` (MAP@R and AUROC), else one; None if it failed."""
    both = (trial.val_map_at_r, trial.val_confidence_auroc)
    found = {"retrieval": (trial.value,), "confidence": (trial.val_confidence_auroc,), "both": both}[tune_for]
    values = tuple(value for value in found if value is not None and not math.isnan(value))
    return values if len(values) == len(found) else None


def choose(tune_for: TuneFor, trials: Collection[TrialRecord]) -> TrialRecord | None:
    """The trial whose setting a study chooses; None if all of them failed.

    For ``retrieval`` it is the trial with the highest value, for ``confidence`` the one with the highest AUROC of the
    confidence. For ``both`` it is the one with the highest AUROC among those whose MAP@R is within one point
    (:data:`ONE_POINT`) of the highest. Of trials with equal AUROC the one with the higher MAP@R is chosen; of trials
    that are equal in all that, the earlier one.
    """
    values = {trial.number: found for trial in trials if (found := objectives(tune_for, trial)) is not None}
    left = [trial for trial in trials if trial.number in values]
    if tune_for == "both" and left:
        least = max(map_at_r for map_at_r, _ in values.values()) - ONE_POINT - _ROUNDING
        left = [trial for trial in left if values[trial.number][0] >= least]
    ranked = (lambda trial: (values[trial.number][0],)) if tune_for == "retrieval" else _by_confidence
    return max(left, key=lambda trial: (*ranked(trial), -trial.number), default=None)


def _by_confidence(trial: TrialRecord) -> tuple[float, ...]:
    auroc, map_at_r = trial.val_confidence_auroc, trial.val_map_at_r
    assert auroc is not None
    return auroc, -math.inf if map_at_r is None else map_at_r
