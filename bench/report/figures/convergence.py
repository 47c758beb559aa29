"""Validation MAP@R by epoch: how fast methods converge (after Milbich et al. 2022, NIR, Fig. 3, on test images)."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from ...protocols.metrics import title_of
from ...protocols.statistics import summarise
from ...store.records import KEYS
from .contenders import Shown, each_contender
from .curves import Curve, contender_figure
from .source import Drawing, Note, Source


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
            columns["held_out"] = trained.spec.folds > 1
            for epoch in trained.history:
                values = {name: getattr(epoch, name) for name in ("epoch", "loss", "val_map_at_r")}
                lines.append({**columns, "label": label, "index": index, **values, "best_epoch": trained.best_epoch})
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
    x = rows["epoch"].to_numpy()
    return Curve(text, shown.look, x, mean, low, high) if count > 1 else Curve(text, shown.look, x, mean)


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield one figure of MAP@R by epoch per data set; its table has every epoch of every seed, with mean and interval.

    Models trained without held-out validation classes are in a separate figure, which shows MAP@R on training classes.
    """
    for dataset in source.datasets:
        table = convergence_table(source, dataset, note)
        for held_out, name in ((True, ""), (False, "_on_training_classes")):
            rows = table[table["held_out"] == held_out] if len(table) else table
            if len(rows):
                summary = convergence_summary(rows)
                merged = rows.merge(summary, on=["index", "label", "method", "epoch"]).drop(columns="index")
                figure = convergence_figure(summary, dataset, held_out=held_out)
                yield Drawing(f"convergence_{dataset}{name}", figure, merged)
