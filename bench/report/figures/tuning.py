"""Tuning history: every trial of every study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...protocols.metrics import title_of
from ...store.records import StudyRecord, TrialRecord
from .source import Drawing, Note, Source

Study = tuple[StudyRecord, list[TrialRecord]]


def tuning_figure(studies: Sequence[Study], dataset: str) -> Figure:
    """Plot the validation MAP@R or loss of every tuning trial and the best so far, one panel per study.

    A study is the hyper-parameter search of one method; the plotted value is the one that the search optimises.

    Args:
        studies: Records of studies, each with those of its trials.
        dataset: Name of the data set, for the title.
    """
    columns = min(3, len(studies))
    lines = -(-len(studies) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axis, (study, trials) in zip(axes, studies):
        _draw_study(axis, study, trials)
    for axis in axes[len(studies) :]:
        axis.set_visible(False)
    axes[0].legend(fontsize=7)
    figure.suptitle(f"{dataset}: tuning")
    return figure


def _draw_study(axis: Axes, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
    template = study.spec.template
    by_loss = template.selection.metric == "stage_loss"
    sign = -1.0 if by_loss else 1.0
    finished = [(trial.number, sign * trial.value) for trial in trials if trial.value is not None]
    x, y = [number for number, _ in finished], np.array([value for _, value in finished])
    axis.plot(x, y, "o", ms=3, alpha=0.6, label="trial")
    if len(y):
        axis.step(x, (np.minimum if by_loss else np.maximum).accumulate(y), where="post", label="best so far")
        axis.plot(x[:1], y[:1], "s", ms=5, mfc="none", color="k", label="recipe default")
    for trial in trials:
        if trial.value is None:
            axis.axvline(trial.number, color="tab:red", lw=0.8, alpha=0.6)
    axis.set(
        title=template.method,
        xlabel="trial",
        ylabel=f"validation {'loss' if by_loss else title_of('map_at_r')}",
    )


def _trials(studies: Sequence[Study]) -> pd.DataFrame:
    """One row per trial; its value is what the study maximises."""
    lines = [
        {
            "study": study.unit,
            "method": study.spec.template.method,
            "metric": study.spec.template.selection.metric,
            **trial.model_dump(include={"number", "state", "value", "reason", "val_map_at_r"}),
        }
        for study, trials in studies
        for trial in trials
    ]
    return pd.DataFrame(lines)


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield one figure per data set with the trials of its tuning studies (hyper-parameter searches).

    Args:
        source: Results folder to draw from.
        note: Not called: data sets without studies are skipped.
    """
    for dataset in source.datasets:
        studies = [(study, trials) for study, trials in source.site.store.studies(dataset) if trials]
        if studies:
            yield Drawing(f"tuning_{dataset}", tuning_figure(studies, dataset), _trials(studies))
