"""Figures of metrics against the values of a swept setting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ...errors import printable
from ...protocols.statistics.paired import summarise
from ..contender import Contender
from ..frame import Measured
from ..seeds import COMPARED, ComparedColumn, SeedGroup, defined_values, seed_groups
from .curves import Curve, Panel, curve_figure
from .registry import Drawing, Note, Source
from .style import Look, looks

SWEPT = tuple(column for column in COMPARED if column.metric in ("map_at_r", "spearman_crop"))
"""Columns of the comparison that a sweep shows, a panel each."""


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


def find_sweeps(measured: Iterable[Measured]) -> list[Sweep]:
    """Find sweeps: contenders that differ in one pinned value, sorted by the name of the setting."""
    found: dict[tuple[str, Contender], dict[str, SeedGroup]] = {}
    for group in seed_groups(measured):
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


def draw(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield a figure of metrics against the value of each setting that the user fixed to several values."""
    sweeps = find_sweeps(each for each in source.results.measured if each.columns.dataset == dataset)
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
        figure.axes[0].set_xticks(list(places.values()), [printable(value) for value in values], parse_math=False)
    return figure


def _axis(column: ComparedColumn) -> str:
    return f"{column.title}{', %' if column.percent else ''}"
