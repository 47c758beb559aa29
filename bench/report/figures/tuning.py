"""Figures of tuning studies: every trial, the importance of parameters, the front of retrieval and confidence."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...engine.tuning import ONE_POINT, choose, distributions_of, objectives
from ...protocols.metrics import title_of
from ...store.records import StudyRecord, TrialRecord
from .source import Drawing, Note, Source
from .style import FULL_PAGE, PALETTE, panels

Study = tuple[StudyRecord, list[TrialRecord]]

FEWEST = 8
"""Smallest number of finished trials from which importance is estimated."""
TREES, SEED = 32, 0
"""Trees and seed of the random forest, fixed so that the same records give the same importance."""
BLUE, ORANGE, GREEN, GREY = PALETTE[0], PALETTE[1], PALETTE[2], "0.6"
_AUROC = "confidence AUROC"
_NAMES = {
    "retrieval": (title_of("map_at_r"),),
    "confidence": (_AUROC,),
    "both": (title_of("map_at_r"), _AUROC),
}
"""Names of the values that a study maximises, by what it tunes for."""


def names_of(study: StudyRecord) -> tuple[str, ...]:
    """Names of the values that a study optimises, as in :func:`~bench.engine.tuning.objectives`."""
    return ("loss",) if _by_loss(study) else _NAMES[study.spec.tune_for]


def _by_loss(study: StudyRecord) -> bool:
    return study.spec.tune_for == "retrieval" and study.spec.template.selection.metric == "stage_loss"


def _title(study: StudyRecord) -> str:
    """Method, and what it is tuned for unless that is retrieval."""
    tune_for = study.spec.tune_for
    return study.spec.template.method + (f", tuned for {tune_for}" if tune_for != "retrieval" else "")


def _finished(study: StudyRecord, trials: Sequence[TrialRecord]) -> list[tuple[TrialRecord, tuple[float, ...]]]:
    """Trials with the values that they reached."""
    found = ((trial, objectives(study.spec.tune_for, trial)) for trial in trials)
    return [(trial, values) for trial, values in found if values is not None]


def tuning_figure(studies: Sequence[Study], dataset: str) -> Figure:
    """Plot the values that studies maximise, of every tuning trial and the best so far, one panel per study."""
    many = len(studies) > 6
    figure, axes = panels(len(studies), 4 if many else 3, (FULL_PAGE / 4, 1.9) if many else (3.6, 2.9))
    for place, (axis, (study, trials)) in enumerate(zip(axes, studies)):
        _draw_study(axis, study, trials)
        if place == 0 or study.spec.tune_for == "both":
            axis.legend(fontsize=7)
    figure.suptitle(f"{dataset}: tuning")
    return figure


def _draw_study(axis: Axes, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
    names, by_loss, finished = names_of(study), _by_loss(study), _finished(study, trials)
    x = [trial.number for trial, _ in finished]
    for index, name in enumerate(names):
        y = np.array([-values[index] if by_loss else values[index] for _, values in finished])
        one, once = len(names) == 1, "_" if index else ""  # a label that begins with _ is not in the legend
        own = None if one else PALETTE[index]
        axis.plot(x, y, "o", ms=3, alpha=0.6, color=own, label="trial" if one else name)
        if len(y):
            best = (np.minimum if by_loss else np.maximum).accumulate(y)
            axis.step(x, best, where="post", color=own, label=f"{once}best so far")
            axis.plot(x[:1], y[:1], "s", ms=5, mfc="none", color="k", label=f"{once}recipe default")
    for trial in trials:
        if trial.value is None:
            axis.axvline(trial.number, color="tab:red", lw=0.8, alpha=0.6)
    axis.set(title=textwrap.fill(_title(study), 30), xlabel="trial", ylabel=f"validation {', '.join(names)}")


def draw(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure with the trials of the studies, and a table with one row each.

    The value of a trial is what the study maximises, the MAP@R of two.
    """
    studies = [(study, trials) for study, trials in source.site.store.studies(dataset) if trials]
    lines = [line for study, trials in studies for line in trial_lines(study, trials)]
    if studies:
        yield Drawing(f"tuning_{dataset}", tuning_figure(studies, dataset), pd.DataFrame(lines))


def trial_lines(study: StudyRecord, trials: Iterable[TrialRecord]) -> list[dict[str, object]]:
    """A row for each trial of a study, without what was tried."""
    shown = {"number", "state", "value", "reason", "val_map_at_r", "val_confidence_auroc"}
    template = study.spec.template
    of_study = {"study": study.unit, "method": template.method, "metric": template.selection.metric}
    return [{**of_study, "tune_for": study.spec.tune_for, **trial.model_dump(include=shown)} for trial in trials]


def importance_table(study: StudyRecord, trials: Sequence[TrialRecord]) -> pd.DataFrame:
    """Table of the importance of each tuned parameter by functional ANOVA (Hutter et al. 2014), as Optuna has it.

    A random forest is fitted to the trials. The importance is the share of the variance of its prediction over the
    search space that the parameter explains alone; shares are scaled to a sum of 1. The table is empty with fewer than
    :data:`FEWEST` finished trials, or if all of them have the same value.
    """
    finished = _finished(study, trials)
    lines = []
    for place, name in enumerate(names_of(study)):
        values = [found[place] for _, found in finished]
        if len(finished) < FEWEST or len(set(values)) == 1:
            continue
        shares = _importances(study, [trial for trial, _ in finished], values)
        about = {"study": study.unit, "method": study.spec.template.method, "tune_for": study.spec.tune_for}
        for parameter, importance in sorted(shares.items(), key=lambda item: (-item[1], item[0])):
            found = {"value": name, "parameter": parameter, "importance": importance, "trials": len(finished)}
            lines.append(about | found)
    return pd.DataFrame(lines)


def _importances(study: StudyRecord, trials: Sequence[TrialRecord], values: Sequence[float]) -> dict[str, float]:
    import optuna

    distributions = distributions_of(study.spec.space)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rebuilt = optuna.create_study(direction="maximize")
    for trial, value in zip(trials, values):
        params = {name: trial.params[name] for name in distributions}
        rebuilt.add_trial(optuna.trial.create_trial(value=value, params=params, distributions=distributions))
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, seed=SEED)
    found: dict[str, float] = optuna.importance.get_param_importances(rebuilt, evaluator=evaluator)
    return found


def importance_figure(studies: Sequence[tuple[StudyRecord, pd.DataFrame]], dataset: str) -> Figure:
    """Plot the importance of every tuned parameter as bars, one panel per study."""
    most = max(len(table) for _, table in studies)
    columns = min(3, len(studies))
    figure, axes = panels(len(studies), columns, (FULL_PAGE / max(columns, 2), 0.55 + 0.2 * most), share_x=True)
    for axis, (study, table) in zip(axes, studies):
        names = list(dict.fromkeys(table["value"]))
        parameters = list(dict.fromkeys(table["parameter"]))
        height = 0.8 / len(names)
        for number, name in enumerate(names):
            rows = table[table["value"] == name].set_index("parameter")["importance"].reindex(parameters)
            places = [place + (number - (len(names) - 1) / 2) * 0.8 / len(names) for place in range(len(parameters))]
            axis.barh(places, rows, height, color=PALETTE[number], label=name)
        axis.set_yticks(range(len(parameters)), parameters, fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"{_title(study)}\n({table['trials'].iloc[0]} trials)", fontsize=8)
        axis.set_xlabel("importance")
    shown = {text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels())}
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=len(shown), fontsize=8)
    figure.suptitle(f"{dataset}: importance of tuned parameters (functional ANOVA)")
    return figure


def draw_importance(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure with the importance of the parameters of the studies."""
    shown = []
    for study, trials in source.site.store.studies(dataset):
        table = importance_table(study, trials)
        if len(table):
            shown.append((study, table))
        else:
            method = study.spec.template.method
            note(f"{dataset}, {method}: importance needs {FEWEST} finished trials of different values")
    if shown:
        table = pd.concat([table for _, table in shown], ignore_index=True)
        yield Drawing(f"importance_{dataset}", importance_figure(shown, dataset), table)


def front_table(study: StudyRecord, trials: Sequence[TrialRecord]) -> pd.DataFrame:
    """Table of the finished trials of a study for both: both values, and what the trial is."""
    chosen, retrieval = choose("both", trials), choose("retrieval", trials)
    lines = [
        {
            "study": study.unit,
            "method": study.spec.template.method,
            **trial.model_dump(include={"number", "val_map_at_r", "val_confidence_auroc"}),
            "best_map_at_r": trial == retrieval,
            "chosen": trial == chosen,
        }
        for trial, _ in _finished(study, trials)
    ]
    table = pd.DataFrame(lines)
    return table.assign(on_front=on_front(table[["val_map_at_r", "val_confidence_auroc"]].to_numpy()))


def front_figure(studies: Sequence[Study], dataset: str) -> Figure:
    """Plot the confidence AUROC of every trial against its MAP@R, on validation classes, one panel per study.

    The panel shows the Pareto front, the band of MAP@R within one point of the best, the trial with the best MAP@R and
    the one that the study chooses.
    """
    figure, axes = panels(len(studies), 3, (3.6, 3.1))
    for axis, (study, trials) in zip(axes, studies):
        _draw_front(axis, front_table(study, trials))
        failed = sum(trial.state == "failed" for trial in trials)
        axis.set_title(study.spec.template.method + (f" ({failed} of {len(trials)} trials failed)" if failed else ""))
    axes[0].legend(fontsize=7)
    figure.suptitle(f"{dataset}: tuning for retrieval and confidence")
    return figure


def _draw_front(axis: Axes, table: pd.DataFrame) -> None:
    points = table[["val_map_at_r", "val_confidence_auroc"]].to_numpy()
    front = points[table["on_front"]]
    front = front[front[:, 0].argsort()]
    best = points[:, 0].max()
    axis.axvspan(best - ONE_POINT, best, color=GREEN, alpha=0.15, lw=0, label="one point of MAP@R")
    axis.axhline(0.5, color="k", lw=0.6, ls=":")
    axis.plot(*points.T, "o", ms=4, color=GREY, label="trial")
    axis.step(*front.T, where="pre", color=BLUE, lw=1.0, label="Pareto front")
    axis.plot(*front.T, "o", ms=4, color=BLUE)
    for column, marker, edge, label in (("best_map_at_r", "s", "k", "best MAP@R"), ("chosen", "D", ORANGE, "chosen")):
        axis.plot(*points[table[column]].T, marker, ms=9, mfc="none", mec=edge, mew=1.5, ls="none", label=label)
    axis.set(xlabel=f"validation {title_of('map_at_r')}", ylabel="validation confidence AUROC, crops")


def on_front(points: np.ndarray) -> np.ndarray:
    """Mark the points ``[N, 2]`` that no other dominates: none is at least as high in both values and higher in one.

    Example:
        >>> on_front(np.array([[0.1, 0.9], [0.5, 0.5], [0.4, 0.5], [0.5, 0.5]])).tolist()
        [True, True, False, True]
    """
    (x, y), (own_x, own_y) = points.T, points.T[:, :, None]
    dominates: np.ndarray = (x >= own_x) & (y >= own_y) & ((x > own_x) | (y > own_y))
    return np.logical_not(dominates.any(axis=1))


def draw_front(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure of the studies for both of which one trial at least has not failed."""
    studies = [
        (study, trials)
        for study, trials in source.site.store.studies(dataset)
        if study.spec.tune_for == "both" and choose("both", trials) is not None
    ]
    if studies:
        table = pd.concat([front_table(*study) for study in studies], ignore_index=True)
        yield Drawing(f"tuning_front_{dataset}", front_figure(studies, dataset), table)
