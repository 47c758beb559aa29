"""Results of the corrected form of each method next to those of the form that a public code computes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from ..store.pinned import split_pinned
from .contender import COMMON, Contender
from .pairing import differences, judged
from .seeds import ComparedColumn, SeedGroup, SeedStatistics
from .table import GAP, Cell, Column, Document, Table, interval, label, table_of

CORRECTED = "corrected"

METRICS = (
    ComparedColumn("map_at_r"),
    ComparedColumn("recall_at_1"),
    ComparedColumn("spearman_crop", split="test_crop"),
    ComparedColumn("confidence_auroc"),
)
"""Metrics in which the two forms are compared; those of a confidence judge the default one of each form."""

ABOUT = (
    "Each method as its paper's equations say (corrected) and as a public code computes it (`--fidelity "
    "released`), at the same seeds and settings: means over the paired seeds, and the mean of corrected minus "
    "released with its 95 % interval. The verdict is about the corrected form; Holm's method adjusts its p-values "
    "over the methods of a data set and metric. `undecided`: the seeds do not tell whether the difference of the "
    "codes changes the result."
)
"""Introduction of the table."""


def fidelity_table(groups: Iterable[SeedGroup]) -> pd.DataFrame:
    """Table of paired differences over seeds between the two forms of every method: corrected minus released.

    There is one row per contender in a released form, and metric; the verdict is on the corrected form, as in
    :func:`~bench.report.pairing.paired_methods`.
    """
    held = {group.contender: group for group in groups}
    lines: list[dict[str, object]] = []
    for contender, released in held.items():
        corrected = held.get(contender._replace(fidelity=CORRECTED))
        if contender.fidelity != CORRECTED and corrected is not None:
            columns = {(column.metric, column.split): column for column in METRICS}
            for line in differences(corrected, released, METRICS):
                means = _means(columns[line["metric"], line["split"]], corrected, released)
                lines.append({**contender._asdict(), **means, **line})
    return judged(lines)


def _means(column: ComparedColumn, corrected: SeedGroup, released: SeedGroup) -> dict[str, float]:
    """Means of both forms over the seeds at which both have a value."""
    left, right = (group.column(column) for group in (corrected, released))
    paired = [seed for seed in left if seed in right and left[seed] == left[seed] and right[seed] == right[seed]]
    return {
        name: SeedStatistics.of({seed: values[seed] for seed in paired}).mean
        for name, values in (("corrected_mean", left), ("released_mean", right))
    }


class Form(NamedTuple):
    """Row of :func:`fidelity_table`: a contender in a released form, its fixed settings of its own, and the numbers."""

    contender: Contender
    pinned: str
    line: Mapping[Hashable, Any]

    @property
    def column(self) -> ComparedColumn:
        """Column of the metric."""
        metric = self.line["metric"], self.line["split"]
        return next(each for each in METRICS if (each.metric, each.split) == metric)

    def number(self, name: str, *ends: str, sign: str = "") -> Cell:
        """Cell of a mean, with the ends of its interval if there are any."""
        texts = (self.column.text(float(self.line[each]), sign) for each in (name, *ends))
        return Cell(interval(*texts) if ends else next(texts), float(self.line[name]))


COLUMNS: tuple[Column[Form], ...] = (
    label("method", lambda row: row.contender.label, "in brackets the form of the public code"),
    label("tuning", lambda row: row.contender.tuning, "source of the hyper-parameters, of both forms"),
    label("network", lambda row: row.contender.network, "backbone and size of the embedding"),
    label("fixed", lambda row: row.pinned or GAP, "fixed settings, of both forms"),
    label("metric", lambda row: row.column.title),
    Column("corrected", lambda row: row.number("corrected_mean"), note="mean over the paired seeds"),
    Column("released", lambda row: row.number("released_mean"), note="public code, mean over the paired seeds"),
    Column(
        "corrected - released",
        lambda row: row.number("difference_mean", "ci95_low", "ci95_high", sign="+"),
        note="mean over paired seeds [95 % t-interval]",
    ),
    Column("seeds", lambda row: str(row.line["seeds"]), note="paired seeds"),
    Column(
        "verdict",
        lambda row: row.line["verdict"],
        number=False,
        note="on the corrected form, adjusted over the methods of the data set",
    ),
)
"""Columns of the tables of the two forms."""


def fidelity_document(forms: pd.DataFrame) -> Document:
    """Tables of the two forms, one per protocol, preset, data set and ensemble."""
    parts = [rows for _, rows in forms.groupby(list(COMMON), sort=True)] if len(forms) else []
    tables = tuple(_table(rows) for rows in parts)
    return Document("fidelity", "Public codes", ABOUT, tables, forms, always=("method",))


def _table(rows: pd.DataFrame) -> Table:
    shared, forms = rows_of(rows)
    title = ", ".join(filter(None, [forms[0].contender.dataset, shared]))
    left_out = [text for text in dict.fromkeys(rows["left_out"]) if text]
    return table_of(COLUMNS, forms, title, notes=tuple(f"Left out: {text}." for text in left_out))


def rows_of(forms: pd.DataFrame) -> tuple[str, list[Form]]:
    """Fixed settings that all rows share, and the rows."""
    contenders = [Contender.of(forms.iloc[[place]]) for place in range(len(forms))]
    shared, own = split_pinned([each.pinned for each in contenders])
    return shared, [Form(*each) for each in zip(contenders, own, forms.to_dict("records"))]
