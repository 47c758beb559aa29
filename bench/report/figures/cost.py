"""Cost against quality: seconds of training against retrieval and the worth of the confidence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ...protocols.metrics import title_of
from ...store.records import TestRecord, TrainRecord
from ..seeds import SeedGroup, defined_values, seed_groups
from .contenders import Shown, each_contender, labelled
from .source import Drawing, Note, Source
from .style import FULL_PAGE

QUALITY = ("map_at_r", "confidence_auroc")
"""Metrics of the clean test images that are shown, a panel each."""


def trainings_of(source: Source, record: TestRecord) -> list[TrainRecord] | None:
    """Trainings that a test needs: those of its models and of their bases; None if a record is missing."""
    found = []
    for unit in record.spec.train:
        trained = source.site.store.trained(record.trained_cell, unit)
        if trained is None:
            return None
        found.append(trained)
        if trained.spec.base is not None:
            base = trained.spec.base
            under = source.site.store.trained(record.trained_cell._replace(method=base.method), base.unit)
            if under is None:
                return None
            found.append(under)
    return found


def cost_table(source: Source, dataset: str, note: Note) -> pd.DataFrame:
    """Table of the quality of every test and its cost: seconds by the clock of all its trainings, without tuning.

    :data:`QUALITY` is under the method's own scorer and default confidence.
    """
    rows = source.merged[source.merged["dataset"] == dataset]
    triples = zip(labelled(rows), seed_groups(rows), source.contenders(dataset), strict=True)
    lines = []
    for shown, group, (_, label, tests) in triples:
        quality = {metric: _quality(group, metric) for metric in QUALITY}
        for test in tests:
            seed = test.columns.seed
            trained = trainings_of(source, test)
            if trained is None:
                note(f"{dataset}, {label}, seed {seed}: a training that it needs has no record")
                continue
            devices = {f"{each.environment.device}, {_threads(each.environment.threads)}" for each in trained}
            lines.append(
                {
                    "index": shown.number,
                    "label": label,
                    "method": test.columns.method,
                    "seed": seed,
                    "seconds": sum(each.environment.seconds for each in trained),
                    "models": len(trained),
                    "tuning_trainings": group.trainings
                    - (len(test.spec.train) if test.columns.ensemble == "seeds" else 0),
                    "device": "; ".join(sorted(devices)),
                    **{metric: values.get(seed, np.nan) for metric, values in quality.items()},
                }
            )
    return pd.DataFrame(lines)


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def _quality(group: SeedGroup, metric: str) -> dict[int, float]:
    of_confidence = metric == "confidence_auroc"
    return defined_values(group.per_seed(metric, confidence=group.confidence if of_confidence else ""))


def cost_figure(table: pd.DataFrame, dataset: str) -> Figure:
    """Plot metrics against seconds of training, a point per contender, means over seeds.

    The grey line goes through the contenders that are better than all that take no longer. The legend has the trainings
    that were spent on tuning, which the seconds leave out.
    """
    contenders = list(each_contender(table))
    columns = min(3, len(contenders))
    lines = -(-len(contenders) // 3)
    figure = Figure(figsize=(FULL_PAGE, 3.4 + 0.17 * lines), layout="constrained")
    axes = figure.subplots(1, len(QUALITY))
    devices = sorted(set(table["device"]))
    where = devices[0] if len(devices) == 1 else f"{len(devices)} kinds of devices: not comparable"
    for axis, metric in zip(axes, QUALITY):
        _draw_points(axis, contenders, metric)
        of = " of the default confidence" if metric != QUALITY[0] else ""
        axis.set(xlabel=f"seconds of training ({where})", ylabel=f"{title_of(metric)}{of}, %", xscale="log")
        axis.set_xlim(0.8 * table["seconds"].min(), 1.25 * table["seconds"].max())
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
    figure.suptitle(f"{dataset}: cost and quality, means over seeds (bars: SD)")
    return figure


def _draw_points(axis: Axes, contenders: list[Shown], metric: str) -> None:
    points = []
    for shown in contenders:
        values, seconds = 100 * shown.rows[metric].dropna(), shown.rows["seconds"]
        tuning = int(shown.rows["tuning_trainings"].iloc[0])
        text = shown.label + (f" (+ {tuning} of tuning)" if tuning else "")
        x, y = seconds.mean(), values.mean() if len(values) else np.nan
        sd = values.std() if len(values) > 1 else 0.0
        points.append((x, y))
        axis.errorbar(x, y, sd, fmt="none", ecolor=shown.look.colour, elinewidth=0.8, alpha=0.6)
        axis.plot(
            x, y, shown.look.marker, ms=6, color=shown.look.colour, fillstyle=shown.look.fill, ls="none", label=text
        )
    front = on_cost_front(np.array(points))
    if len(front) > 1:
        axis.step(*np.array(points)[front].T, where="post", color="0.7", lw=1.0, zorder=1)


def on_cost_front(points: np.ndarray) -> list[int]:
    """Positions of the points (cost and quality, ``[N, 2]``) that are better than all that cost no more, by cost.

    Example:
        >>> on_cost_front(np.array([[3.0, 0.9], [1.0, 0.5], [2.0, 0.4], [3.0, 0.8]]))
        [1, 0]
    """
    front: list[int] = []
    whole = [place for place, point in enumerate(points) if np.isfinite(point).all()]
    for place in sorted(whole, key=lambda place: (points[place, 0], -points[place, 1], place)):
        if not front or points[place, 1] > points[front[-1], 1]:
            front.append(place)
    return front


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield one figure of cost and quality per data set."""
    for dataset in source.datasets:
        table = cost_table(source, dataset, note)
        if len(table):
            yield Drawing(f"cost_{dataset}", cost_figure(table, dataset), table.drop(columns="index"))
