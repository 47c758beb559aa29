"""Figures of papers: drawn from a reproduced table, or by the functions that a report uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..report.figures.registry import FIGURES, write_kinds
from ..report.figures.source import Note, Source
from ..report.figures.style import figure_style, save_figure
from ..report.frame import Results, collect
from ..site import Site
from .items import Named
from .run import PlannedItem
from .tables import Reproduction

AXES = {
    "curves": {"xlabel": "least confident images removed, %", "ylabel": "MAP@R"},
    "sweep": {"xscale": "log", "xlabel": "omega"},
    "points": {},
}
"""What the axes of each kind of figure say, besides the name of the table and of its first column."""


def draw_table(table: Reproduction, out: Path) -> list[Path]:
    """Write a figure of a paper that shows the values of its reproduced table, as PNG and SVG, if it has one.

    ``curves`` are one per row along the columns with a place on the axis; a ``sweep`` is the first column along the
    rows with such a place, beside that of the others; ``points`` are the first column of every run.
    """
    kind = table.planned.named.item.figure
    if kind not in AXES:
        return []
    lines = [line for line in table.lines if line.run]
    firsts = [(line.run.row.x if line.run else None, line.title, line.cells[0]) for line in lines]
    if kind == "points":
        firsts = [(float(number), title, cell) for number, (_, title, cell) in enumerate(firsts)]
    series = {"": [(x, cell) for x, _, cell in firsts if x is not None]}
    series |= {title: [(x, cell) for x, _ in series[""]] for x, title, cell in firsts if x is None}
    if kind == "curves":
        at = [column.x for column in table.columns]
        series = {each.title: [(x, cell) for x, cell in zip(at, each.cells) if x is not None] for each in table.lines}
    with figure_style():
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axis = figure.subplots()
        for title, values in series.items():
            x, y, sd = zip(*((x, cell.ours.mean, cell.ours.sd) for x, cell in values))
            axis.errorbar(x, y, np.nan_to_num(sd), fmt="o" if kind == "points" else "-", capsize=2, label=title)
        axis.set(**{"title": table.name, "ylabel": table.columns[0].title, **AXES[kind]})
        if kind == "points":
            axis.set_xticks(range(len(lines)), [line.title for line in lines], rotation=30, ha="right")
        elif len(series) > 1:
            axis.legend(fontsize=7)
        return save_figure(figure, out / table.planned.dataset)


def draw_figure(named: Named, planned: Sequence[PlannedItem], site: Site, out: Path, note: Note) -> list[Path]:
    """Write a figure of a paper that a report has, too, of the tests that are planned; one of densities needs none."""
    kind, rows = named.item.figure, [row for each in planned for row in each.rows]
    if kind not in FIGURES:
        return []
    every = collect(site.store).tests if rows else ()
    tests = tuple(record for record in every if any(row.tested(record) for row in rows))
    # Norms are split by the answers of the first row, where a paper compares with another model.
    reference = rows[0].plan.cell.method if rows else ""
    return write_kinds([kind], Source(site, Results.of(tests), reference), out, note)
