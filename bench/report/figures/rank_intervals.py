"""Rank intervals: the ranks that each contender may have, by several metrics."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..budgets import ranked_together
from ..ranks import Rank, ranks, unranked_text
from ..seeds import COMPARED, ComparedColumn, SeedGroup, defined_values, seed_groups
from .contenders import Shown, labelled
from .looks import Look
from .source import Drawing, Note, Source
from .style import FULL_PAGE

SHOWN = tuple(column for column in COMPARED if column.metric in ("map_at_r", "spearman_crop", "aurc"))
"""Columns of the comparison that are shown, a panel each."""


def rank_table(merged: pd.DataFrame) -> pd.DataFrame:
    """Table of the ranks of every contender of a data set, by each of some metrics, or the reason for having none.

    ``low`` and ``high`` are the ends of the simultaneous 95 % interval of the rank. If the contenders have several
    budgets, each is ranked within its own; the leading budget comes first.
    """
    groups = {group.contender: group for group in seed_groups(merged)}
    shown = dict(zip(groups, labelled(merged), strict=True))
    budgets = ranked_together(groups)
    lines = [
        _line(shown[contender], groups[contender], column, rank) | {"budget": text}
        for column in SHOWN
        for text, own in budgets
        for contender, rank in zip(own, ranks([groups[each] for each in own], column), strict=True)
    ]
    table = pd.DataFrame(lines)
    table["rank"] = table.groupby(["metric", "budget"])["better"].rank(ascending=False, method="min")
    return table.drop(columns=["better"] if len(budgets) > 1 else ["better", "budget"])


def _line(shown: Shown, group: SeedGroup, column: ComparedColumn, rank: Rank) -> dict[str, object]:
    values = list(defined_values(group.column(column)).values())
    interval = rank.interval
    return {
        "index": shown.number,
        "label": shown.label,
        "method": group.contender.method,
        "metric": column.metric,
        "split": column.split,
        "mean": np.mean(values) if values else np.nan,
        "better": column.sign * np.mean(values) if values and interval else np.nan,
        "low": interval.low if interval else np.nan,
        "high": interval.high if interval else np.nan,
        "ties": interval.ties if interval else "",
        "seeds": rank.seeds,
        "reason": rank.reason,
    }


def rank_figure(table: pd.DataFrame, looks: dict[int, Look], dataset: str) -> Figure:
    """Plot the rank interval of every contender, two at least, one panel per metric.

    A line goes from the best to the worst rank that the contender may have, the marker is at the rank of its mean, and
    the letters on the right are those of its tie groups. The contenders are sorted by the first metric with ranks; if
    there are several budgets, each has a part of its own, with its name above.
    """
    ranked = table[table["rank"].notna()]
    columns = [column for column in SHOWN if (ranked["metric"] == column.metric).any()]
    first = ranked[ranked["metric"] == columns[0].metric].sort_values(["rank", "index"])["index"]
    order = list(dict.fromkeys([*first, *ranked["index"]]))
    labels = ranked.groupby("index")["label"].first().to_dict()
    if "budget" in ranked:
        budgets = {text: -number for number, text in enumerate(dict.fromkeys(ranked["budget"]), 1)}
        place = ranked.groupby("index")["budget"].first().map(budgets)
        labels |= {number: f"{text}:" for text, number in budgets.items()}
        # A line for the name of each budget, which no contender has the number of.
        order = [each for number in budgets.values() for each in (number, *(i for i in order if place[i] == number))]
    figure = Figure(figsize=(FULL_PAGE, 0.17 * len(order) + 1.3), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True, squeeze=False).ravel()
    for axis, column in zip(axes, columns):
        _draw_ranks(axis, ranked[ranked["metric"] == column.metric], order, looks)
        arrow = "higher is better" if column.sign > 0 else "lower is better"
        axis.set(title=f"{column.title} ({arrow})", xlabel="rank")
    axes[0].set_yticks(range(len(order)), [labels[index] for index in order], fontsize=8)
    axes[0].set_ylabel("method")
    axes[0].set_ylim(len(order) - 0.4, -0.6)
    title = f"{dataset}: ranks with simultaneous 95 % intervals over seeds; letters: tie groups"
    rows = table[table["metric"] == columns[0].metric]
    without = unranked_text((label, Rank(reason=reason)) for label, reason in zip(rows["label"], rows["reason"]))
    figure.suptitle("\n".join(filter(None, [title, without and textwrap.fill(f"no rank: {without}", 110)])))
    return figure


def _draw_ranks(axis: Axes, rows: pd.DataFrame, order: list[int], looks: dict[int, Look]) -> None:
    worst = int(rows["high"].max())
    columns = (rows[name].tolist() for name in ("index", "rank", "low", "high", "ties"))
    for index, rank, low, high, ties in zip(*columns):
        look, place = looks[index], order.index(index)
        axis.plot([low, high], [place, place], "-", lw=1.6, color=look.colour, solid_capstyle="butt")
        axis.plot([rank], [place], look.marker, ms=4.5, color=look.colour, fillstyle=look.fill, clip_on=False)
        axis.annotate(ties, (1.01, place), xycoords=("axes fraction", "data"), fontsize=6.5, va="center")
    axis.set_xlim(0.3, worst + 0.7)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield one figure of rank intervals per data set."""
    for dataset in source.datasets:
        rows = source.merged[source.merged["dataset"] == dataset]
        table = rank_table(rows)
        if table["rank"].isna().all():
            reasons = ", ".join(sorted(set(table["reason"])))
            note(f"{dataset}: no ranks: {reasons}")
            continue
        looks = {shown.number: shown.look for shown in labelled(rows)}
        yield Drawing(f"rank_intervals_{dataset}", rank_figure(table, looks, dataset), table.drop(columns="index"))
