"""Tables of papers: cells read from our tidy table or computed, next to the published numbers or of any results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pandas as pd
from rich.console import Console

from ..errors import printable
from ..report import render
from ..report.compare import OUTCOMES, Comparison, ask
from ..report.contender import CONTENDER_KEYS, Contender, distinct_labels
from ..report.frame import Results
from ..report.questions import CONFIDENCE, USES
from ..report.render import markdown_text
from ..report.seeds import SeedGroup, SeedStatistics, divided, seed_groups
from ..report.table import GAP, Document, cells_table, headings
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
    merged = results.merged
    cells: Cells = {}
    for each in planned.rows:
        contender = each.contender
        same = merged["seed"] < each.plan.seeds
        for key in CONTENDER_KEYS:
            same &= merged[key] == getattr(contender, key)
        if same.any():
            columns = [column for column in planned.named.columns(planned.dataset) if each.row.has(column)]
            cells |= read_row(each.row.title, SeedGroup.of(merged[same]), columns, each.row.reads)
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
    if reads.scorer != "own":
        chosen = chosen[chosen["scorer"] == reads.scorer]
    elif (chosen["scorer"] != "").any():
        chosen = chosen[chosen["scorer"] == group.scorer]
    for variant in reads.variant:
        found = chosen[chosen["variant"] == variant]
        if not found.empty:
            return {int(seed): float(value) for seed, value in zip(found["seed"], found["value"])}
    return {}


def derived(cells: Cells, rows: tuple[Row, ...], columns: tuple[Column, ...]) -> Cells:
    """The cells of a table with those that are computed from other columns, then those computed from other rows."""
    known = dict(cells)
    first = rows[0].title if rows else ""
    for column in columns:
        for row in rows if column.of else ():
            if column.how == "ratio to the first row":
                parts = [known.get((name, column.of[0]), {}) for name in (row.title, first)]
            else:
                parts = [known.get((row.title, name), {}) for name in column.of]
            known[row.title, column.title] = _combined(column.how, parts)
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
    return {seed: _PAIRED[how](first[seed], second[seed]) for seed in sorted(set(first) & set(second))}


def _relative_change(new: float, old: float) -> float:
    return 100.0 * (new - old) / abs(old) if old else math.nan


_PAIRED: Mapping[How, Callable[[float, float], float]] = {
    "difference": lambda first, second: first - second,
    "relative change": _relative_change,
    "ratio to the first row": lambda own, first: own / first if first else math.nan,
}


def value_text(value: SeedStatistics | None, decimals: int) -> str:
    """Our value as ``mean ± SD``, with ``[defined/seeds]`` if some seeds have no value; ``-`` if there is none."""
    if value is None or not value.defined:
        return GAP
    missing = f" [{value.defined}/{value.seeds}]" if value.defined < value.seeds else ""
    sd = f" ± {value.sd:.{decimals}f}" if value.sd == value.sd else ""
    return f"{value.mean:.{decimals}f}{sd}{missing}"


class Pair(NamedTuple):
    """Our mean and SD over seeds, in the paper's unit, next to the number that the paper published."""

    ours: SeedStatistics | None
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

    @property
    def ours(self) -> str:
        """Name of our method and source of its hyper-parameters; empty for a line without a run."""
        return f"{self.run.contender.label}, {self.run.contender.hparams}" if self.run else ""


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper on one data set: our values next to the published numbers."""

    planned: PlannedItem
    lines: tuple[Line, ...]

    @property
    def named(self) -> Named:
        """The table as the paper has it."""
        return self.planned.named

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return self.planned.dataset

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of the table on this data set."""
        return self.named.columns(self.dataset)

    @cached_property
    def differs(self) -> str:
        """How our set-up differs from the paper's."""
        return what_differs(self.planned)

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
        left_out = (f"left out: {title}: {reason}" for title, reason in self.planned.left_out.items())
        return [self.differs, *self.named.differences, *notes, *left_out]

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
    return Reproduction(planned, shown)


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
        contender = {key: value for key, value in contender.items() if key not in ("dataset", "ensemble")}
        for column, cell in zip(table.columns, line.cells):
            ours, published = cell.ours, cell.published
            if ours is None and published is None:
                continue
            place = {"name": table.named.name, "dataset": table.dataset, "row": line.title, "column": column.title}
            number = {
                "ours_mean": ours.mean if ours else None,
                "ours_sd": ours.sd if ours else None,
                "ours_seeds": ours.defined if ours else None,
                "published_mean": published.mean if published else None,
                "published_sd": published.sd if published else None,
            }
            about = {"differs": table.differs, "published_note": published.note if published else UNPUBLISHED}
            lines.append({**place, **number, **contender, **about})
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
            found = [cells.get((name, column.title)) for column in columns]
            values = [SeedStatistics.of(by_seed) if by_seed else None for by_seed in found]
            said = answers_of(contender, answers)
            texts = (value_text(value, column.decimals) for column, value in zip(columns, values))
            rows.append([name, *texts, *said])
            for column, value in zip(columns, values):
                shown = value or SeedStatistics(float("nan"), float("nan"))
                number = {"mean": shown.mean, "sd": shown.sd, "seeds": shown.defined}
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
