"""Tuning history: every trial of every study."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...engine.choice import objectives
from ...protocols.metrics import title_of
from ...store.records import StudyRecord, TrialRecord
from .source import Drawing, Note, Source
from .style import FULL_PAGE, colour, panels

Study = tuple[StudyRecord, list[TrialRecord]]


def tuning_figure(studies: Sequence[Study], dataset: str) -> Figure:
    """Plot the values that studies maximise, of every tuning trial and the best so far, one panel per study."""
    many = len(studies) > 6
    figure, axes = panels(len(studies), 4 if many else 3, (FULL_PAGE / 4, 1.9) if many else (3.6, 2.9))
    for axis, (study, trials) in zip(axes, studies):
        _draw_study(axis, study, trials)
    axes[0].legend(fontsize=7)
    for axis, (study, _) in zip(axes, studies):
        if study.spec.tune_for == "both":
            axis.legend(fontsize=7)
    figure.suptitle(f"{dataset}: tuning")
    return figure


_AUROC = "confidence AUROC"
_NAMES = {
    "retrieval": (title_of("map_at_r"),),
    "confidence": (_AUROC,),
    "both": (title_of("map_at_r"), _AUROC),
}
"""Names of the values that a study maximises, by what it tunes for."""


def names_of(study: StudyRecord) -> tuple[str, ...]:
    """Names of the values that a study optimises, as in :func:`~bench.engine.choice.objectives`."""
    return ("loss",) if _by_loss(study) else _NAMES[study.spec.tune_for]


def _by_loss(study: StudyRecord) -> bool:
    return study.spec.tune_for == "retrieval" and study.spec.template.selection.metric == "stage_loss"


def _draw_study(axis: Axes, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
    template, tune_for, by_loss = study.spec.template, study.spec.tune_for, _by_loss(study)
    sign = -1.0 if by_loss else 1.0
    finished = {trial.number: values for trial in trials if (values := objectives(tune_for, trial)) is not None}
    x, found = list(finished), sign * np.array(list(finished.values()))
    names = names_of(study)
    for index, (name, y) in enumerate(zip(names, found.T if finished else [[]] * len(names))):
        one, once = len(names) == 1, "_" if index else ""  # a label that begins with _ is not in the legend
        own = None if one else colour(index)
        axis.plot(x, y, "o", ms=3, alpha=0.6, color=own, label="trial" if one else name)
        if len(y):
            best = (np.minimum if by_loss else np.maximum).accumulate(y)
            axis.step(x, best, where="post", color=own, label=f"{once}best so far")
            axis.plot(x[:1], y[:1], "s", ms=5, mfc="none", color="k", label=f"{once}recipe default")
    for trial in trials:
        if trial.value is None:
            axis.axvline(trial.number, color="tab:red", lw=0.8, alpha=0.6)
    axis.set(
        title=textwrap.fill(template.method + (f", tuned for {tune_for}" if tune_for != "retrieval" else ""), 30),
        xlabel="trial",
        ylabel=f"validation {', '.join(names)}",
    )


def _trials(studies: Sequence[Study]) -> pd.DataFrame:
    """One row per trial; its value is what the study maximises, the MAP@R of two."""
    lines = [
        {
            "study": study.unit,
            "method": study.spec.template.method,
            "metric": study.spec.template.selection.metric,
            "tune_for": study.spec.tune_for,
            **trial.model_dump(include={"number", "state", "value", "reason", "val_map_at_r", "val_confidence_auroc"}),
        }
        for study, trials in studies
        for trial in trials
    ]
    return pd.DataFrame(lines)


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield one figure per data set with the trials of its tuning studies."""
    for dataset in source.datasets:
        studies = [(study, trials) for study, trials in source.site.store.studies(dataset) if trials]
        if studies:
            yield Drawing(f"tuning_{dataset}", tuning_figure(studies, dataset), _trials(studies))
