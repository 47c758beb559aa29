"""Figures of trainings: validation by epoch, and seconds of training against quality."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ...protocols.metrics import title_of
from ...protocols.statistics import summarise
from ...store.records import KEYS, TestRecord, TrainRecord
from ..seeds import SeedStatistics, seed_groups
from .curves import Curve, contender_figure, legend_below
from .source import Drawing, Note, Shown, Source, each_contender, labelled
from .style import FULL_PAGE, looks, panels

QUALITY = ("map_at_r", "confidence_auroc")
"""Metrics of the clean test images that are shown against cost, a panel each."""


def convergence_table(source: Source, dataset: str, note: Note) -> pd.DataFrame:
    """Table of every epoch of the trained models that were tested on a data set; of a cross-validation, the first.

    ``held_out`` is whether ``val_map_at_r`` was measured on classes that were not trained on. Mean and 95 % t-interval
    are those of the contender's seeds at the epoch: ``seeds`` have trained for this long, of ``all_seeds``.
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
    table = pd.DataFrame(lines)
    if table.empty:
        return table
    every = table.groupby("index")["seed"].nunique().to_dict()
    found = [
        (index, epoch, s.mean, s.ci_low, s.ci_high, s.n, every[index])
        for (index, epoch), values in table.groupby(["index", "epoch"])["val_map_at_r"]
        for s in [summarise(values.tolist())]
    ]
    names = ["index", "epoch", "mean", "ci95_low", "ci95_high", "seeds", "all_seeds"]
    return table.merge(pd.DataFrame(found, columns=names), on=["index", "epoch"])


def convergence_figure(table: pd.DataFrame, dataset: str, *, held_out: bool = True) -> Figure:
    """Plot MAP@R by epoch, the mean over seeds with its interval, one curve per contender.

    Training stops early, at a different epoch for each seed. A curve ends with the first seed that stops, so that every
    point is a mean over the same seeds.
    """
    # Intervals of two seeds may be wider than everything else there is to see.
    means = 100 * table["mean"]
    room = 0.15 * (means.max() - means.min()) or 1.0
    whole = table[table["seeds"] == table["all_seeds"]].drop_duplicates(["index", "epoch"]).sort_values("epoch")
    figure = contender_figure(
        [_curve(shown) for shown in each_contender(whole)],
        x="epoch",
        y=f"{title_of('map_at_r')}, {'validation' if held_out else 'some training'} classes, %",
        title=f"{dataset} (band: 95 % interval over seeds)",
        ylim=(max(0.0, means.min() - room), min(100.0, means.max() + room)),
    )
    for axis in figure.axes:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    return figure


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
            figure = convergence_figure(rows, dataset, held_out=held_out)
            yield Drawing(f"convergence_{dataset}{name}", figure, rows)


def trainings_of(source: Source, record: TestRecord) -> list[TrainRecord] | None:
    """Trainings that a test needs: those of its models and of their bases; None if a record is missing."""
    store, cell = source.site.store, record.trained_cell
    own = [store.trained(cell, unit) for unit in record.spec.train]
    bases = [trained.spec.base for trained in own if trained and trained.spec.base]
    found = [*own, *(store.trained(cell._replace(method=base.method), base.unit) for base in bases)]
    known = [trained for trained in found if trained]
    return known if len(known) == len(found) else None


def cost_table(source: Source, dataset: str, note: Note) -> pd.DataFrame:
    """Table of the quality and cost of every contender: seconds of all trainings of a seed, without tuning.

    Seconds and :data:`QUALITY`, under the method's own scorer and default confidence, are means over seeds.
    """
    rows = source.results.merged[source.results.merged["dataset"] == dataset]
    every = zip(labelled(rows), seed_groups(rows), source.contenders(dataset), strict=True)
    lines: list[dict[str, object]] = []
    for shown, group, (_, label, tests) in every:
        needed = [trainings_of(source, test) for test in tests]
        places = [trained.environment for own in needed if own for trained in own]
        if not all(needed):
            note(f"{dataset}, {label}: a training that it needs has no record")
            continue
        devices = {f"{each.device}, {each.threads} thread{'s' * (each.threads != 1)}" for each in places}
        # Members of an ensemble are among the trainings that are counted.
        joint = group.contender.ensemble == "seeds"
        line = {"index": shown.number, "label": label, "method": group.contender.method, "seeds": len(tests)}
        line |= {"seconds": sum(each.seconds for each in places) / len(tests), "device": "; ".join(sorted(devices))}
        line |= {"tuning_trainings": group.trainings - len(tests[0].spec.train) * joint}
        for metric, confidence in zip(QUALITY, ("", group.confidence)):
            found = SeedStatistics.of(group.per_seed(metric, confidence=confidence))
            line |= {metric: found.mean, f"{metric}_sd": found.sd}
        lines.append(line)
    return pd.DataFrame(lines)


def cost_figure(table: pd.DataFrame, dataset: str) -> Figure:
    """Plot metrics against seconds of training, a point per contender.

    The legend has the trainings that were spent on tuning, which the seconds leave out.
    """
    figure, axes = panels(2, 2, (FULL_PAGE / 2, 3.0 + 0.17 * -(-len(table) // 3)))
    devices = sorted(set(table["device"]))
    where = devices[0] if len(devices) == 1 else f"{len(devices)} kinds of devices: not comparable"
    for axis, metric, of in zip(axes, QUALITY, ("", " of the default confidence")):
        for (_, line), look in zip(table.iterrows(), looks(list(table["method"]))):
            tuning = line["tuning_trainings"]
            text = line["label"] + (f" (+ {tuning} of tuning)" if tuning else "")
            x, y, sd = line["seconds"], 100 * line[metric], 100 * np.nan_to_num(line[f"{metric}_sd"])
            axis.errorbar(x, y, sd, fmt="none", ecolor=look.colour, elinewidth=0.8, alpha=0.6)
            axis.plot(x, y, look.marker, ms=6, color=look.colour, fillstyle=look.fill, ls="none", label=text)
        axis.set(xlabel=f"seconds of training ({where})", ylabel=f"{title_of(metric)}{of}, %", xscale="log")
        axis.set_xlim(0.8 * table["seconds"].min(), 1.25 * table["seconds"].max())
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    legend_below(figure, axes)
    figure.suptitle(f"{dataset}: cost and quality, means over seeds (bars: SD)")
    return figure


def draw_cost(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure of cost and quality."""
    table = cost_table(source, dataset, note)
    if len(table):
        yield Drawing(f"cost_{dataset}", cost_figure(table, dataset), table)
