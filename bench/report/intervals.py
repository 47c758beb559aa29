"""Intervals over seeds, classes and queries at once, from the embeddings that tests have kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..methods.scorers.spec import DistributionScorer
from ..protocols.metrics import title_of
from ..protocols.query_metrics import per_query
from ..protocols.ranking import full_depth, rank
from ..protocols.statistics import NestedInterval, auroc_and_augrc, nested_bootstrap_of
from .contender import CONTENDER, Contender, distinct_labels
from .figures.source import Missing, Source
from .figures.tested import TestedModel, read_model
from .seeds import SeedGroup
from .table import GAP, Column, Document, Table, cells_table, frame_of, grouped, headings, held, interval, percent

OF_CONFIDENCE = ("confidence_auroc", "augrc")
"""Metrics of the default confidence, which are computed anew from the queries of every draw."""

METRICS = ("recall_at_1", "map_at_r", *OF_CONFIDENCE)
"""Metrics that get an interval; the first ones have a value for every query."""

SIMULATED = 20
"""Smallest number of classes at which the interval was simulated; it covered 94 to 98 % there."""

ABOUT = (
    "Mean over seeds of the clean test images, by the method's own scorer and default confidence, with an interval for"
    " new trainings and new classes (nested bootstrap over seeds, classes and queries, 2000 draws, widened for few"
    " seeds)."
    f" Of R@1 and MAP@R it is called one of 95 % from {SIMULATED} classes on."
)
"""Legend of the tables."""


@dataclass(frozen=True)
class QueryInterval:
    """Mean of a metric of a contender with its interval over seeds, classes and queries, or why there is none."""

    contender: Contender
    metric: str
    interval: NestedInterval | None
    reason: str


def query_intervals(source: Source) -> list[QueryInterval]:
    """Intervals of all contenders, by data set.

    The embeddings are ranked again. A contender has an interval only if this gives the recorded value at every seed.
    """
    found = []
    for dataset in source.datasets:
        for _, _, tests in source.contenders(dataset):
            contender = Contender.of_columns(tests[0].columns)
            units = {test.unit for test in tests}
            group = SeedGroup.of(source.results.merged[source.results.merged["unit"].isin(units)])
            try:
                if len(tests) < 2:
                    raise Missing("one seed")
                models = [read_model(source.site.store, test, contender.label, 0) for test in tests]
                ranked = [_ranked(group, model) for model in models]
            except Missing as error:
                found += [QueryInterval(contender, name, None, str(error)) for name in METRICS]
                continue
            for name in METRICS:
                try:
                    found.append(_interval(group, name, models, ranked))
                except Missing as error:
                    found.append(QueryInterval(contender, name, None, str(error)))
    return found


def _ranked(group: SeedGroup, model: TestedModel) -> dict[str, np.ndarray]:
    """Values of the metrics of single queries by the method's own scorer, ``[Q]`` each."""
    try:
        scorer = DistributionScorer(group.scorer, model.distribution)
        depth = full_depth(model.labels)
        ranking = rank(scorer, model.labels, depth=depth, queries=model.queries, gallery=model.gallery)
    except (KeyError, TypeError, ValueError):  # trained parameters of a scorer are not kept
        raise Missing(f"the scorer {group.scorer} cannot be computed from the kept embeddings") from None
    return {name: value.double().numpy() for name, value in per_query(ranking).items()}


def _interval(
    group: SeedGroup, metric: str, models: Sequence[TestedModel], ranked: Sequence[Mapping[str, np.ndarray]]
) -> QueryInterval:
    judged = metric in OF_CONFIDENCE
    variant, name = ("recall_at_1" * (metric == "augrc"), group.confidence) if judged else ("", "")
    table = np.stack([each["recall_at_1" if judged else metric] for each in ranked])
    counted = ~np.isnan(table).any(0)
    table = table[:, counted]
    classes = models[0].labels[models[0].queries].numpy()[counted]
    statistic: Callable[[np.ndarray], np.ndarray] = partial(_means, table)
    if judged:
        if not all(name in model.confidence for model in models):
            raise Missing(f"the confidence {name} is not kept")
        kept = np.stack([model.confidence[name][model.queries].double().numpy() for model in models])[:, counted]
        statistic = partial(_risks, OF_CONFIDENCE.index(metric), kept, table)
    recorded = group.per_seed(metric, variant=variant, confidence=name)
    for model, value in zip(models, statistic(np.ones((1, len(classes))))[0]):
        # A single value of nan is an AUROC without a wrong answer.
        if not abs(float(value) - recorded.get(model.seed, np.nan)) <= 1e-6:
            raise Missing(f"seed {model.seed}: the kept embeddings do not give the recorded value")
    if len(np.unique(classes)) < 2:
        return QueryInterval(group.contender, metric, None, "one class")
    found = nested_bootstrap_of(statistic, classes)
    # The widened interval knows no bounds, but all metrics are shares.
    within = replace(found, ci_low=max(found.ci_low, 0.0), ci_high=min(found.ci_high, 1.0))
    return QueryInterval(group.contender, metric, within, "")


def _means(table: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted mean of a metric at every seed."""
    means: np.ndarray = weights @ table.T / weights.sum(1, keepdims=True)
    return means


def _risks(place: int, confidences: np.ndarray, right: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """One metric of :data:`OF_CONFIDENCE` of weighted queries at every seed."""
    return np.stack([auroc_and_augrc(*each, weights)[place] for each in zip(confidences, right)], 1)


def _numbers(each: QueryInterval) -> dict[str, object]:
    nan = float("nan")
    return vars(each.interval or NestedInterval(nan, nan, nan, 0, 0, 0))


NUMBERS: tuple[Column[QueryInterval], ...] = (
    CONTENDER,
    Column("", fields=held("metric")),
    Column("", fields=_numbers),
    Column("", fields=held("reason")),
)
"""Columns of the numbers; tables for readers have a column per metric."""


def interval_document(found: Sequence[QueryInterval], name: str) -> Document:
    """Tables of intervals, one per data set."""
    parts = grouped(found, lambda each: each.contender.dataset)
    tables = tuple(_table(dataset, rows) for dataset, rows in parts.items())
    heading = "Intervals over seeds, classes and queries"
    return Document(name, heading, f"{ABOUT} Percent.", tables, frame_of(NUMBERS, found))


def _table(dataset: str, rows: Sequence[QueryInterval]) -> Table:
    by_contender = grouped(rows, lambda row: row.contender)
    names = distinct_labels(list(by_contender))
    first = next((row.interval for row in rows if row.interval), None)
    sizes = f"{first.classes} classes, {first.queries} queries" if first else ""
    level = ["Not simulated with so few classes."] if first and first.classes < SIMULATED else []
    lost = ((each, reason) for each, own in by_contender.items() for reason in dict.fromkeys(row.reason for row in own))
    gaps = [f"{names[each]}: {reason}." for each, reason in lost if reason]
    return cells_table(
        ", ".join(filter(None, [dataset, sizes])),
        headings("method", "seeds", *(title_of(name, short=True) for name in METRICS)),
        [(names[each], *_cells(own)) for each, own in by_contender.items()],
        notes=(*level, *gaps),
        caption=ABOUT,
    )


def _cells(rows: Sequence[QueryInterval]) -> tuple[str, ...]:
    """Seeds of a contender, and its interval by each metric."""
    found = [row.interval for row in rows]
    texts = [interval(*map(percent, (each.mean, each.ci_low, each.ci_high))) if each else GAP for each in found]
    return next((str(each.seeds) for each in found if each), GAP), *texts
