"""Tables of the papers filled with whatever a results folder has: their columns, a row per contender of ours."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..report.contender import Contender, distinct_labels
from ..report.frame import Results
from ..report.seeds import SeedStatistics, divided, seed_groups
from ..report.table import GAP, Document, cells_table, headings
from ..report.verdicts import QUESTIONS, Verdict, verdicts
from .cells import Cells, derived, read_row, value_text
from .items import Named, Row

VERDICTS = tuple(f"worth it {heading}" for heading in QUESTIONS.values())
"""Headings of the verdicts on the method's own confidence: at query time, the best of it alone and combined."""

ABOUT = (
    "Mean ± SD over seeds of our own runs. Worth it: is the method's own confidence better than the best free one,"
    " before there is a gallery and at query time (alone or combined with the margin)?"
)
"""Legend of the tables."""


def fill_form(named: Named, results: Results) -> Document:
    """A paper's table filled with the results of a folder, one table per data set; it has none without results."""
    every = seed_groups(results.merged)
    answers = verdicts(every)
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
        caption = f"the columns of {named.item.title}. {ABOUT}"
        tables.append(cells_table(f"{named.name} on {dataset}", titles, rows, caption=caption))
    stem, heading = f"form_{named.name.replace('/', '_')}", f"{named.name}: {named.item.title}"
    return Document(stem, heading, ABOUT, tuple(tables), pd.DataFrame(numbers))


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
