"""Figures of sweeps: a metric against the value of a setting, from results that differ in one pinned value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...protocols.statistics import summarise
from ..contender import Contender
from ..seeds import COMPARED, ComparedColumn, SeedGroup, defined_values, seed_groups
from .curves import MOST_CURVES, REST, legend_below
from .looks import Look, looks
from .source import Drawing, Note, Source

SHOWN = tuple(column for column in COMPARED if column.metric in ("map_at_r", "spearman_crop"))
"""Columns of the comparison that are shown, a panel each."""


@dataclass(frozen=True)
class Sweep:
    """Contenders that differ only in one pinned value, their results by this value, and what they have in common."""

    key: str
    contender: Contender
    groups: dict[str, SeedGroup]


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


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield a figure of metrics against the value of a setting, per data set and setting fixed to several values."""
    for dataset in source.datasets:
        yield from sweep_figures(source.merged, dataset)


def sweep_figures(merged: pd.DataFrame, dataset: str) -> Iterator[Drawing]:
    """Yield a figure of metrics against the value of each setting that the user fixed to several values."""
    sweeps = find_sweeps(merged[merged["dataset"] == dataset])
    for key in dict.fromkeys(sweep.key for sweep in sweeps):
        name, chosen = key.replace(".", "_"), [sweep for sweep in sweeps if sweep.key == key]
        yield Drawing(f"sweep_{name}_{dataset}", _sweep_figure(key, chosen, dataset), _values(chosen))


def _values(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """One row per contender, value, metric and seed."""
    lines = [
        {**sweep.contender._asdict(), "key": sweep.key, "at": at, "metric": column.metric, "seed": seed, "value": value}
        for sweep in sweeps
        for at, group in sweep.groups.items()
        for column in SHOWN
        for seed, value in defined_values(group.column(column)).items()
    ]
    return pd.DataFrame(lines)


def _sweep_figure(key: str, sweeps: Sequence[Sweep], dataset: str) -> Figure:
    figure = Figure(figsize=(8.0, 3.8), layout="constrained")
    axes = figure.subplots(1, len(SHOWN))
    values = sorted({value for sweep in sweeps for value in sweep.groups}, key=_place)
    numbers = {value: number for value in values if (number := _number(value)) is not None}
    # Names have places, not sizes.
    places = numbers if len(numbers) == len(values) else {value: float(i) for i, value in enumerate(values)}
    styles = looks([sweep.contender.method for sweep in sweeps])
    coloured = _best(sweeps)
    for column, axis in zip(SHOWN, axes):
        for index, (sweep, look) in enumerate(zip(sweeps, styles)):
            _draw(axis, sweep, column, places, look if index in coloured else None)
        axis.set(xlabel=key, ylabel=f"{column.title}{', %' if column.percent else ''}")
        if places is not numbers:
            axis.set_xticks(list(places.values()), values)
        elif min(places.values()) > 0 and max(places.values()) >= 10 * min(places.values()):
            axis.set_xscale("log")
    rest = len(sweeps) - len(coloured)
    legend_below(figure, list(axes), rest)
    which = f"\ncoloured: the {len(coloured)} with the highest mean {SHOWN[0].title}" if rest else ""
    figure.suptitle(f"{dataset}: mean over seeds with 95 % t-interval{which}")
    return figure


def _best(sweeps: Sequence[Sweep]) -> set[int]:
    """Positions of the sweeps that have a colour: all if they are few, else those with the highest mean."""
    means = [
        np.mean([value for group in sweep.groups.values() for value in defined_values(group.column(SHOWN[0])).values()])
        for sweep in sweeps
    ]
    return set(sorted(range(len(sweeps)), key=lambda place: (-np.nan_to_num(means[place]), place))[:MOST_CURVES])


def _draw(axis: Axes, sweep: Sweep, column: ComparedColumn, places: dict[str, float], look: Look | None) -> None:
    """One line with the interval over seeds at each value; without a look, a grey line."""
    factor = 100.0 if column.percent else 1.0
    x, mean, below, above = [], [], [], []
    for value, group in sweep.groups.items():
        seeds = list(defined_values(group.column(column)).values())
        if not seeds:
            continue
        summary = summarise(seeds)
        x.append(places[value])
        mean.append(factor * summary.mean)
        # One seed has no interval.
        low, high = (summary.ci_low, summary.ci_high) if len(seeds) > 1 else (summary.mean, summary.mean)
        below.append(factor * (summary.mean - low))
        above.append(factor * (high - summary.mean))
    if look is None:
        axis.plot(x, mean, "-", lw=0.8, color=REST, zorder=1)
        return
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
