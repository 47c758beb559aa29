"""Tables of the papers filled with whatever a results folder has: their columns, a row per method of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ..report.contender import Contender, distinct_labels
from ..report.frame import Results
from ..report.seeds import SeedGroup, SeedStatistics, seed_groups
from ..report.table import Document, Table, cells_table, headings
from ..report.verdicts import QUESTIONS, Verdict, verdicts
from .cells import Cells, derived, read
from .items import Column, Named, Row

VERDICTS = tuple(f"worth it {heading}" for heading in QUESTIONS.values())
"""Headings of the verdicts on the method's own confidence: at query time, the best of it alone and combined."""

ABOUT = (
    "Mean ± SD over seeds of our own runs. Worth it: is the method's own confidence better than the best free one,"
    " before there is a gallery and at query time (alone or combined with the margin)?"
)
"""Legend of the tables."""


@dataclass(frozen=True)
class Form:
    """A table of a paper on one data set, with a row for every contender (method at one setting) of a results folder.

    Attributes:
        named: The table of the paper.
        dataset: Name of the data set.
        columns: Its columns.
        contenders: The contenders.
        cells: Values of each contender by column, mean and SD over seeds in the paper's unit; None for no value.
        answers: The two verdicts of each contender (:data:`VERDICTS`).
    """

    named: Named
    dataset: str
    columns: tuple[Column, ...]
    contenders: tuple[Contender, ...]
    cells: tuple[tuple[SeedStatistics | None, ...], ...]
    answers: tuple[tuple[str, ...], ...]


def fill_form(named: Named, results: Results) -> list[Form]:
    """Fill the columns of a paper's table with the results of a folder, one form per data set.

    Args:
        named: The table of the paper.
        results: The finished tests.
    """
    merged = results.frame.merge(results.roles, on="unit")
    answers = verdicts(results.frame, results.roles)
    return [
        _form(named, str(dataset), seed_groups(rows), answers) for dataset, rows in merged.groupby("dataset", sort=True)
    ]


def _form(named: Named, dataset: str, groups: Sequence[SeedGroup], answers: Sequence[Verdict]) -> Form:
    columns = named.columns(dataset)
    names = distinct_labels([group.contender for group in groups])
    cells: Cells = {}
    for group in groups:
        for column in columns:
            if column.reads is not None:
                values = read(group, column.reads)
                cells[names[group.contender], column.title] = {s: column.factor * v for s, v in values.items()}
    # What a paper shows relative to its first row is relative to ours.
    every = derived(cells, tuple(Row(title=name) for name in names.values()), columns)
    found = [[every.get((name, column.title)) for column in columns] for name in names.values()]
    return Form(
        named=named,
        dataset=dataset,
        columns=columns,
        contenders=tuple(names),
        cells=tuple(tuple(SeedStatistics.of(values) if values else None for values in line) for line in found),
        answers=tuple(_answers(contender, answers) for contender in names),
    )


def _answers(contender: Contender, answers: Sequence[Verdict]) -> tuple[str, ...]:
    texts = []
    for question in QUESTIONS:
        own = [a for a in answers if a.contender == contender and a.split == "test" and a.question == question]
        said = list(dict.fromkeys(": ".join(filter(None, [a.verdict, a.reason])) for a in own))
        # One of its confidences suffices, one without a remark first.
        worth = sorted((text for text in said if text.startswith("worth it")), key=len)
        texts.append((worth or sorted(said, key=lambda text: not text.startswith("undecided")) or ["-"])[0] or "-")
    return tuple(texts)


def form_frame(forms: Sequence[Form]) -> pd.DataFrame:
    """Forms as numbers, one row per data set, contender (method at one setting) and column of the paper.

    Args:
        forms: Forms, as :func:`fill_form` makes them.

    Returns:
        Columns of a :class:`~bench.report.contender.Contender`; ``name`` of the paper's table, ``column``, ``mean``,
        ``sd`` and ``seeds`` (with a value), and the two verdicts.
    """
    nan = float("nan")
    lines = []
    for form in forms:
        for contender, cells, answers in zip(form.contenders, form.cells, form.answers):
            for column, cell in zip(form.columns, cells):
                value = cell or SeedStatistics(nan, nan)
                line = {**contender._asdict(), "name": form.named.name, "column": column.title}
                line |= {"mean": value.mean, "sd": value.sd, "seeds": value.defined}
                lines.append(line | dict(zip(VERDICTS, answers)))
    return pd.DataFrame(lines)


def form_document(forms: Sequence[Form], name: str) -> Document:
    """Tables of forms, one per data set.

    Args:
        forms: Forms, as :func:`fill_form` makes them.
        name: Name of the files.
    """
    heading = f"{forms[0].named.name}: {forms[0].named.item.title}"
    return Document(name, heading, ABOUT, tuple(map(_table, forms)), form_frame(forms))


def _table(form: Form) -> Table:
    names = distinct_labels(form.contenders)
    rows = []
    for contender, cells, answers in zip(form.contenders, form.cells, form.answers):
        texts = [_text(column, cell) for column, cell in zip(form.columns, cells)]
        rows.append((names[contender], *texts, *answers))
    return cells_table(
        f"{form.named.name} on {form.dataset}",
        headings("method", *(column.title for column in form.columns), *VERDICTS),
        rows,
        caption=f"the columns of {form.named.item.title}. {ABOUT}",
    )


def _text(column: Column, cell: SeedStatistics | None) -> str:
    if cell is None or cell.mean != cell.mean:
        return "-"
    missing = f" [{cell.defined}/{cell.seeds}]" if cell.defined < cell.seeds else ""
    sd = f" ± {cell.sd:.{column.decimals}f}" if cell.sd == cell.sd else ""
    return f"{cell.mean:.{column.decimals}f}{sd}{missing}"
