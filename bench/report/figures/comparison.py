"""Figures of the comparison: the ranks that contenders may have, and metrics against the values of a swept setting."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...protocols.statistics import summarise
from ..contender import Contender, ranked_together
from ..ranks import Rank, ranks, unranked_text
from ..seeds import COMPARED, ComparedColumn, SeedGroup, defined_values, seed_groups
from .curves import MOST_CURVES, REST, legend_below
from .source import Drawing, Note, Shown, Source, labelled
from .style import FULL_PAGE, Look, looks

RANKED = tuple(column for column in COMPARED if column.metric in ("map_at_r", "spearman_crop", "aurc"))
"""Columns of the comparison by which there are ranks, a panel each."""

SWEPT = tuple(column for column in COMPARED if column.metric in ("map_at_r", "spearman_crop"))
"""Columns of the comparison that a sweep shows, a panel each."""


def rank_table(merged: pd.DataFrame) -> pd.DataFrame:
    """Table of the ranks of every contender of a data set, by each of some metrics, or the reason for having none.

    ``low`` and ``high`` are the ends of the simultaneous 95 % interval of the rank. If the contenders have several
    budgets, each is ranked within its own; the leading budget comes first.
    """
    groups = {group.contender: group for group in seed_groups(merged)}
    shown = dict(zip(groups, labelled(merged), strict=True))
    budgets = ranked_together(groups)
    lines = [
        _rank_line(shown[contender], groups[contender], column, rank) | {"budget": text}
        for column in RANKED
        for text, own in budgets
        for contender, rank in zip(own, ranks([groups[each] for each in own], column), strict=True)
    ]
    table = pd.DataFrame(lines)
    table["rank"] = table.groupby(["metric", "budget"])["better"].rank(ascending=False, method="min")
    return table.drop(columns=["better"] if len(budgets) > 1 else ["better", "budget"])


def _rank_line(shown: Shown, group: SeedGroup, column: ComparedColumn, rank: Rank) -> dict[str, object]:
    values = list(defined_values(group.column(column)).values())
    mean, interval = np.mean(values) if values else np.nan, rank.interval
    return {
        "index": shown.number,
        "label": shown.label,
        "method": group.contender.method,
        "metric": column.metric,
        "split": column.split,
        "mean": mean,
        "better": column.sign * mean if interval else np.nan,
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
    columns = [column for column in RANKED if (ranked["metric"] == column.metric).any()]
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
    without = unranked_text(list(zip(rows["label"], rows["reason"])))
    figure.suptitle("\n".join(filter(None, [title, without and textwrap.fill(f"no rank: {without}", 110)])))
    return figure


def _draw_ranks(axis: Axes, rows: pd.DataFrame, order: list[int], looks: dict[int, Look]) -> None:
    columns = (rows[name].tolist() for name in ("index", "rank", "low", "high", "ties"))
    for index, rank, low, high, ties in zip(*columns):
        look, place = looks[index], order.index(index)
        axis.plot([low, high], [place, place], "-", lw=1.6, color=look.colour, solid_capstyle="butt")
        axis.plot([rank], [place], look.marker, ms=4.5, color=look.colour, fillstyle=look.fill, clip_on=False)
        axis.annotate(ties, (1.01, place), xycoords=("axes fraction", "data"), fontsize=6.5, va="center")
    axis.set_xlim(0.3, int(rows["high"].max()) + 0.7)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def draw_ranks(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure of rank intervals."""
    rows = source.results.merged[source.results.merged["dataset"] == dataset]
    table = rank_table(rows)
    if table["rank"].isna().all():
        note(f"{dataset}: no ranks: {', '.join(sorted(set(table['reason'])))}")
        return
    looks = {shown.number: shown.look for shown in labelled(rows)}
    yield Drawing(f"rank_intervals_{dataset}", rank_figure(table, looks, dataset), table)


class Sweep(NamedTuple):
    """Contenders that differ only in one pinned value, their results by this value, and what they have in common."""

    key: str
    contender: Contender
    groups: dict[str, SeedGroup]

    @property
    def mean(self) -> float:
        """Mean of the first metric over all values and seeds; lowest without any."""
        values = [value for group in self.groups.values() for value in defined_values(group.column(SWEPT[0])).values()]
        return float(np.nan_to_num(np.mean(values)))


def find_sweeps(merged: pd.DataFrame) -> list[Sweep]:
    """Find sweeps: contenders that differ in one pinned value, sorted by the name of the setting."""
    found: dict[tuple[str, Contender], dict[str, SeedGroup]] = {}
    for group in seed_groups(merged):
        pinned = group.contender.pinned
        for key, value in pinned.values.items():
            rest = group.contender._replace(pinned=pinned.without({key}))
            found.setdefault((key, rest), {})[str(value)] = group
    return [
        Sweep(key, contender, dict(sorted(groups.items(), key=lambda item: _place(item[0]))))
        for (key, contender), groups in sorted(found.items())
        if len(groups) > 1
    ]


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _place(value: str) -> tuple[bool, float, str]:
    """Order of values: numbers by size, then names."""
    number = _number(value)
    return number is None, number or 0.0, value


def draw_sweeps(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield a figure of metrics against the value of each setting that the user fixed to several values."""
    sweeps = find_sweeps(source.results.merged[source.results.merged["dataset"] == dataset])
    for key in dict.fromkeys(sweep.key for sweep in sweeps):
        name, chosen = key.replace(".", "_"), [sweep for sweep in sweeps if sweep.key == key]
        yield Drawing(f"sweep_{name}_{dataset}", _sweep_figure(chosen, dataset), _sweep_values(chosen))


def _sweep_values(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """One row per contender, value, metric and seed."""
    lines = [
        {**sweep.contender._asdict(), "key": sweep.key, "at": at, "metric": column.metric, "seed": seed, "value": value}
        for sweep in sweeps
        for at, group in sweep.groups.items()
        for column in SWEPT
        for seed, value in defined_values(group.column(column)).items()
    ]
    return pd.DataFrame(lines)


def _sweep_figure(sweeps: Sequence[Sweep], dataset: str) -> Figure:
    figure = Figure(figsize=(FULL_PAGE, 3.8), layout="constrained")
    axes = figure.subplots(1, len(SWEPT))
    values = sorted({value for sweep in sweeps for value in sweep.groups}, key=_place)
    numbers = {value: number for value in values if (number := _number(value)) is not None}
    # Names have places, not sizes.
    places = numbers if len(numbers) == len(values) else {value: float(i) for i, value in enumerate(values)}
    styles = looks([sweep.contender.method for sweep in sweeps])
    # All have a colour if they are few, else those with the highest mean.
    coloured = sorted(range(len(sweeps)), key=lambda place: (-sweeps[place].mean, place))[:MOST_CURVES]
    for column, axis in zip(SWEPT, axes):
        for index, (sweep, look) in enumerate(zip(sweeps, styles)):
            _draw_sweep(axis, sweep, column, places, look if index in coloured else None)
        axis.set(xlabel=sweeps[0].key, ylabel=f"{column.title}{', %' if column.percent else ''}")
        if places is not numbers:
            axis.set_xticks(list(places.values()), values)
        elif min(places.values()) > 0 and max(places.values()) >= 10 * min(places.values()):
            axis.set_xscale("log")
    rest = len(sweeps) - len(coloured)
    legend_below(figure, list(axes), rest)
    which = f"\ncoloured: the {len(coloured)} with the highest mean {SWEPT[0].title}" if rest else ""
    figure.suptitle(f"{dataset}: mean over seeds with 95 % t-interval{which}")
    return figure


def _draw_sweep(axis: Axes, sweep: Sweep, column: ComparedColumn, places: dict[str, float], look: Look | None) -> None:
    """One line with the interval over seeds at each value; without a look, a grey line."""
    by_value = [(places[value], defined_values(group.column(column))) for value, group in sweep.groups.items()]
    x = [place for place, seeds in by_value if seeds]
    summaries = [summarise(list(seeds.values())) for _, seeds in by_value if seeds]
    factor = 100.0 if column.percent else 1.0
    mean = [factor * each.mean for each in summaries]
    if look is None:
        axis.plot(x, mean, "-", lw=0.8, color=REST, zorder=1)
        return
    # One seed has no interval.
    below = [factor * (each.mean - each.ci_low) if each.n > 1 else 0.0 for each in summaries]
    above = [factor * (each.ci_high - each.mean) if each.n > 1 else 0.0 for each in summaries]
    label = ", ".join(filter(None, [sweep.contender.label, sweep.contender.tuning, sweep.contender.pinned.text]))
    axis.errorbar(
        x,
        mean,
        (below, above),
        ls=look.line,
        marker=look.marker,
        fillstyle=look.fill,
        ms=4,
        capsize=3,
        color=look.colour,
        label=label,
    )
