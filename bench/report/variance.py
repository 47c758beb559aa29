"""Variance by source: how much of the variance between runs vanishes when one source of randomness is frozen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..protocols.statistics import VarianceShare, variance_by_source
from .contender import CONTENDER, Contender, distinct_labels
from .frame import Results
from .seeds import ComparedColumn, SeedGroup, compared, defined_values, seed_groups, seeds_text
from .splits import MEASURED, OverSplits
from .table import GAP, Column, Document, Table, cells_table, frame_of, grouped, headings, held, interval, number

ABOUT = (
    "Share of the variance between runs that vanishes when all runs have the same draw of a source [95 % interval]; SD:"
    " between runs in which everything varies. Shares add up to less than 1 if sources interact, and a share below 0"
    " says that the frozen runs happened to vary more. With few runs the intervals are wide."
)
"""Legend of the tables."""

NOTHING = "nothing"

SEEDS, SPLITS = "seeds", "splits"
"""Sources whose spread is shown as it is: seeds on a data set's own split, and class splits, each the mean of its
seeds."""

SPREAD = (
    "SD over seeds of the data set's own split, over class splits (of means over seeds), and by tuning: the square root"
    " of its part of the variance. In parentheses: runs."
)
"""Legend of the tables of spreads."""


@dataclass(frozen=True)
class SourceShare:
    """Share of one source of randomness in the variance of one metric of a contender, or the reason for having none.

    ``varied`` and ``frozen`` are the values, by seed, of the runs in which everything varies, and in which the source
    does not. ``tuned_anew`` is whether every run has a tuning study of its own, so that tuning is among what varies.
    """

    contender: Contender
    tuned_anew: bool
    column: ComparedColumn
    source: str
    varied: Mapping[int, float]
    frozen: Mapping[int, float]
    part: VarianceShare | None
    reason: str

    @property
    def sd(self) -> float:
        """Standard deviation of the runs in which everything varies; nan for fewer than two."""
        return float(np.std(list(self.varied.values()), ddof=1)) if len(self.varied) > 1 else float("nan")


def shares_of_variance(results: Results) -> list[SourceShare]:
    """Shares of all sources of randomness that were frozen, for every contender and column of the comparison."""
    if not results.frozen:
        return []
    groups: dict[tuple[Contender, bool], dict[str, SeedGroup]] = {}
    for group in seed_groups(Results.of(results.frozen).merged):
        pinned = group.contender.pinned
        contender = group.contender._replace(pinned=pinned.unfrozen)
        groups.setdefault((contender, pinned.tuned_anew), {})[pinned.frozen_source] = group
    every = {group.contender: group for group in seed_groups(results.merged)} if results.tests else {}
    return [
        share
        for (contender, anew), by_source in groups.items()
        for share in _of_contender(contender, anew, by_source, every.get(contender))
    ]


def spreads(
    groups: Sequence[SeedGroup], splits: Sequence[OverSplits], shares: Sequence[SourceShare]
) -> list[SourceShare]:
    """Values over seeds of the own split and over class splits, of contenders with splits or shares."""
    every = {(each.contender, each.column): each.values for each in splits if not each.against}
    found = []
    for group in groups:
        for column in MEASURED:
            over = every.get((group.contender, column), {})
            if over or any((each.contender, each.column) == (group.contender, column) for each in shares):
                sources = {SEEDS: defined_values(group.column(column)), SPLITS: over}
                found += [
                    SourceShare(group.contender, False, column, source, values, {}, None, "")
                    for source, values in sources.items()
                    if values
                ]
    return found


def _of_contender(
    contender: Contender, anew: bool, by_source: Mapping[str, SeedGroup], normal: SeedGroup | None
) -> Iterator[SourceShare]:
    # Normal runs share one tuning study: they are the runs in which tuning is frozen.
    varied = by_source.get(NOTHING) if anew else normal
    frozen = {source: group for source, group in by_source.items() if source != NOTHING}
    if anew and normal is not None:
        frozen["tuning"] = normal
    for column in compared():
        values = {} if varied is None else defined_values(varied.column(column))
        for source, group in frozen.items():
            own = defined_values(group.column(column))
            if own or values:
                part, reason = _part_of(source, values, own)
                yield SourceShare(contender, anew, column, source, values, own, part, reason)


def _part_of(source: str, varied: Mapping[int, float], frozen: Mapping[int, float]) -> tuple[VarianceShare | None, str]:
    """Share of a source in the variance of some values by seed, if there is one, and what is missing."""
    seeds = set(varied) | set(frozen)
    missing = {NOTHING: seeds - set(varied), source: seeds - set(frozen)}
    gaps = [f"frozen {name}: no {seeds_text(those)}" for name, those in missing.items() if those]
    if len(varied) < 2 or len(frozen) < 2:
        return None, "; ".join(["fewer than two runs", *gaps])
    if len(set(varied.values())) == 1:
        return None, "; ".join(["runs do not vary", *gaps])
    found = variance_by_source(np.array(list(varied.values())), {source: [np.array(list(frozen.values()))]})
    return found[source], "; ".join(gaps)


def _part(each: SourceShare) -> dict[str, object]:
    nan = float("nan")
    part = each.part or VarianceShare(nan, nan, nan, nan, len(each.frozen))
    ends = {"share_ci95_low": part.ci_low, "share_ci95_high": part.ci_high}
    return {"variance": part.variance, "share": part.share, **ends, "frozen_runs": part.n}


NUMBERS: tuple[Column[SourceShare], ...] = (
    CONTENDER,
    Column("", fields=held("tuned_anew")),
    Column("", fields=lambda each: {"metric": each.column.metric, "split": each.column.split}),
    Column("", fields=held("source")),
    Column("", fields=lambda each: {"sd": each.sd, "runs": len(each.varied)}),
    Column("", fields=_part),
    Column("", fields=held("reason")),
)
"""Columns of the numbers; tables for readers have a column per source."""


def variance_document(found: Sequence[SourceShare]) -> Document:
    """Tables of shares, one per data set and column, with a column per source."""
    shown = [each for each in found if each.source not in (SEEDS, SPLITS)]
    parts = grouped(shown, lambda each: (each.contender.dataset, each.column, each.tuned_anew))
    tables = [_table(*place, rows) for place, rows in parts.items()]
    beside = [each for each in found if each not in shown or each.source == "tuning"]
    by_dataset = grouped(beside, lambda each: each.contender.dataset)
    first = [_spread_table(dataset, rows) for dataset, rows in by_dataset.items()]
    return Document("variance", "Variance by source", ABOUT, (*first, *tables), frame_of(NUMBERS, found))


def _spread_table(dataset: str, rows: Sequence[SourceShare]) -> Table:
    """Spread over seeds, class splits and tuning side by side."""
    names = distinct_labels(list(dict.fromkeys(row.contender for row in rows)))
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        if row.column in MEASURED:
            sd = math.sqrt(max(row.part.variance, 0.0)) if row.part else row.sd
            text = f"{row.column.text(sd)} ({len(row.varied)})"
            cells.setdefault((names[row.contender], row.column.title), {})[row.source] = text
    titles = (SEEDS, SPLITS, "tuning")
    lines = [(*labels, *(own.get(title, GAP) for title in titles)) for labels, own in cells.items()]
    columns = headings("method", "metric", *titles, labels=2)
    return cells_table(f"{dataset}, SD by source", columns, lines, notes=(SPREAD,), caption=SPREAD)


def _table(dataset: str, column: ComparedColumn, anew: bool, rows: Sequence[SourceShare]) -> Table:
    names = distinct_labels(list(dict.fromkeys(row.contender for row in rows)))
    sources = tuple(dict.fromkeys(row.source for row in rows))
    cells: dict[str, dict[str, str]] = {}
    notes = []
    for row in rows:
        own = cells.setdefault(names[row.contender], {})
        own["SD"] = column.text(row.sd)
        own["runs"] = str(len(row.varied))
        if row.part is not None:
            own[row.source] = interval(*map(number, (row.part.share, row.part.ci_low, row.part.ci_high)))
        notes += [f"{names[row.contender]}, {row.source}: {row.reason}."] if row.reason else []
    titles = ("SD", "runs", *sources)
    return cells_table(
        f"{dataset}, {column.title}{', every run tuned anew' if anew else ''}",
        headings("method", *titles),
        [(name, *(own.get(title, GAP) for title in titles)) for name, own in cells.items()],
        notes=tuple(notes),
        caption=ABOUT,
    )
