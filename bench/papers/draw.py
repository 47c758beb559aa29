"""Figures of papers: drawn from a reproduced table, or by the functions that a report uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..report.figures.registry import FIGURES, Note, Source, write_kinds
from ..report.figures.style import figure_style, save_figure
from ..report.frame import Results, collect
from ..report.table import Document
from ..site import Site
from .items import Named
from .run import PlannedItem

AXES = {
    "curves": {"xlabel": "least confident images removed, %", "ylabel": "MAP@R"},
    "sweep": {"xscale": "log", "xlabel": "omega"},
    "points": {},
}
"""What the axes of each kind of figure say, besides the name of the table and of its first column."""


MISSING = (float("nan"), float("nan"))


def draw_table(planned: PlannedItem, table: Document, out: Path) -> list[Path]:
    """Write a figure of a paper that shows the values of its reproduced table, as PNG and SVG, if it has one.

    ``curves`` are one per row along the columns with a place on the axis; a ``sweep`` is the first column along the
    rows with such a place, beside that of the others; ``points`` are the first column of every run.
    """
    kind, columns = planned.named.item.figure, planned.named.columns(planned.dataset)
    if kind not in AXES:
        return []
    lines = [row.cells[0].text for row in table.tables[0].rows]
    cells = {
        (each["row"], each["column"]): (each["ours_mean"], each["ours_sd"]) for _, each in table.numbers.iterrows()
    }
    runs = {each.row.title: each.row.x for each in planned.rows if each.row.title in lines}
    firsts = {title: cells.get((title, columns[0].title), MISSING) for title in runs}
    series = {"": [(float(number), *cell) for number, cell in enumerate(firsts.values())]}
    if kind == "sweep":
        series = {"": [(x, *firsts[title]) for title, x in runs.items() if x is not None]}
        series |= {title: [(x, *firsts[title]) for x, *_ in series[""]] for title in runs if runs[title] is None}
    elif kind == "curves":
        at = [(column.title, column.x) for column in columns if column.x is not None]
        series = {title: [(x, *cells.get((title, heading), MISSING)) for heading, x in at] for title in lines}
    with figure_style():
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axis = figure.subplots()
        for title, values in series.items():
            x, y, sd = zip(*values)
            axis.errorbar(x, y, np.nan_to_num(sd), fmt="o" if kind == "points" else "-", capsize=2, label=title)
        axis.set(**{"title": table.heading, "ylabel": columns[0].title, **AXES[kind]})
        if kind == "points":
            axis.set_xticks(range(len(runs)), list(runs), rotation=30, ha="right")
        elif len(series) > 1:
            axis.legend(fontsize=7)
        return save_figure(figure, out / planned.dataset)


def draw_figure(named: Named, planned: Sequence[PlannedItem], site: Site, out: Path, note: Note) -> list[Path]:
    """Write a figure of a paper that a report has, too, of the tests that are planned; one of densities needs none."""
    kind, rows = named.item.figure, [row for each in planned for row in each.rows]
    if kind not in FIGURES:
        return []
    every = collect(site.store).tests if rows else ()
    tests = tuple(record for record in every if any(row.tested(record) for row in rows))
    return write_kinds([kind], Source(site, Results(tests)), out, note)
