"""Figures of the comparison: the ranks that contenders may have, and metrics against the values of a swept setting."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...protocols.statistics import summarise
from ..contender import Contender, ranked_together
from ..ranks import ranks, unranked_text
from ..seeds import COMPARED, ComparedColumn, SeedGroup, defined_values, seed_groups
from .curves import Curve, Panel, curve_figure
from .source import Drawing, Note, Source, labelled
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
    lines = []
    for column in RANKED:
        for text, own in budgets:
            for contender, rank in zip(own, ranks([groups[each] for each in own], column), strict=True):
                values, interval = list(defined_values(groups[contender].column(column)).values()), rank.interval
                line = {"index": shown[contender].number, "label": shown[contender].label, "method": contender.method}
                line |= {"metric": column.metric, "split": column.split, "mean": np.mean(values) if values else np.nan}
                line |= {name: getattr(interval, name, np.nan) for name in ("low", "high")}
                line |= {"ties": interval.ties if interval else "", "seeds": rank.seeds, "reason": rank.reason}
                lines.append(line | {"budget": text, "better": column.sign if interval else np.nan})
    table = pd.DataFrame(lines)
    better = table.pop("better") * table["mean"]
    table["rank"] = better.groupby([table["metric"], table["budget"]]).rank(ascending=False, method="min")
    return table


def rank_figure(table: pd.DataFrame, looks: Mapping[int, Look], dataset: str) -> Figure:
    """Plot the rank interval of every contender, two at least, one panel per metric.

    A line goes from the best to the worst rank that the contender may have, the marker is at the rank of its mean, and
    the letters on the right are those of its tie groups. The contenders are sorted by the first metric with ranks; if
    there are several budgets, each has a part of its own, with its name above.
    """
    ranked = table[table["rank"].notna()]
    columns = [column for column in RANKED if (ranked["metric"] == column.metric).any()]
    lines: dict[object, str] = {}
    for budget, own in ranked.groupby("budget", sort=False):
        lines |= {budget: f"{budget!s}:"} if budget else {}
        best = own.assign(last=own["metric"] != columns[0].metric).sort_values(["last", "rank", "index"])
        lines |= dict(zip(best["index"], best["label"]))
    order = list(lines)
    figure = Figure(figsize=(FULL_PAGE, 0.17 * len(order) + 1.3), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True, squeeze=False).ravel()
    for axis, column in zip(axes, columns):
        rows = ranked[ranked["metric"] == column.metric]
        for index, rank, low, high, ties in zip(*(rows[name] for name in ("index", "rank", "low", "high", "ties"))):
            look, place = looks[index], order.index(index)
            axis.plot([low, high], [place, place], "-", lw=1.6, color=look.colour, solid_capstyle="butt")
            axis.plot([rank], [place], look.marker, ms=4.5, color=look.colour, fillstyle=look.fill, clip_on=False)
            axis.annotate(ties, (1.01, place), xycoords=("axes fraction", "data"), fontsize=6.5, va="center")
        arrow = "higher is better" if column.sign > 0 else "lower is better"
        axis.set(title=f"{column.title} ({arrow})", xlabel="rank", xlim=(0.3, int(rows["high"].max()) + 0.7))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes[0].set_yticks(range(len(order)), list(lines.values()), fontsize=8)
    axes[0].set(ylabel="method", ylim=(len(order) - 0.4, -0.6))
    title = f"{dataset}: ranks with simultaneous 95 % intervals over seeds; letters: tie groups"
    rows = table[table["metric"] == columns[0].metric]
    without = unranked_text(list(zip(rows["label"], rows["reason"])))
    figure.suptitle("\n".join(filter(None, [title, without and textwrap.fill(f"no rank: {without}", 110)])))
    return figure


def draw_ranks(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure of rank intervals."""
    rows = source.results.merged[source.results.merged["dataset"] == dataset]
    table = rank_table(rows)
    if table["rank"].isna().all():
        note(f"{dataset}: no ranks: {', '.join(sorted(set(table['reason'])))}")
        return
    looks = {shown.number: shown.look for shown in labelled(rows)}
    numbers = table if table["budget"].nunique() > 1 else table.drop(columns="budget")
    yield Drawing(f"rank_intervals_{dataset}", rank_figure(table, looks, dataset), numbers)


class Sweep(NamedTuple):
    """Contenders that differ only in one pinned value, their results by this value, and what they have in common."""

    key: str
    contender: Contender
    groups: dict[str, SeedGroup]

    def curve(self, column: ComparedColumn, places: Mapping[str, float], look: Look) -> Curve:
        """Mean over seeds by value, with the 95 % interval."""
        label = ", ".join(filter(None, [self.contender.label, self.contender.tuning, self.contender.pinned.text]))
        seeds = {places[value]: defined_values(group.column(column)) for value, group in self.groups.items()}
        found = {place: summarise(list(values.values())) for place, values in seeds.items() if values}
        factor = 100.0 if column.percent else 1.0
        mean, low, high = factor * np.array([(s.mean, s.ci_low, s.ci_high) for s in found.values()]).reshape(-1, 3).T
        return Curve(label, look, np.array(list(found)), mean, low, high)


def find_sweeps(merged: pd.DataFrame) -> list[Sweep]:
    """Find sweeps: contenders that differ in one pinned value, sorted by the name of the setting."""
    found: dict[tuple[str, Contender], dict[str, SeedGroup]] = {}
    for group in seed_groups(merged):
        pinned = group.contender.pinned
        for key, value in pinned.values.items():
            rest = group.contender._replace(pinned=pinned.without({key}))
            found.setdefault((key, rest), {})[str(value)] = group
    return [
        Sweep(key, contender, {value: groups[value] for value in sorted(groups, key=_place)})
        for (key, contender), groups in sorted(found.items())
        if len(groups) > 1
    ]


def _place(value: str) -> tuple[bool, float, str]:
    """Order of values: numbers by size, then names."""
    try:
        return False, float(value), value
    except ValueError:
        return True, 0.0, value


def draw_sweeps(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield a figure of metrics against the value of each setting that the user fixed to several values."""
    sweeps = find_sweeps(source.results.merged[source.results.merged["dataset"] == dataset])
    for key in dict.fromkeys(sweep.key for sweep in sweeps):
        chosen = [sweep for sweep in sweeps if sweep.key == key]
        lines = [
            {**sweep.contender._asdict(), "key": key, "at": at, "metric": column.metric, "seed": seed, "value": value}
            for sweep in chosen
            for at, group in sweep.groups.items()
            for column in SWEPT
            for seed, value in defined_values(group.column(column)).items()
        ]
        yield Drawing(f"sweep_{key.replace('.', '_')}_{dataset}", _sweep_figure(chosen, dataset), pd.DataFrame(lines))


def _sweep_figure(sweeps: Sequence[Sweep], dataset: str) -> Figure:
    values = sorted({value for sweep in sweeps for value in sweep.groups}, key=_place)
    named = any(_place(value)[0] for value in values)
    # Names have places, not sizes.
    places = {value: float(at) if named else _place(value)[1] for at, value in enumerate(values)}
    first, last = places[values[0]], places[values[-1]]
    styles = looks([sweep.contender.method for sweep in sweeps])
    shown = [
        Panel("", [sweep.curve(column, places, look) for sweep, look in zip(sweeps, styles)], _axis(column))
        for column in SWEPT
    ]
    scale = "log" if not named and last >= 10 * first > 0 else "linear"
    title = f"{dataset}: mean over seeds with 95 % t-interval"
    figure = curve_figure(shown, x=sweeps[0].key, title=title, share_y=False, xscale=scale)
    if named:
        figure.axes[0].set_xticks(list(places.values()), values)
    return figure


def _axis(column: ComparedColumn) -> str:
    return f"{column.title}{', %' if column.percent else ''}"
