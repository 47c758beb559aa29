"""A reproduced table: our values next to the published ones, with remarks on everything that differs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console

from ..errors import printable
from ..report import render
from ..report.escape import markdown_text
from ..report.seeds import SeedStatistics
from ..report.table import GAP, Document, cells_table, headings
from .cells import Cells, derived, value_text
from .items import UNPUBLISHED, Column, Named, Published, Row, published_value, quoted_rows
from .run import PlannedItem, PlannedRow, what_differs


@dataclass(frozen=True)
class Pair:
    """Our mean and SD over seeds, in the paper's unit, next to the number that the paper published."""

    ours: SeedStatistics | None
    published: Published | None
    decimals: int

    @property
    def texts(self) -> tuple[str, str]:
        """Both as ``mean ± SD``; ``-`` if there is none."""
        return value_text(self.ours, self.decimals), self.published.text if self.published else GAP


@dataclass(frozen=True)
class Line:
    """A line of a reproduced table: a row of the paper with its cells, one per column."""

    title: str
    run: PlannedRow | None  # None if it is computed from other rows, only quoted from the paper, or was left out
    cells: tuple[Pair, ...]

    @property
    def ours(self) -> str:
        """Name of our method and source of its hyper-parameters; empty for a line without a run."""
        return f"{self.run.contender.label}, {self.run.contender.hparams}" if self.run else ""


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper on one data set: our values next to the published numbers."""

    named: Named
    dataset: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    differs: str
    left_out: tuple[str, ...]  # rows that were not run, as ``TITLE: REASON``

    @property
    def name(self) -> str:
        """Name of the table and data set."""
        return f"{self.named.name} on {self.dataset}"

    @property
    def compared(self) -> int:
        """Number of published numbers to compare with."""
        return sum(cell.published is not None for line in self.lines for cell in line.cells)

    @property
    def remarks(self) -> list[str]:
        """What to keep in mind when comparing: differences of set-up, notes on published numbers, rows left out."""
        notes = dict.fromkeys(
            f"published {line.title}, {column.title}: {cell.published.note}"
            for line in self.lines
            for column, cell in zip(self.columns, line.cells)
            if line.run is not None and cell.published is not None and cell.published.note
        )
        return [self.differs, *self.named.differences, *notes, *(f"left out: {text}" for text in self.left_out)]

    @property
    def legend(self) -> str:
        """What a cell shows."""
        if not self.compared:
            return "Mean ± SD over seeds. No value was published to put next to ours."
        return f"Ours | published, mean ± SD over seeds; {GAP} is no value of ours, or {UNPUBLISHED}."

    def text(self, cell: Pair) -> str:
        """``ours | published``; ours alone where nothing was published for the whole table."""
        ours, published = cell.texts
        if not self.compared:
            return ours
        return GAP if ours == published == GAP else f"{ours} | {published}"


def build_table(planned: PlannedItem, cells: Cells) -> Reproduction:
    """Put measured values, by title of the row and of the column, next to the published ones."""
    named, dataset = planned.named, planned.dataset
    columns = named.columns(dataset)
    runs = {each.row.title: each for each in planned.rows}
    every = derived(cells, named.rows, columns)
    lines = [
        Line(row.title, runs.get(row.title), tuple(_pair(planned, row, column, every) for column in columns))
        for row in named.rows
    ]
    for title, quoted in quoted_rows(named, dataset).items():
        pairs = tuple(Pair(None, quoted.get(column.title), column.decimals) for column in columns)
        lines.append(Line(title, None, pairs))
    shown = tuple(line for line in lines if line.run or any(cell.ours or cell.published for cell in line.cells))
    left_out = tuple(f"{title}: {reason}" for title, reason in planned.left_out.items())
    return Reproduction(named, dataset, columns, shown, what_differs(planned), left_out)


def _pair(planned: PlannedItem, row: Row, column: Column, cells: Cells) -> Pair:
    values = cells.get((row.title, column.title))
    published = published_value(planned.named, row, column, planned.dataset)
    quoted = row.quoted.get(planned.dataset, {}).get(column.title)
    if published is None and quoted is not None:
        published = Published(mean=quoted, text=str(quoted))
    return Pair(SeedStatistics.of(values) if values else None, published, 2 if row.how else column.decimals)


def to_frame(table: Reproduction) -> pd.DataFrame:
    """Numbers of a reproduced table: one row per cell that has a value of ours or a published one.

    ``differs`` is how our set-up differs from the paper's; ``published_note`` is ``no published value`` for a value of
    ours that the paper has no number for.
    """
    lines = []
    for line in table.lines:
        contender = line.run.contender._asdict() if line.run else {}
        for column, cell in zip(table.columns, line.cells):
            ours, published = cell.ours, cell.published
            if ours is None and published is None:
                continue
            lines.append(
                {
                    "name": table.named.name,
                    "dataset": table.dataset,
                    "row": line.title,
                    "column": column.title,
                    "ours_mean": ours.mean if ours else None,
                    "ours_sd": ours.sd if ours else None,
                    "ours_seeds": ours.defined if ours else None,
                    "published_mean": published.mean if published else None,
                    "published_sd": published.sd if published else None,
                    **{key: value for key, value in contender.items() if key not in ("dataset", "ensemble")},
                    "differs": table.differs,
                    "published_note": published.note if published else UNPUBLISHED,
                }
            )
    return pd.DataFrame(lines)


def document(table: Reproduction) -> Document:
    """A reproduced table for the files ``DATASET.csv``, ``.md`` and ``.tex``."""
    named = table.named
    rows = [[line.title, *map(table.text, line.cells)] for line in table.lines]
    columns = headings("", *(column.title for column in table.columns))
    shown = cells_table(
        f"{named.item.title} ({table.dataset})", columns, rows, notes=tuple(table.remarks), caption=table.legend
    )
    introduction = f"{markdown_text(f'{named.paper.title}. {named.item.asks}')}\n\n{table.legend}"
    return Document(table.dataset, markdown_text(table.name), introduction, (shown,), to_frame(table))


def write_table(table: Reproduction, out: Path) -> list[Path]:
    """Write a reproduced table as CSV, Markdown and LaTeX; the same table gives the same files."""
    return render.write_documents([document(table)], out)


def print_table(table: Reproduction, console: Console) -> None:
    """Print a reproduced table, and remarks below it."""
    rows = [[line.title, line.ours, *map(table.text, line.cells)] for line in table.lines]
    # Terminals are narrow: a word of a heading per line.
    columns = headings("", "ours", *(column.title.replace(" ", "\n") for column in table.columns), labels=2)
    title = f"{table.name}: {table.named.item.asks}\n{table.legend}"
    render.print_table(cells_table(title, columns, rows), console)
    for text in table.remarks:
        console.print(f"* {printable(text)}", highlight=False, markup=False, soft_wrap=True)
