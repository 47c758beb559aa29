"""Figures of papers: drawn from a reproduced table, or by the functions that a report uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..report.figures.registry import FIGURES, write_kinds
from ..report.figures.source import Note, Source
from ..report.figures.style import figure_style, save_figure
from ..report.frame import Results, collect
from ..site import Site
from .items import Named
from .run import PlannedItem
from .tables import Pair, Reproduction


def _value(cell: Pair) -> float:
    return cell.ours.mean if cell.ours else float("nan")


def _spread(cell: Pair) -> float:
    return cell.ours.sd if cell.ours and cell.ours.sd == cell.ours.sd else 0.0


def _curves(table: Reproduction, axis: Axes) -> None:
    """One curve per row along the columns that have a place on the axis."""
    for line in table.lines:
        placed = [(column.x, cell) for column, cell in zip(table.columns, line.cells) if column.x is not None]
        x, y, sd = zip(*((at, _value(cell), _spread(cell)) for at, cell in placed))
        axis.errorbar(x, y, sd, lw=1.2, capsize=2, label=line.title)
    axis.set(xlabel="least confident images removed, %", ylabel="MAP@R")
    axis.legend(fontsize=7)


def _sweep(table: Reproduction, axis: Axes) -> None:
    """The first column over the rows that have a place on the axis, and a line for the one that has none."""
    for line, row in ((line, line.run.row) for line in table.lines if line.run):
        if row.x is None:
            axis.axhline(_value(line.cells[0]), ls=":", color="0.4", label=line.title)
    swept = [(line.run.row.x, line.cells[0]) for line in table.lines if line.run and line.run.row.x is not None]
    axis.errorbar([x for x, _ in swept], [_value(c) for _, c in swept], [_spread(c) for _, c in swept], capsize=2)
    axis.set(xscale="log", xlabel="omega", ylabel=table.columns[0].title)
    axis.legend(fontsize=7)


def _points(table: Reproduction, axis: Axes) -> None:
    """A point per run with its standard deviation, in the first column."""
    runs = [line for line in table.lines if line.run]
    values, spreads = ([part(line.cells[0]) for line in runs] for part in (_value, _spread))
    axis.errorbar(range(len(runs)), values, spreads, fmt="o", capsize=3)
    axis.set_xticks(range(len(runs)), [line.title for line in runs], rotation=30, ha="right")
    axis.set_ylabel(table.columns[0].title)


_KINDS: dict[str, Callable[[Reproduction, Axes], None]] = {"curves": _curves, "sweep": _sweep, "points": _points}


def draw_table(table: Reproduction, out: Path) -> list[Path]:
    """Write a figure of a paper that shows the values of its reproduced table, as PNG and SVG, if it has one."""
    draw = _KINDS.get(table.named.item.figure)
    if draw is None:
        return []
    with figure_style():
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axis = figure.subplots()
        draw(table, axis)
        axis.set_title(table.name)
        return save_figure(figure, out / table.dataset)


def draw_results(planned: Sequence[PlannedItem], site: Site, out: Path, note: Note) -> list[Path]:
    """Write a figure of a paper that is drawn from the tests themselves, such as one of norms, if it has one."""
    kind = planned[0].named.item.figure
    if kind not in FIGURES:
        return []
    rows = [row for each in planned for row in each.rows]
    tests = tuple(record for record in collect(site.store).tests if any(row.tested(record) for row in rows))
    # Norms are split by the answers of the first row, where a paper compares with another model.
    reference = rows[0].plan.cell.method
    return write_kinds([kind], Source(site, Results.of(tests), reference), out, note)


def draw_theory(named: Named, out: Path) -> list[Path]:
    """Write a figure of a paper that needs neither data nor results, such as one of densities."""
    source = Source(Site(results=str(out)), Results.of(()))
    return write_kinds([named.item.figure], source, out, lambda line: None)
