"""The main table of a report: one row per contender (method at one setting), the best values marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import pandas as pd

from ..protocols.confidence_kinds import kind_of
from .budgets import method_names, ranked_together, unequal_budgets
from .contender import Contender
from .ranks import Rank, ranks
from .seeds import COMPARED, ComparedColumn, SeedGroup, SeedStatistics, seed_groups

HEAD = ("method", "network", "tuning", "pinned", "trainings", "seeds", "confidence", "rank", "ties")
"""Headings of the labels of a row."""
_MAP_AT_R = [column.metric for column in COMPARED].index("map_at_r")


@dataclass(frozen=True)
class Mark:
    """Emphasis of one value in the comparison table of methods: bold if best, underlined if better than deterministic.

    Attributes:
        best: Whether the value is the best mean of its column.
        beats_deterministic: Whether the value is of a probabilistic method and better than that of every deterministic
            method.
    """

    best: bool = False
    beats_deterministic: bool = False


@dataclass(frozen=True)
class ComparisonRow:
    """A row of the comparison table: one contender (method at one setting) with its values over seeds.

    Attributes:
        contender: The method at one setting.
        seeds: Number of seeds.
        trainings: Number of trainings spent on tuning, including those of the base of a two-stage method.
        confidence: Name of the method's default confidence, which columns about confidence show.
        values: Mean and SD over seeds for each column of :data:`~bench.report.seeds.COMPARED`, such as MAP@R.
        marks: Emphasis of each of the values.
        rank: Rank by MAP@R over paired seeds, or the reason for having none.
        unequal: Difference of its budget from that of most of its rivals, as text; empty if there is none.
        budget: Budget at which it is ranked and marked, as text; empty if the data set has one budget only.
    """

    contender: Contender
    seeds: int
    trainings: int
    confidence: str
    values: tuple[SeedStatistics, ...]
    marks: tuple[Mark, ...] = ()
    rank: Rank = field(default_factory=Rank)
    unequal: str = ""
    budget: str = ""

    @property
    def label(self) -> str:
        """Name of the method; of a two-stage method, with the base model that its head is trained on in parentheses."""
        return self.contender.label

    @property
    def labels(self) -> list[str]:
        """Texts of the columns before the values: method, network, source of the settings, fixed settings and so on."""
        contender = self.contender
        return [
            contender.label,
            contender.network,
            contender.tuning,
            contender.pinned.text,
            str(self.trainings),
            str(self.seeds),
            self.confidence,
            self.rank.text,
            self.rank.ties,
        ]


Comparison = Mapping[str, Sequence[ComparisonRow]]
"""Rows by data set."""


def comparison(frame: pd.DataFrame, roles: pd.DataFrame) -> dict[str, list[ComparisonRow]]:
    """Rows of the comparison of contenders (methods at one setting) by data set, budget and MAP@R.

    Ranks and marks are among the rows of one budget (:func:`~bench.report.budgets.ranked_together`). The rows of the
    leading budget come first; in each budget, that of the highest mean MAP@R does.

    The compared metrics are :data:`~bench.report.seeds.COMPARED`. The best mean of each metric is marked. The mean of a
    probabilistic method is also marked if it beats that of every deterministic method. In metrics that judge a
    confidence, it has to beat every image confidence of every deterministic method: those known before any gallery.

    Args:
        frame: Tidy table of results (``metrics.csv``), one row per measured value: method, setting, metric, value and
            so on.
        roles: Table with one row per test: its id (``unit``) and its :class:`~bench.store.records.Role` (the method's
            own scorer, default confidence and so on).
    """
    merged = frame.merge(roles, on="unit")
    return {str(dataset): compare(seed_groups(rows)) for dataset, rows in merged.groupby("dataset", sort=True)}


def compare(groups: Sequence[SeedGroup]) -> list[ComparisonRow]:
    """Rows of the comparison of the contenders (methods at one setting) of a data set, as :func:`comparison` has them.

    Args:
        groups: Values over seeds of each of them.
    """
    held = {group.contender: group for group in groups}
    return [
        replace(row, budget=text)
        for text, own in ranked_together(held)
        for row in compare_within([held[contender] for contender in own])
    ]


def compare_within(groups: Sequence[SeedGroup]) -> list[ComparisonRow]:
    """Rows of the comparison of the contenders (methods at one setting) of one budget of a data set.

    Args:
        groups: Values over seeds of each of them.
    """
    rows = [_row(group) for group in groups]
    by_column = [
        _marks(
            column,
            [row.values[index] for row in rows],
            [group.probabilistic for group in groups],
            [mean for group in groups if not group.probabilistic for mean in _rival_means(group, column)],
        )
        for index, column in enumerate(COMPARED)
    ]
    ranked = ranks(groups, COMPARED[_MAP_AT_R])
    unequal = unequal_budgets([row.contender for row in rows], [row.seeds for row in rows])
    marked = [
        replace(row, marks=marks, rank=rank, unequal=text)
        for row, marks, rank, text in zip(rows, zip(*by_column), ranked, unequal)
    ]
    return sorted(marked, key=_order)


ALONE = "budgets of one method each"
"""Words for the table of the rows that have nothing to compare with."""


class Part(NamedTuple):
    """Rows of a data set that are one table: those of one budget, or those of all budgets of a single method.

    Attributes:
        dataset: Name of the data set.
        budget: Budget of the rows as text; empty if the data set has one table only.
        rows: The rows.
    """

    dataset: str
    budget: str
    rows: Sequence[ComparisonRow]

    @property
    def title(self) -> str:
        """Name of the data set, with the budget if there is one."""
        return f"{self.dataset}, {self.budget}" if self.budget else self.dataset


def parts(rows: Comparison) -> Iterator[Part]:
    """Divide the rows of each data set into tables: one for each budget of several methods, one for all other rows.

    Args:
        rows: Rows of the comparison by data set, as :func:`comparison` makes them.
    """
    for dataset, every in rows.items():
        tables: list[Part] = []
        alone: list[ComparisonRow] = []
        for budget, found in groupby(every, key=lambda row: row.budget):
            own = list(found)
            if len(method_names(row.contender for row in own)) > 1:
                tables.append(Part(dataset, budget, own))
            else:
                alone += own
        rest = [Part(dataset, ALONE if tables else "", alone)] if alone else []
        yield from (*tables, *rest)


def _row(group: SeedGroup) -> ComparisonRow:
    values = tuple(SeedStatistics.of(group.column(column)) for column in COMPARED)
    return ComparisonRow(group.contender, group.seeds, group.trainings, group.confidence, values)


def _rival_means(group: SeedGroup, column: ComparedColumn) -> list[float]:
    """Means of a deterministic method that a probabilistic one has to beat."""
    names = {group.confidence}
    if column.of_confidence:
        names |= {name for name in set(group.rows["confidence"]) - {""} if kind_of(name) == "image"}
    means = [SeedStatistics.of(group.column(column, name)).mean for name in sorted(names)]
    return [mean for mean in means if mean == mean]


def _marks(
    column: ComparedColumn, values: list[SeedStatistics], probabilistic: list[bool], rivals: list[float]
) -> list[Mark]:
    """Marks of one column."""
    # A mean over the seeds that happen to have a value is shown, but it does not compete.
    means = [column.sign * value.mean for value in values if value.complete]
    # A single row is not the best of anything.
    top = max(means) if means and len(values) > 1 else None
    bar = max((column.sign * rival for rival in rivals), default=None)
    return [
        Mark(
            best=value.complete and column.sign * value.mean == top,
            beats_deterministic=value.complete and own and bar is not None and column.sign * value.mean > bar,
        )
        for value, own in zip(values, probabilistic)
    ]


def _order(row: ComparisonRow) -> tuple[float, str]:
    mean = row.values[_MAP_AT_R].mean
    return -mean if mean == mean else 0.0, row.label


def comparison_frame(rows: Comparison) -> pd.DataFrame:
    """Table of the comparison as numbers, one row per data set and contender (method at one setting).

    Args:
        rows: Rows of the comparison by data set, as :func:`comparison` makes them.

    Returns:
        Columns of a :class:`~bench.report.contender.Contender`, ``trainings`` (spent on tuning), ``seeds`` (their
        number), ``confidence`` (name of the default one), ``rank`` by MAP@R (such as ``1-3``), ``rank_low``,
        ``rank_high``, ``ties`` (letters of its tie groups), ``not_ranked`` (reason for having no rank) and
        ``unequal_budget`` (:func:`~bench.report.budgets.unequal_budgets`), then three per compared metric, such as
        ``test_map_at_r_mean``, ``test_map_at_r_sd`` and ``test_map_at_r_n`` (number of seeds that have a value).
    """
    table = pd.DataFrame([_numbers(row) for group in rows.values() for row in group])
    return table if table.empty else table.astype({"rank_low": "Int64", "rank_high": "Int64"})


def _numbers(row: ComparisonRow) -> dict[str, object]:
    contender = row.contender._asdict()
    line: dict[str, object] = {
        "dataset": contender.pop("dataset"),
        **contender,
        "trainings": row.trainings,
        "seeds": row.seeds,
        "confidence": row.confidence,
        "rank": row.rank.text,
        "rank_low": row.rank.interval.low if row.rank.interval else None,
        "rank_high": row.rank.interval.high if row.rank.interval else None,
        "ties": row.rank.ties,
        "not_ranked": row.rank.reason,
        "unequal_budget": row.unequal,
    }
    for column, value in zip(COMPARED, row.values):
        name = "_".join(filter(None, [column.split, column.metric, column.variant]))
        line |= {f"{name}_mean": value.mean, f"{name}_sd": value.sd, f"{name}_n": value.defined}
    return line
