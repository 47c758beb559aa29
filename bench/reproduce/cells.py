"""Values of the cells of a reproduced table: read from our tidy table, or computed from other cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean

import pandas as pd

from ..report.contender import CONTENDER_KEYS, Contender
from ..report.frame import Results
from ..report.seeds import SeedGroup
from .items import Column, How, Reads, Row
from .rows import PlannedItem, PlannedRow

BySeed = dict[int, float]
"""Values by seed."""

Cells = dict[tuple[str, str], BySeed]
"""Values by title of the row and of the column."""


def measured(planned: PlannedItem, results: Results) -> Cells:
    """Read the values that our runs measured for the cells of a paper's table, in the unit of the paper.

    Args:
        planned: The table or figure on one data set, with the plans of its runs.
        results: Finished tests of the results folder.

    Returns:
        For each cell, a key ``(row title, column title)`` with a dictionary of values by seed. Rows that were not
        tested are absent.
    """
    merged = results.frame.merge(results.roles, on="unit")
    cells: Cells = {}
    for each in planned.rows:
        group = _group(merged, each)
        if group is not None:
            for column in planned.named.columns(planned.dataset):
                if column.reads is not None and _has(each.row, column):
                    values = read(group, column.reads.model_copy(update=each.row.reads))
                    cells[each.row.title, column.title] = {s: column.factor * v for s, v in values.items()}
    return cells


def _has(row: Row, column: Column) -> bool:
    return not row.columns or column.title in row.columns


def _group(merged: pd.DataFrame, planned: PlannedRow) -> SeedGroup | None:
    """The seeds of a planned row; None if none was tested."""
    contender: Contender = planned.contender
    same = merged["seed"] < planned.plan.seeds
    for key in CONTENDER_KEYS:
        same &= merged[key] == getattr(contender, key)
    return SeedGroup.of(merged[same]) if same.any() else None


def read(group: SeedGroup, reads: Reads) -> BySeed:
    """Values by seed of one cell of a paper's table, read from the tests of its row; empty if nothing was measured.

    Args:
        group: Results of all seeds of our run that reproduces the row.
        reads: Selection of metric, scorer (similarity), confidence and so on.
    """
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
    """Add the cells of a paper's table that are computed from other cells, such as differences, seed by seed.

    Columns that are computed from other columns come first, then rows that are computed from other rows.

    Args:
        cells: Measured cells: keys ``(row title, column title)``, each with a dictionary of values by seed.
        rows: Rows of the table.
        columns: Columns of the table.

    Returns:
        The measured and the computed cells, in the same form.
    """
    known = dict(cells)
    first = rows[0].title if rows else ""
    for column in columns:
        if column.of:
            for row in rows:
                if column.how == "ratio to the first row":
                    parts = [known.get((name, column.of[0]), {}) for name in (row.title, first)]
                else:
                    parts = [known.get((row.title, name), {}) for name in column.of]
                known[row.title, column.title] = _combined(column.how, parts)
    for row in rows:
        if row.of:
            for column in columns:
                if _has(row, column):
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
