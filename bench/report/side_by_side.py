"""A table for a paper: data sets side by side, methods by their titles, and marks of differences from one method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import UnknownName, UserError
from .comparison import ComparisonRow
from .questions import plain_of
from .seeds import SeedGroup, compared
from .table import GAP, Cell, Column, Document, Table, cells_table, label
from .views import paired_methods

SHOWN = ("recall_at_1", "map_at_r", "aurc")
"""Metrics of the table, a column each for every data set."""

ABREAST = 3
"""Most data sets of one table: as many as the width of a page takes."""

LEVEL = 0.05
"""Adjusted p-values below it are marked."""

Marks = Mapping[str, set[tuple[str, str]]]
"""Labels and metrics that differ from the reference, by data set."""


def side_by_side(
    groups: Mapping[str, Sequence[SeedGroup]],
    rows: Mapping[str, Sequence[ComparisonRow]],
    titles: Mapping[str, str],
    reference: str = "",
) -> Document:
    """The table of the leading budget of every data set; marks are for differences from ``reference``.

    Without a reference it is the plain method, if all data sets have the same.

    Raises:
        UserError: If there is no result of the reference, or none is named and the data sets have different ones.
    """
    against = reference or _plain(groups)
    known = {row.contender.method for own in rows.values() for row in own}
    if against not in known:
        raise UnknownName("method of these results", against, known)
    marked = {dataset: _marked(own, groups[dataset], against) for dataset, own in rows.items()}
    seeds = sorted({row.seeds for own in rows.values() for row in own})
    caption = (
        f"mean ± SD over {'/'.join(map(str, seeds))} seeds, in percent; bold: best; †: differs from"
        f" {titles.get(against, against)} (paired t-test over seeds, p < {LEVEL:g} after Holm's adjustment over the"
        " methods of a column); AURC on centre crops, lower is better."
    )
    names = list(rows)
    parts = [names[start : start + ABREAST] for start in range(0, len(names), ABREAST)]
    tables = (_table({name: rows[name] for name in part}, titles, marked, caption) for part in parts)
    return Document("side_by_side", "Data sets side by side", caption, tuple(tables))


def _table(
    rows: Mapping[str, Sequence[ComparisonRow]], titles: Mapping[str, str], marked: Marks, caption: str
) -> Table:
    """A table of some data sets; heads come after the methods that need no base."""
    places = [place for place, column in enumerate(compared()) if column.metric in SHOWN]
    columns: list[Column[str]] = [label("method")]
    for dataset in rows:
        for column in (compared()[place] for place in places):
            arrow = " \N{DOWNWARDS ARROW}" if column.sign < 0 else ""
            columns.append(Column(f"{column.title}{arrow}", group=dataset))
    lines: dict[str, list[Cell | str]] = {}
    for row in sorted((row for own in rows.values() for row in own), key=lambda row: row.contender.base != ""):
        names = [titles.get(name, name) for name in (row.contender.method, row.contender.base) if name]
        form = row.label.removeprefix(row.contender.name)  # the released form of a method, say
        lines[row.label] = [names[0] + (f" ({names[1]})" if names[1:] else "") + form]
    for dataset, own in rows.items():
        found = {row.label: row for row in own}
        for name, line in lines.items():
            line += [_cell(found[name], place, marked[dataset]) if name in found else GAP for place in places]
    return cells_table(f"Comparison on {', '.join(rows)}", columns, lines.values(), caption=caption)


def _plain(groups: Mapping[str, Sequence[SeedGroup]]) -> str:
    found = {plain.contender.method for own in groups.values() if (plain := plain_of(own))}
    if len(found) != 1:
        which = f"; data sets have {', '.join(sorted(found))}" if found else ""
        raise UserError(f"name the method that differences are marked from: --reference METHOD{which}")
    return found.pop()


def _marked(rows: Sequence[ComparisonRow], groups: Sequence[SeedGroup], against: str) -> set[tuple[str, str]]:
    """Labels and metrics that differ from a method after Holm's adjustment over the methods of a data set."""
    shown = {row.contender for row in rows}
    own = [group for group in groups if group.contender in shown]
    others = sorted({group.contender.method for group in own} - {against})
    pairs = paired_methods(own, [against, *others])
    if pairs.empty:
        return set()
    found = pairs[pairs["p_holm"] < LEVEL]
    return set(zip(found["other"], found["metric"]))


def _cell(row: ComparisonRow, place: int, marked: set[tuple[str, str]]) -> Cell:
    column = compared()[place]
    cell = row.values[place].cell(column.percent, brief=True, best=row.marks[place].best)
    mark = "†" if (row.label, column.metric) in marked else ""
    return Cell(f"{cell.text}{mark}", cell.value, bold=cell.bold)
