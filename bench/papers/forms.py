"""Tables of the papers filled with whatever a results folder has: their columns, a row per contender of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ..report.contender import Contender, distinct_labels
from ..report.frame import Results
from ..report.seeds import SeedGroup, SeedStatistics, seed_groups
from ..report.table import GAP, Document, Table, cells_table, headings
from ..report.verdicts import QUESTIONS, Verdict, verdicts
from .cells import Cells, derived, read_row, value_text
from .items import Column, Named, Row

VERDICTS = tuple(f"worth it {heading}" for heading in QUESTIONS.values())
"""Headings of the verdicts on the method's own confidence: at query time, the best of it alone and combined."""

ABOUT = (
    "Mean ± SD over seeds of our own runs. Worth it: is the method's own confidence better than the best free one,"
    " before there is a gallery and at query time (alone or combined with the margin)?"
)
"""Legend of the tables."""


@dataclass(frozen=True)
class Line:
    """A contender in the columns of a paper's table."""

    contender: Contender
    label: str
    cells: tuple[SeedStatistics | None, ...]  # by column, in the paper's unit
    answers: tuple[str, ...]  # its verdicts


def fill_form(named: Named, results: Results) -> Document:
    """A paper's table filled with the results of a folder, one table per data set; it has none without results."""
    answers = verdicts(results.frame, results.roles)
    merged = results.frame.merge(results.roles, on="unit")
    tables, frames = [], []
    for name, rows in merged.groupby("dataset", sort=True):
        columns = named.columns(str(name))
        lines = _lines(columns, seed_groups(rows), answers)
        tables.append(_table(f"{named.name} on {name}", named, columns, lines))
        frames.append(_frame(named, columns, lines))
    numbers = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    stem, heading = f"form_{named.name.replace('/', '_')}", f"{named.name}: {named.item.title}"
    return Document(stem, heading, ABOUT, tuple(tables), numbers)


def _lines(columns: tuple[Column, ...], groups: Sequence[SeedGroup], answers: Sequence[Verdict]) -> list[Line]:
    names = distinct_labels([group.contender for group in groups])
    cells: Cells = {}
    for group in groups:
        cells |= read_row(names[group.contender], group, columns)
    # What a paper shows relative to its first row is relative to ours.
    every = derived(cells, tuple(Row(title=name) for name in names.values()), columns)
    lines = []
    for contender, name in names.items():
        found = [every.get((name, column.title)) for column in columns]
        own = tuple(SeedStatistics.of(values) if values else None for values in found)
        lines.append(Line(contender, name, own, answers_of(contender, answers)))
    return lines


def answers_of(contender: Contender, answers: Sequence[Verdict]) -> tuple[str, ...]:
    """Verdicts on a contender's own confidence, as they stand below :data:`VERDICTS`."""
    texts = []
    for question in QUESTIONS:
        own = [a for a in answers if a.contender == contender and a.split == "test" and a.question == question]
        said = list(dict.fromkeys(": ".join(filter(None, [a.verdict, a.reason])) for a in own))
        # One of its confidences suffices, one without a remark first.
        worth = sorted((text for text in said if text.startswith("worth it")), key=len)
        texts.append((worth or sorted(said, key=lambda text: not text.startswith("undecided")) or [GAP])[0])
    return tuple(text or GAP for text in texts)


def _table(title: str, named: Named, columns: tuple[Column, ...], lines: Sequence[Line]) -> Table:
    rows = []
    for line in lines:
        texts = (value_text(cell, column.decimals) for column, cell in zip(columns, line.cells))
        rows.append([line.label, *texts, *line.answers])
    titles = headings("method", *(column.title for column in columns), *VERDICTS)
    return cells_table(title, titles, rows, caption=f"the columns of {named.item.title}. {ABOUT}")


def _frame(named: Named, columns: tuple[Column, ...], lines: Sequence[Line]) -> pd.DataFrame:
    """One row per contender and column of the paper."""
    rows = []
    for line in lines:
        for column, cell in zip(columns, line.cells):
            value = cell or SeedStatistics(float("nan"), float("nan"))
            rows.append(
                {
                    **line.contender._asdict(),
                    "name": named.name,
                    "column": column.title,
                    "mean": value.mean,
                    "sd": value.sd,
                    "seeds": value.defined,
                    **dict(zip(VERDICTS, line.answers)),
                }
            )
    return pd.DataFrame(rows)
