"""Trials of studies that tune for retrieval and confidence: the front of both, and the trial that was chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...engine.choice import ONE_POINT, choose, objectives
from ...protocols.metrics import title_of
from ...store.records import TrialRecord
from .source import Drawing, Note, Source
from .style import PALETTE, panels
from .tuning import Study

BLUE, ORANGE, GREEN, GREY = PALETTE[0], PALETTE[1], PALETTE[2], "0.6"


def front_figure(studies: Sequence[Study], dataset: str) -> Figure:
    """Plot the confidence AUROC of every trial against its MAP@R, on validation classes, one panel per study.

    The panel shows the Pareto front, the band of MAP@R within one point of the best, the trial with the best MAP@R and
    the one that the study chooses.
    """
    figure, axes = panels(len(studies), 3, (3.6, 3.1))
    for axis, (study, trials) in zip(axes, studies):
        _draw_front(axis, trials)
        failed = sum(trial.state == "failed" for trial in trials)
        axis.set_title(study.spec.template.method + (f" ({failed} of {len(trials)} trials failed)" if failed else ""))
    axes[0].legend(fontsize=7)
    figure.suptitle(f"{dataset}: tuning for retrieval and confidence")
    return figure


def _draw_front(axis: Axes, trials: Sequence[TrialRecord]) -> None:
    points = np.array([values for trial in trials if (values := objectives("both", trial)) is not None])
    chosen, retrieval = choose("both", trials), choose("retrieval", trials)
    assert chosen is not None
    assert retrieval is not None
    front = points[on_front(points)]
    front = front[front[:, 0].argsort()]
    best = points[:, 0].max()
    axis.axvspan(best - ONE_POINT, best, color=GREEN, alpha=0.15, lw=0, label="one point of MAP@R")
    axis.axhline(0.5, color="k", lw=0.6, ls=":")
    axis.plot(*points.T, "o", ms=4, color=GREY, label="trial")
    axis.step(*front.T, where="pre", color=BLUE, lw=1.0, label="Pareto front")
    axis.plot(*front.T, "o", ms=4, color=BLUE)
    for trial, marker, colour, label in (
        (retrieval, "s", "k", "best MAP@R"),
        (chosen, "D", ORANGE, "chosen"),
    ):
        values = objectives("both", trial)
        assert values is not None
        axis.plot(*values, marker, ms=9, mfc="none", mec=colour, mew=1.5, ls="none", label=label)
    axis.set(xlabel=f"validation {title_of('map_at_r')}", ylabel="validation confidence AUROC, crops")


def on_front(points: np.ndarray) -> np.ndarray:
    """Mark the points ``[N, 2]`` that no other dominates: none is at least as high in both values and higher in one.

    Example:
        >>> on_front(np.array([[0.1, 0.9], [0.5, 0.5], [0.4, 0.5], [0.5, 0.5]])).tolist()
        [True, True, False, True]
    """
    (x, y), (own_x, own_y) = points.T, points.T[:, :, None]
    dominates = (x >= own_x) & (y >= own_y) & ((x > own_x) | (y > own_y))
    return np.array([not row.any() for row in dominates])


def _front_rows(studies: Sequence[Study]) -> pd.DataFrame:
    """One row per trial, with both values and what the trial is."""
    tables = []
    for study, trials in studies:
        chosen, retrieval = choose("both", trials), choose("retrieval", trials)
        finished = [trial for trial in trials if objectives("both", trial) is not None]
        frame = pd.DataFrame(
            [
                {
                    "study": study.unit,
                    "method": study.spec.template.method,
                    **trial.model_dump(include={"number", "val_map_at_r", "val_confidence_auroc"}),
                    "best_map_at_r": trial == retrieval,
                    "chosen": trial == chosen,
                }
                for trial in finished
            ]
        )
        tables.append(frame.assign(on_front=on_front(frame[["val_map_at_r", "val_confidence_auroc"]].to_numpy())))
    return pd.concat(tables, ignore_index=True)


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield one figure per data set with studies for both, of which one trial at least has not failed."""
    for dataset in source.datasets:
        studies = [
            (study, trials)
            for study, trials in source.site.store.studies(dataset)
            if study.spec.tune_for == "both" and choose("both", trials) is not None
        ]
        if studies:
            yield Drawing(f"tuning_front_{dataset}", front_figure(studies, dataset), _front_rows(studies))
