"""Figure of tuning studies: every trial, and the best so far."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...engine.tuning import objectives
from ...protocols.metrics import title_of
from ...store.records import StudyRecord, TrialRecord
from .source import Drawing, Note, Source
from .style import FULL_PAGE, PALETTE, panels

NAMES: dict[str, tuple[str, ...]] = {"retrieval": (title_of("map_at_r"),), "confidence": ("confidence AUROC",)}
NAMES["both"] = NAMES["retrieval"] + NAMES["confidence"]
"""Names of the values that a study maximises, by what it tunes for, as in :func:`~bench.engine.tuning.objectives`."""


def draw(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure of the values that studies optimise, one panel per study, and a table with a row per trial.

    The value of a trial in the table is what the study maximises, the MAP@R of two.
    """
    studies = [(study, trials) for study, trials in source.site.store.studies(dataset) if trials]
    if not studies:
        return
    many = len(studies) > 6
    figure, axes = panels(len(studies), 4 if many else 3, (FULL_PAGE / 4, 1.9) if many else (3.6, 2.9))
    for place, (axis, (study, trials)) in enumerate(zip(axes, studies)):
        _draw_study(axis, study, trials)
        if place == 0 or study.spec.tune_for == "both":
            axis.legend(fontsize=7)
    figure.suptitle(f"{dataset}: tuning")
    lines = [line for study, trials in studies for line in trial_lines(study, trials)]
    yield Drawing(f"tuning_{dataset}", figure, pd.DataFrame(lines))


def _draw_study(axis: Axes, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
    tune_for, template = study.spec.tune_for, study.spec.template
    by_loss = tune_for == "retrieval" and template.selection.metric == "stage_loss"
    names = ("loss",) if by_loss else NAMES[tune_for]
    finished = {trial.number: found for trial in trials if (found := objectives(tune_for, trial)) is not None}
    for index, name in enumerate(names):
        x, y = list(finished), np.array([-each[index] if by_loss else each[index] for each in finished.values()])
        once, own = "_" if index else "", PALETTE[index]  # a label that begins with _ is not in the legend
        axis.plot(x, y, "o", ms=3, alpha=0.6, color=own, label="trial" if names[1:] == () else name)
        if x:
            best = (np.minimum if by_loss else np.maximum).accumulate(y)
            axis.step(x, best, where="post", color=own, label=f"{once}best so far")
            axis.plot(x[:1], y[:1], "s", ms=5, mfc="none", color="k", label=f"{once}recipe default")
    for trial in trials:
        if trial.value is None:
            axis.axvline(trial.number, color="tab:red", lw=0.8, alpha=0.6)
    title = template.method + (f", tuned for {tune_for}" if tune_for != "retrieval" else "")
    axis.set(title=textwrap.fill(title, 30), xlabel="trial", ylabel=f"validation {', '.join(names)}")


def trial_lines(study: StudyRecord, trials: Iterable[TrialRecord]) -> list[dict[str, object]]:
    """A row for each trial of a study, without what was tried."""
    shown = {"number", "state", "value", "reason", "val_map_at_r", "val_confidence_auroc"}
    template = study.spec.template
    of_study = {"study": study.unit, "method": template.method, "metric": template.selection.metric}
    return [{**of_study, "tune_for": study.spec.tune_for, **trial.model_dump(include=shown)} for trial in trials]
