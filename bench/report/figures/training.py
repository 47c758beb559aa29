"""Figure of trainings: validation by epoch."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...protocols.metrics import title_of
from ...protocols.statistics.paired import summarise
from ...store.records import KEYS
from .curves import Curve, Panel, curve_figure
from .registry import Drawing, Note, Shown, Source, labelled


def convergence_table(source: Source, dataset: str, note: Note) -> pd.DataFrame:
    """Table of every epoch of the trained models that were tested on a data set; of a cross-validation, the first.

    ``held_out`` is whether ``val_map_at_r`` was measured on classes that were not trained on. Mean and 95 % t-interval
    are those of the contender's seeds at the epoch: ``seeds`` have trained for this long, of ``all_seeds``.
    """
    lines: list[dict[str, object]] = []
    for label, tests in source.contenders(dataset):
        for test in tests:
            trained = source.trained(test)
            if trained is None:
                note(f"{dataset}, {label}, seed {test.columns.seed}: its training has no record")
                continue
            columns = {key: getattr(test.columns, key) for key in KEYS}
            columns |= {"held_out": trained.spec.folds > 1, "label": label}
            for epoch in trained.history:
                values = {name: getattr(epoch, name) for name in ("epoch", "loss", "val_map_at_r")}
                lines.append({**columns, **values, "best_epoch": trained.best_epoch})
    table = pd.DataFrame(lines)
    if table.empty:
        return table
    every = table.groupby("label")["seed"].nunique().to_dict()
    found = [
        (label, epoch, s.mean, s.ci_low, s.ci_high, s.n, every[label])
        for (label, epoch), values in table.groupby(["label", "epoch"])["val_map_at_r"]
        for s in [summarise(values.tolist())]
    ]
    names = ["label", "epoch", "mean", "ci95_low", "ci95_high", "seeds", "all_seeds"]
    return table.merge(pd.DataFrame(found, columns=names), on=["label", "epoch"])


def convergence_figure(table: pd.DataFrame, dataset: str, *, held_out: bool = True) -> Figure:
    """Plot MAP@R by epoch, the mean over seeds with its interval, one curve per contender.

    Training stops early, at a different epoch for each seed. A curve ends with the first seed that stops, so that every
    point is a mean over the same seeds.
    """
    # Intervals of two seeds may be wider than everything else there is to see.
    means = 100 * table["mean"]
    room = 0.15 * (means.max() - means.min()) or 1.0
    whole = table[table["seeds"] == table["all_seeds"]].drop_duplicates(["label", "epoch"]).sort_values("epoch")
    y = f"{title_of('map_at_r')}, {'validation' if held_out else 'some training'} classes, %"
    figure = curve_figure(
        [Panel("", [_curve(shown) for shown in labelled(whole)], y)],
        x="epoch",
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
