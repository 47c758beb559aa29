"""Tables of papers: cells read from our tidy table or computed, next to the published numbers or of any results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

import pandas as pd
from rich.console import Console

from ..errors import printable
from ..report import render
from ..report.compare import OUTCOMES, Comparison, ask
from ..report.contender import Contender, distinct_labels
from ..report.frame import Results
from ..report.questions import CONFIDENCE, USES
from ..report.render import markdown_text
from ..report.seeds import SeedGroup, SeedStatistics, divided, seed_groups
from ..report.table import GAP, Document, Table, cells_table, headings
from ..report.views import WORTH, outcome_text
from .items import UNPUBLISHED, Column, How, Named, Published, Reads, Row, published_value, quoted_rows
from .run import PlannedItem, PlannedRow, what_differs

BySeed = dict[int, float]
"""Values by seed."""

Cells = dict[tuple[str, str], BySeed]
"""Values by title of the row and of the column, in the unit of the paper."""

VERDICTS = tuple(f"worth it {heading}" for heading in USES.values())
"""Headings of the verdicts on the method's own confidence: at query time, the best of it alone and combined."""

FORM_LEGEND = (
    "Mean ± SD over seeds of our own runs. Worth it: is the method's own confidence better than the free one that"
    " validation chose, before there is a gallery and at query time (alone or combined with free ones)?"
)
"""Legend of the tables of any results."""


def measured(planned: PlannedItem, results: Results) -> Cells:
    """Values that our runs measured for the cells of a paper's table; rows that were not tested are absent."""
    groups = {group.contender: group for group in seed_groups(results.merged)} if results.tests else {}
    cells: Cells = {}
    for each in planned.rows:
        group = groups.get(each.contender)
        columns = [column for column in planned.named.columns(planned.dataset) if each.row.has(column)]
        for place, values in read_row(each.row.title, group, columns, each.row.reads).items() if group else ():
            cells[place] = {seed: value for seed, value in values.items() if seed in each.plan.replicates}
    return cells


def read_row(
    title: str, group: SeedGroup, columns: Iterable[Column], instead: Mapping[str, str] | None = None
) -> Cells:
    """Values of the columns that are measured, read with some entries of their selection replaced."""
    return {
        (title, column.title): {
            seed: column.factor * value for seed, value in read(group, column.reads.model_copy(update=instead)).items()
        }
        for column in columns
        if column.reads is not None
    }


def read(group: SeedGroup, reads: Reads) -> BySeed:
    """Values by seed of one cell of a paper's table, read from the tests of its row; empty if nothing was measured."""
    rows = group.rows
    confidence = group.confidence if reads.confidence == "own" else reads.confidence
    chosen = rows[
        (rows["metric"] == reads.metric)
        & (rows["split"] == reads.split)
        & (rows["confidence"] == confidence)
        & (rows["fraction"].isna() if reads.fraction is None else (rows["fraction"] - reads.fraction).abs() < 1e-9)
    ]
    if reads.scorer != "own" or (chosen["scorer"] != "").any():
        chosen = chosen[chosen["scorer"] == (group.scorer if reads.scorer == "own" else reads.scorer)]
    for variant in reads.variant:
        found = chosen[chosen["variant"] == variant]
        if not found.empty:
            return {int(seed): float(value) for seed, value in zip(found["seed"], found["value"])}
    return {}


def derived(cells: Cells, rows: tuple[Row, ...], columns: tuple[Column, ...]) -> Cells:
    """The cells of a table with those that are computed from other columns, then those computed from other rows."""
    known = dict(cells)
    for column in columns:
        for row in rows if column.of else ():
            places = [(row.title, name) for name in column.of]
            places += [(rows[0].title, column.of[0])] if column.how == "ratio to the first row" else []
            known[row.title, column.title] = _combined(column.how, [known.get(place, {}) for place in places])
    for row in rows:
        for column in columns if row.of else ():
            if row.has(column):
                parts = [known.get((name, column.title), {}) for name in row.of]
                known[row.title, column.title] = _combined(row.how, parts)
    return known


def _combined(how: How, parts: list[BySeed]) -> BySeed:
    """Values that follow from others, seed by seed; the smallest is that of the means."""
    if how == "smallest":
        means = [fmean(part.values()) for part in parts if part]
        return {0: min(means)} if means else {}
    first, second = parts
    return {seed: _paired(how, first[seed], second[seed]) for seed in sorted(set(first) & set(second))}


def _paired(how: How, first: float, second: float) -> float:
    if how == "difference":
        return first - second
    if not second:
        return math.nan
    return 100.0 * (first - second) / abs(second) if how == "relative change" else first / second


def value_text(value: SeedStatistics, decimals: int) -> str:
    """Our value as ``mean ± SD``, with ``[defined/seeds]`` if some seeds have no value; ``-`` if there is none."""
    if not value.defined:
        return GAP
    missing = f" [{value.defined}/{value.seeds}]" if value.defined < value.seeds else ""
    sd = f" ± {value.sd:.{decimals}f}" if value.sd == value.sd else ""
    return f"{value.mean:.{decimals}f}{sd}{missing}"


class Pair(NamedTuple):
    """Our mean and SD over seeds, in the paper's unit, next to the number that the paper published."""

    ours: SeedStatistics
    published: Published | None
    decimals: int

    @property
    def texts(self) -> tuple[str, str]:
        """Both as ``mean ± SD``; ``-`` if there is none."""
        return value_text(self.ours, self.decimals), self.published.text if self.published else GAP


class Line(NamedTuple):
    """A line of a reproduced table: a row of the paper with its cells, one per column."""

    title: str
    run: PlannedRow | None  # None if it is computed from other rows, only quoted from the paper, or was left out
    cells: tuple[Pair, ...]


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper on one data set: our values next to the published numbers."""

    planned: PlannedItem
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]

    @cached_property
    def differs(self) -> str:
        """How our set-up differs from the paper's."""
        return what_differs(self.planned)

    @property
    def name(self) -> str:
        """Name of the table and data set."""
        return f"{self.planned.named.name} on {self.planned.dataset}"

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
        left_out = (f"left out: {title}: {reason}" for title, reason in self.planned.left_out.items())
        return [self.differs, *self.planned.named.differences, *notes, *left_out]

    @property
    def legend(self) -> str:
        """What a cell shows."""
        if not self.compared:
            return "Mean ± SD over seeds. No value was published to put next to ours."
        return f"Ours | published, mean ± SD over seeds; {GAP} is no value of ours, or {UNPUBLISHED}."

    def shown(self, title: str, terminal: bool = False) -> Table:
        """The table for readers, ``ours | published`` in a cell; ours alone where nothing was published at all."""

        def text(cell: Pair) -> str:
            both = cell.texts if self.compared else cell.texts[:1]
            return GAP if set(both) == {GAP} else " | ".join(both)

        rows = []
        for line in self.lines:
            ours = f"{line.run.contender.label}, {line.run.contender.hparams}" if line.run else ""
            rows.append([line.title, *[ours] * terminal, *map(text, line.cells)])
        # Terminals are narrow: a word of a heading per line.
        titles = [column.title.replace(" ", "\n") if terminal else column.title for column in self.columns]
        columns = headings("", *["ours"] * terminal, *titles, labels=1 + terminal)
        return cells_table(title, columns, rows, notes=() if terminal else tuple(self.remarks), caption=self.legend)


def build_table(planned: PlannedItem, cells: Cells) -> Reproduction:
    """Put measured values, by title of the row and of the column, next to the published ones."""
    named, dataset = planned.named, planned.dataset
    columns = named.columns(dataset)
    runs = {each.row.title: each for each in planned.rows}
    every = derived(cells, named.rows, columns)

    def pair(row: Row, column: Column) -> Pair:
        published, quoted = published_value(named, row, column, dataset), row.quoted.get(dataset, {})
        if published is None and column.title in quoted:
            published = Published(mean=quoted[column.title], text=str(quoted[column.title]))
        ours = SeedStatistics.of(every.get((row.title, column.title), {}))
        return Pair(ours, published, 2 if row.how else column.decimals)

    lines = [Line(row.title, runs.get(row.title), tuple(pair(row, each) for each in columns)) for row in named.rows]
    for title, quoted in quoted_rows(named, dataset).items():
        cells_of = (Pair(SeedStatistics.of({}), quoted.get(column.title), column.decimals) for column in columns)
        lines.append(Line(title, None, tuple(cells_of)))
    held = (line for line in lines if line.run or any(cell.ours.seeds or cell.published for cell in line.cells))
    return Reproduction(planned, columns, tuple(held))


def to_frame(table: Reproduction) -> pd.DataFrame:
    """Numbers of a reproduced table: one row per cell that has a value of ours or a published one.

    ``differs`` is how our set-up differs from the paper's; ``published_note`` is ``no published value`` for a value of
    ours that the paper has no number for.
    """
    lines = []
    for line in table.lines:
        contender = line.run.contender._asdict() if line.run else {}
        own = {key: value for key, value in contender.items() if key not in ("dataset", "ensemble")}
        for column, (ours, published, _) in zip(table.columns, line.cells):
            if not ours.seeds and published is None:
                continue
            number = {
                "name": table.planned.named.name,
                "dataset": table.planned.dataset,
                "row": line.title,
                "column": column.title,
                "ours_mean": ours.mean,
                "ours_sd": ours.sd,
                "ours_seeds": ours.defined if ours.seeds else None,
                "published_mean": published.mean if published else None,
                "published_sd": published.sd if published else None,
            }
            about = {"differs": table.differs, "published_note": published.note if published else UNPUBLISHED}
            lines.append(number | own | about)
    return pd.DataFrame(lines)


def document(table: Reproduction) -> Document:
    """A reproduced table for the files ``DATASET.csv``, ``.md`` and ``.tex``."""
    named, dataset = table.planned.named, table.planned.dataset
    introduction = f"{markdown_text(f'{named.paper.title}. {named.item.asks}')}\n\n{table.legend}"
    shown = table.shown(f"{named.item.title} ({dataset})")
    return Document(dataset, markdown_text(table.name), introduction, (shown,), to_frame(table))


def print_table(table: Reproduction, console: Console) -> None:
    """Print a reproduced table, and remarks below it."""
    title = f"{table.name}: {table.planned.named.item.asks}\n{table.legend}"
    render.print_table(table.shown(title, terminal=True), console)
    for text in table.remarks:
        console.print(f"* {printable(text)}", highlight=False, markup=False, soft_wrap=True)


def fill_form(named: Named, results: Results) -> Document:
    """A paper's table filled with the results of a folder, one table per data set; it has none without results."""
    every = seed_groups(results.merged)
    answers = ask(CONFIDENCE, every)
    tables, numbers = [], []
    for (dataset,), groups in divided(every, ["dataset"]).items():
        columns = named.columns(dataset)
        names = distinct_labels([group.contender for group in groups])
        measured: Cells = {}
        for group in groups:
            measured |= read_row(names[group.contender], group, columns)
        # What a paper shows relative to its first row is relative to ours.
        cells = derived(measured, tuple(Row(title=name) for name in names.values()), columns)
        rows = []
        for contender, name in names.items():
            values = [SeedStatistics.of(cells.get((name, column.title), {})) for column in columns]
            said = answers_of(contender, answers)
            rows.append([name, *(value_text(value, each.decimals) for each, value in zip(columns, values)), *said])
            for column, value in zip(columns, values):
                number = {"mean": value.mean, "sd": value.sd, "seeds": value.defined}
                place = {"name": named.name, "column": column.title}
                numbers.append({**contender._asdict(), **place, **number, **dict(zip(VERDICTS, said))})
        titles = headings("method", *(column.title for column in columns), *VERDICTS)
        caption = f"the columns of {named.item.title}. {FORM_LEGEND}"
        tables.append(cells_table(f"{named.name} on {dataset}", titles, rows, caption=caption))
    stem, heading = f"form_{named.name.replace('/', '_')}", f"{named.name}: {named.item.title}"
    return Document(stem, heading, FORM_LEGEND, tuple(tables), pd.DataFrame(numbers))


def answers_of(contender: Contender, answers: Sequence[Comparison]) -> tuple[str, ...]:
    """Verdicts on a contender's own confidence, as they stand below :data:`VERDICTS`."""
    texts = []
    for use in USES:
        own = [
            a for a in answers if (a.contender, a.column.split, a.use) == (contender, "test", use) and a.about["chosen"]
        ]
        # One of its confidences suffices, one without a remark first.
        first = min(own, key=lambda row: (OUTCOMES.index(row.outcome), row.why != ""), default=None)
        texts.append(outcome_text(first, WORTH) if first else GAP)
    return tuple(text or GAP for text in texts)
