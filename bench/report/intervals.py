"""Intervals over seeds, classes and queries at once, from the embeddings that tests have kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..methods.scorers.spec import DistributionScorer
from ..protocols.metrics import title_of
from ..protocols.query_metrics import per_query
from ..protocols.ranking import full_depth, rank
from ..protocols.statistics import NestedInterval, nested_bootstrap
from .contender import CONTENDER, Contender, distinct_labels
from .figures.source import Missing, Source
from .figures.tested import TestedModel, read_model
from .seeds import SeedGroup
from .table import GAP, Column, Document, Table, cells_table, frame_of, grouped, headings, held, interval, percent

METRICS = ("recall_at_1", "map_at_r")
"""Metrics with a value for every query."""

SIMULATED = 20
"""Smallest number of classes at which the interval was simulated; it covered 94 to 98 % there."""

ABOUT = (
    "Mean over seeds and queries of the clean test images, by the method's own scorer, with an interval for new"
    " trainings and new classes (nested bootstrap over seeds, classes and queries, 2000 draws, widened for few seeds)."
    f" It is called one of 95 % from {SIMULATED} classes on."
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

    The embeddings are ranked again. A contender has an interval only if this gives the recorded mean at every seed.
    """
    found = []
    for dataset in source.datasets:
        for _, _, tests in source.contenders(dataset):
            contender = Contender.of_columns(tests[0].columns)
            units = {test.unit for test in tests}
            group = SeedGroup.of(source.merged[source.merged["unit"].isin(units)])
            try:
                if len(tests) < 2:
                    raise Missing("one seed")
                models = [read_model(source.site.store, test, contender.label, 0) for test in tests]
                found += [_interval(contender, group, name, models) for name in METRICS]
            except Missing as error:
                found += [QueryInterval(contender, name, None, str(error)) for name in METRICS]
    return found


def _interval(contender: Contender, group: SeedGroup, metric: str, models: Sequence[TestedModel]) -> QueryInterval:
    recorded = group.per_seed(metric)
    values = []
    for model in models:
        try:
            scorer = DistributionScorer(group.scorer, model.distribution)
            ranking = rank(
                scorer, model.labels, depth=full_depth(model.labels), queries=model.queries, gallery=model.gallery
            )
        except (KeyError, TypeError, ValueError):  # trained parameters of a scorer are not kept
            raise Missing(f"the scorer {group.scorer} cannot be computed from the kept embeddings") from None
        own = per_query(ranking)[metric].double().numpy()
        if abs(float(np.nanmean(own)) - recorded.get(model.seed, np.nan)) > 1e-6 or model.seed not in recorded:
            raise Missing(f"seed {model.seed}: the kept embeddings do not give the recorded {title_of(metric)}")
        values.append(own)
    table = np.stack(values)
    counted = ~np.isnan(table).any(0)
    classes = models[0].labels[models[0].queries].numpy()[counted]
    if len(np.unique(classes)) < 2:
        return QueryInterval(contender, metric, None, "one class")
    found = nested_bootstrap(table[:, counted], classes)
    # The widened interval knows no bounds, but both metrics are shares.
    within = replace(found, ci_low=max(found.ci_low, 0.0), ci_high=min(found.ci_high, 1.0))
    return QueryInterval(contender, metric, within, "")


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
    level = [] if first and first.classes >= SIMULATED else ["Not simulated with so few classes."]
    gaps = [f"{names[each]}: {own[0].reason}." for each, own in by_contender.items() if own[0].reason]
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
