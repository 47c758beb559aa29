"""Results of a tuning study: of a training, of a trial, and the best trial so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from ..planning.plan import Plan, Specs
from ..store.records import TrialRecord
from ..store.specs import TUNING, Point, TuneFor
from .choice import choose


@dataclass(frozen=True)
class Best:
    """Chosen trial of a tuning study: its values, its trainings by the fold that validates, and its record.

    All are empty if nothing was tuned.
    """

    point: Point
    specs: Specs = field(default_factory=dict)
    trial: TrialRecord | None = None


class Trained(NamedTuple):
    """Values of a finished training that a study needs; whole records of all would fill the driver's memory."""

    selection_value: float
    val_map_at_r: float
    val_confidence_auroc: float | None
    best_epoch: int


def measured(tune_for: TuneFor, trained: Sequence[Trained]) -> dict[str, object]:
    """Entries of the record of a finished trial that its trainings determine: means over its models, one per fold."""
    map_at_r = fmean(model.val_map_at_r for model in trained)
    aurocs = [model.val_confidence_auroc for model in trained if model.val_confidence_auroc is not None]
    auroc = fmean(aurocs) if aurocs else None
    value = fmean(model.selection_value for model in trained)
    return {
        "state": "complete",
        "value": {"retrieval": value, "confidence": auroc, "both": map_at_r}[tune_for],
        "val_map_at_r": map_at_r,
        "val_confidence_auroc": auroc,
        "best_epochs": tuple(model.best_epoch for model in trained),
    }


def best_of(plan: Plan, trials: Sequence[TrialRecord], bases: Specs | None) -> Best | None:
    """The best of some trials of a study; None if all of them failed."""
    chosen = choose(plan.tune_for, trials)
    return None if chosen is None else Best(chosen.params, plan.train_specs(chosen.params, TUNING, bases), chosen)


def tuning_note(plan: Plan, trials: Sequence[TrialRecord], chosen: TrialRecord | None) -> str:
    """Short note on a study for the progress display."""
    failed = sum(trial.value is None for trial in trials)
    text = f"{len(trials)}/{plan.trials} trials"
    if chosen is not None and chosen.value is not None:
        by_loss = plan.template.selection.metric == "stage_loss"
        shown = f"best val loss {-chosen.value:.4f}" if by_loss else f"best val MAP@R {chosen.value:.4f}"
        if plan.tune_for != "retrieval":
            shown = f"chosen: val MAP@R {chosen.val_map_at_r:.4f}, confidence AUROC {chosen.val_confidence_auroc:.4f}"
        text += f", {shown}"
    return text + (f", {failed} failed" if failed else "")
