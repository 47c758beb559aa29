"""Values of the cells of a reproduced table: read from our tidy table, or computed from other cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

from ..report.contender import CONTENDER_KEYS
from ..report.frame import Results
from ..report.seeds import SeedGroup, SeedStatistics
from ..report.table import GAP
from .items import Column, How, Reads, Row
from .run import PlannedItem

BySeed = dict[int, float]
"""Values by seed."""

Cells = dict[tuple[str, str], BySeed]
"""Values by title of the row and of the column, in the unit of the paper."""


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
