"""Results of the corrected form of each method next to those of the form that a public code computes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import pandas as pd

from ..store.pinned import split_pinned
from .contender import COMMON, Contender
from .pairing import differences, judged, side
from .seeds import ComparedColumn, SeedGroup, SeedStatistics, seed_groups
from .text_table import TextTable, page_texts

CORRECTED = "corrected"

COLUMNS = (
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


def fidelity_table(frame: pd.DataFrame, roles: pd.DataFrame) -> pd.DataFrame:
    """Table of paired differences over seeds between the two forms of every method: corrected minus released.

    Args:
        frame: Tidy table of results (``metrics.csv``), one row per measured value: method, setting, metric, value and
            so on.
        roles: Table with one row per test: its id (``unit``) and its :class:`~bench.store.records.Role` (the method's
            own scorer, default confidence and so on).

    Returns:
        One row per contender (method at one setting) in a released form, and metric: the columns of a
        :class:`~bench.report.contender.Contender`; ``corrected_mean`` and ``released_mean`` over the seeds that both
        forms have; the keys of :class:`~bench.report.pairing.PairedDifference`; and ``p_holm``,
        ``p_equivalence_holm`` and ``verdict`` on the corrected form as in
        :func:`~bench.report.pairing.paired_methods`. Empty if no method has both forms.
    """
    groups = {group.contender: group for group in seed_groups(frame.merge(roles, on="unit"))}
    lines: list[dict[str, object]] = []
    for contender, released in groups.items():
        corrected = groups.get(contender._replace(fidelity=CORRECTED))
        if contender.fidelity != CORRECTED and corrected is not None:
            columns = {(column.metric, column.split): column for column in COLUMNS}
            for line in differences(corrected, released, COLUMNS):
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


def fidelity_texts(table: pd.DataFrame) -> dict[str, str]:
    """The table as Markdown and LaTeX, by ending of the file; one part per protocol, preset, data set and ensemble.

    Args:
        table: Rows of :func:`fidelity_table`.
    """
    parts = [_text_table(rows) for _, rows in table.groupby(list(COMMON), sort=True)]
    return page_texts("Public codes", ABOUT, parts, always=("method",))


def _text_table(rows: pd.DataFrame) -> TextTable:
    contenders = [Contender.of(rows.iloc[[place]]) for place in range(len(rows))]
    shared, own = split_pinned([each.pinned for each in contenders])
    dataset = ", ".join(filter(None, [contenders[0].dataset, shared]))
    cells = [
        (*side(each)[:3], pinned or "-", *fidelity_cells(row))
        for each, pinned, row in zip(contenders, own, rows.to_dict("records"))
    ]
    headings = ("method", "tuning", "network", "fixed", "metric")
    values = ("corrected", "released", "corrected - released", "seeds", "verdict")
    return TextTable(dataset, (*headings, *values), tuple(cells), labels=len(headings), notes=_notes(rows))


def fidelity_cells(row: Mapping[Hashable, object]) -> tuple[str, ...]:
    """Texts of a row of :func:`fidelity_table`: metric, both means, their difference with its interval, seeds, verdict.

    Args:
        row: The row; a missing number is a dash.
    """
    column = next(each for each in COLUMNS if (each.metric, each.split) == (row["metric"], row["split"]))
    factor, digits = (100.0, 2) if column.percent else (1.0, 3)

    def text(name: str, sign: str = "") -> str:
        value = float(str(row[name]))
        return f"{factor * value:{sign}.{digits}f}" if value == value else "-"

    difference = text("difference_mean", "+")
    if float(str(row["ci95_low"])) == float(str(row["ci95_low"])):
        difference += f" [{text('ci95_low', '+')}, {text('ci95_high', '+')}]"
    means = (text("corrected_mean"), text("released_mean"))
    return column.title, *means, difference, str(row["seeds"]), str(row["verdict"])


def _notes(rows: pd.DataFrame) -> tuple[str, ...]:
    """Paragraphs about seeds that only one of the forms has."""
    left_out: Sequence[str] = [text for text in dict.fromkeys(rows["left_out"]) if text]
    return tuple(f"Left out: {text}." for text in left_out)
