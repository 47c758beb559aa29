"""Importance of tuned parameters: how much of the variance of the trials each of them explains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.figure import Figure

from ...engine.choice import objectives
from ...store.records import StudyRecord, TrialRecord
from .source import Drawing, Note, Source
from .style import FULL_PAGE, colour, panels
from .tuning import Study, names_of

FEWEST = 8
"""Smallest number of finished trials from which importance is estimated."""
TREES, SEED = 32, 0
"""Trees and seed of the random forest, fixed so that the same records give the same importance."""


def importance_table(study: StudyRecord, trials: Sequence[TrialRecord]) -> pd.DataFrame:
    """Table of the importance of each tuned parameter by functional ANOVA (Hutter et al. 2014), as Optuna has it.

    A random forest is fitted to the trials. The importance is the share of the variance of its prediction over the
    search space that the parameter explains alone; shares are scaled to a sum of 1. The table is empty with fewer than
    :data:`FEWEST` finished trials, or if all of them have the same value.
    """
    finished = [(trial, found) for trial in trials if (found := objectives(study.spec.tune_for, trial)) is not None]
    lines = []
    for place, name in enumerate(names_of(study)):
        values = [found[place] for _, found in finished]
        if len(finished) < FEWEST or len(set(values)) == 1:
            continue
        shares = _importances(study, [trial for trial, _ in finished], values)
        for parameter, importance in sorted(shares.items(), key=lambda item: (-item[1], item[0])):
            lines.append(
                {
                    "study": study.unit,
                    "method": study.spec.template.method,
                    "tune_for": study.spec.tune_for,
                    "value": name,
                    "parameter": parameter,
                    "importance": importance,
                    "trials": len(finished),
                }
            )
    return pd.DataFrame(lines)


def _importances(study: StudyRecord, trials: Sequence[TrialRecord], values: Sequence[float]) -> dict[str, float]:
    import optuna
    from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

    distributions: dict[str, BaseDistribution] = {
        name: IntDistribution(int(each.low), int(each.high), log=each.log)
        if each.type == "int"
        else FloatDistribution(each.low, each.high, log=each.log)
        for name, each in sorted(study.spec.space.items())
    }
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rebuilt = optuna.create_study(direction="maximize")
    for trial, value in zip(trials, values):
        params = {name: trial.params[name] for name in distributions}
        rebuilt.add_trial(optuna.trial.create_trial(value=value, params=params, distributions=distributions))
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, seed=SEED)
    found: dict[str, float] = optuna.importance.get_param_importances(rebuilt, evaluator=evaluator)
    return found


def importance_figure(studies: Sequence[tuple[Study, pd.DataFrame]], dataset: str) -> Figure:
    """Plot the importance of every tuned parameter as bars, one panel per study."""
    most = max(len(table) for _, table in studies)
    columns = min(3, len(studies))
    figure, axes = panels(len(studies), columns, (FULL_PAGE / max(columns, 2), 0.55 + 0.2 * most), share_x=True)
    for axis, ((study, _), table) in zip(axes, studies):
        names = list(dict.fromkeys(table["value"]))
        parameters = list(dict.fromkeys(table["parameter"]))
        for number, name in enumerate(names):
            rows = table[table["value"] == name].set_index("parameter")["importance"].reindex(parameters)
            places = [place + (number - (len(names) - 1) / 2) * 0.8 / len(names) for place in range(len(parameters))]
            axis.barh(places, rows, 0.8 / len(names), color=colour(number), label=name)
        axis.set_yticks(range(len(parameters)), parameters, fontsize=8)
        axis.invert_yaxis()
        spec = study.spec
        goal = f", tuned for {spec.tune_for}" if spec.tune_for != "retrieval" else ""
        axis.set_title(f"{spec.template.method}{goal}\n({table['trials'].iloc[0]} trials)", fontsize=8)
        axis.set_xlabel("importance")
    shown = {text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels())}
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=len(shown), fontsize=8)
    figure.suptitle(f"{dataset}: importance of tuned parameters (functional ANOVA)")
    return figure


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield one figure per data set with the importance of the parameters of its tuning studies."""
    for dataset in source.datasets:
        shown = []
        for study, trials in source.site.store.studies(dataset):
            table = importance_table(study, trials)
            if len(table):
                shown.append(((study, trials), table))
            else:
                method = study.spec.template.method
                note(f"{dataset}, {method}: importance needs {FEWEST} finished trials of different values")
        if shown:
            table = pd.concat([table for _, table in shown], ignore_index=True)
            yield Drawing(f"importance_{dataset}", importance_figure(shown, dataset), table)
