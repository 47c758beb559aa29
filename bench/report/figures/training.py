"""Figures of trainings: validation by epoch, and seconds of training against quality."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ...protocols.metrics import title_of
from ...protocols.statistics import summarise
from ...store.records import KEYS, TestRecord, TrainRecord
from ..seeds import SeedGroup, defined_values, seed_groups
from .curves import Curve, contender_figure
from .source import Drawing, Note, Shown, Source, each_contender, labelled
from .style import FULL_PAGE

QUALITY = ("map_at_r", "confidence_auroc")
"""Metrics of the clean test images that are shown against cost, a panel each."""


def convergence_table(source: Source, dataset: str, note: Note) -> pd.DataFrame:
    """Table of every epoch of the trained models that were tested on a data set; of a cross-validation, the first.

    ``held_out`` is whether ``val_map_at_r`` was measured on classes that were not trained on.
    """
    lines: list[dict[str, object]] = []
    for index, label, tests in source.contenders(dataset):
        for test in tests:
            trained = source.trained(test)
            if trained is None:
                note(f"{dataset}, {label}, seed {test.columns.seed}: its training has no record")
                continue
            columns = {key: getattr(test.columns, key) for key in KEYS}
            columns |= {"held_out": trained.spec.folds > 1, "label": label, "index": index}
            for epoch in trained.history:
                values = {name: getattr(epoch, name) for name in ("epoch", "loss", "val_map_at_r")}
                lines.append({**columns, **values, "best_epoch": trained.best_epoch})
    return pd.DataFrame(lines)


def convergence_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Table of mean validation MAP@R and 95 % t-interval over seeds, per contender and epoch.

    ``seeds`` is the number of seeds that trained for this long, ``all_seeds`` that of the contender.
    """
    lines = []
    for index, label, _, rows in each_contender(table):
        every = rows["seed"].nunique()
        for epoch, values in rows.groupby("epoch")["val_map_at_r"]:
            s = summarise(values.tolist())
            lines.append((index, label, rows["method"].iloc[0], epoch, s.mean, s.ci_low, s.ci_high, s.n, every))
    names = ["index", "label", "method", "epoch", "mean", "ci95_low", "ci95_high", "seeds", "all_seeds"]
    return pd.DataFrame(lines, columns=names)


def convergence_figure(summary: pd.DataFrame, dataset: str, *, held_out: bool = True) -> Figure:
    """Plot MAP@R by epoch, the mean over seeds with its interval, one curve per contender.

    Training stops early, at a different epoch for each seed. A curve ends with the first seed that stops, so that every
    point is a mean over the same seeds.
    """
    classes = "validation" if held_out else "some training"
    whole = summary[summary["seeds"] == summary["all_seeds"]]
    # Intervals of two seeds may be wider than everything else there is to see.
    means = 100 * summary["mean"]
    room = 0.15 * (means.max() - means.min()) or 1.0
    return contender_figure(
        [_curve(shown) for shown in each_contender(whole)],
        x="epoch",
        y=f"{title_of('map_at_r')}, {classes} classes, %",
        title=f"{dataset} (band: 95 % interval over seeds)",
        limits=(max(0.0, means.min() - room), min(100.0, means.max() + room)),
        whole_x=True,
    )


def _curve(shown: Shown) -> Curve:
    rows, count = shown.rows, int(shown.rows["all_seeds"].iloc[0])
    mean, low, high = (100 * rows[name].to_numpy() for name in ("mean", "ci95_low", "ci95_high"))
    text = f"{shown.label}\n({count} {'seed' if count == 1 else 'seeds'})"
    return Curve(text, shown.look, rows["epoch"].to_numpy(), mean, *((low, high) if count > 1 else ()))


def draw_convergence(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield a figure of MAP@R by epoch; its table has every epoch of every seed, with mean and interval.

    Models trained without held-out validation classes are in a separate figure, which shows MAP@R on training classes.
    """
    table = convergence_table(source, dataset, note)
    for held_out, name in ((True, ""), (False, "_on_training_classes")):
        rows = table[table["held_out"] == held_out] if len(table) else table
        if len(rows):
            summary = convergence_summary(rows)
            merged = rows.merge(summary, on=["index", "label", "method", "epoch"])
            figure = convergence_figure(summary, dataset, held_out=held_out)
            yield Drawing(f"convergence_{dataset}{name}", figure, merged)


def trainings_of(source: Source, record: TestRecord) -> list[TrainRecord] | None:
    """Trainings that a test needs: those of its models and of their bases; None if a record is missing."""
    found: list[TrainRecord] = []
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
    rows = source.results.merged[source.results.merged["dataset"] == dataset]
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
            places = [each.environment for each in trained]
            devices = {f"{each.device}, {each.threads} thread{'s' * (each.threads != 1)}" for each in places}
            joint = test.columns.ensemble == "seeds"  # its members are among the trainings that are counted
            lines.append(
                {
                    "index": shown.number,
                    "label": label,
                    "method": test.columns.method,
                    "seed": seed,
                    "seconds": sum(each.seconds for each in places),
                    "models": len(trained),
                    "tuning_trainings": group.trainings - len(test.spec.train) * joint,
                    "device": "; ".join(sorted(devices)),
                    **{metric: values.get(seed, np.nan) for metric, values in quality.items()},
                }
            )
    return pd.DataFrame(lines)


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
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize=8)
    figure.suptitle(f"{dataset}: cost and quality, means over seeds (bars: SD)")
    return figure


def _draw_points(axis: Axes, contenders: Sequence[Shown], metric: str) -> None:
    points = []
    for shown in contenders:
        values, look = 100 * shown.rows[metric].dropna(), shown.look
        tuning = int(shown.rows["tuning_trainings"].iloc[0])
        text = shown.label + (f" (+ {tuning} of tuning)" if tuning else "")
        x, y = shown.rows["seconds"].mean(), values.mean()
        sd = values.std() if len(values) > 1 else 0.0
        points.append((x, y))
        axis.errorbar(x, y, sd, fmt="none", ecolor=look.colour, elinewidth=0.8, alpha=0.6)
        axis.plot(x, y, look.marker, ms=6, color=look.colour, fillstyle=look.fill, ls="none", label=text)
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


def draw_cost(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure of cost and quality."""
    table = cost_table(source, dataset, note)
    if len(table):
        yield Drawing(f"cost_{dataset}", cost_figure(table, dataset), table)
