"""Ranks of contenders by a metric: over the paired seeds of a data set; and over data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..protocols.statistics import ranks as statistics
from .contender import COMMON, METHOD, TUNING, Contender
from .seeds import ComparedColumn, SeedGroup, compared, defined_values, divided, seeds_text
from .table import GAP, Document, Table, cells_table, grouped, headings, named_by_reason


@dataclass(frozen=True)
class Rank:
    """Rank of a contender among those that it is compared with, over some seeds, or the reason for having none."""

    interval: statistics.RankInterval | None = None
    seeds: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """Interval such as ``1-3``, or a dash."""
        return self.interval.text if self.interval else GAP

    @property
    def ties(self) -> str:
        """Letters of the tie groups, or a dash."""
        return self.interval.ties if self.interval else GAP


def ranks(groups: Sequence[SeedGroup], column: ComparedColumn) -> list[Rank]:
    """Rank contenders by a column of the comparison table; each has a rank, or the reason for having none.

    Contenders that share :data:`COMMON` compete. They are ranked over the seeds that most of them have; one that lacks
    a value at any of these seeds has no rank, because differences are paired and a smaller number of seeds for one
    method is a smaller number for all.
    """
    found: dict[Contender, Rank] = {}
    for own in divided(groups, COMMON).values():
        found |= zip((group.contender for group in own), _ranks(own, column))
    return [found[group.contender] for group in groups]


@dataclass(frozen=True)
class Competition:
    """Contenders of a data set that have a value at the same seeds, those that most have, and why others have not.

    ``able`` are their places, ``values`` are ``[S, K]`` with the sign that makes higher better.
    """

    seeds: tuple[int, ...]
    able: tuple[int, ...]
    values: np.ndarray
    reasons: tuple[str, ...]


def competition(groups: Sequence[SeedGroup], column: ComparedColumn) -> Competition:
    """Find the seeds that most contenders have a value at, and who has a value at all of them."""
    values = [defined_values(group.column(column)) for group in groups]
    seeds = _most_common([frozenset(value) for value in values])
    able = tuple(index for index, value in enumerate(values) if seeds and seeds <= set(value))
    table = column.sign * np.array([[values[index][seed] for index in able] for seed in sorted(seeds)])
    return Competition(tuple(sorted(seeds)), able, table, tuple(_reason(group, column, seeds) for group in groups))


def _ranks(groups: list[SeedGroup], column: ComparedColumn) -> list[Rank]:
    if len(groups) < 2:
        return [Rank(reason="nothing to compare with")]
    found = competition(groups, column)
    seeds = seeds_text(found.seeds, groups[0].contender.unit) if found.seeds else ""
    if len(found.able) < 2:
        return [Rank(reason=reason or f"no other method with {seeds}") for reason in found.reasons]
    ranked = [Rank(reason=reason) for reason in found.reasons]
    for index, interval in zip(found.able, statistics.rank_intervals(found.values)):
        ranked[index] = Rank(interval, seeds)
    return ranked


def _most_common(seeds: Iterable[frozenset[int]]) -> frozenset[int]:
    """Set of two seeds or more that most contenders have; of equally common ones, that which ranks most of them."""
    counts = Counter(own for own in seeds if len(own) > 1)

    def worth(own: frozenset[int]) -> tuple[int, int, int, list[int]]:
        return counts[own], sum(counts[other] for other in counts if own <= other), len(own), sorted(own)

    return max(counts, key=worth, default=frozenset())


def _reason(group: SeedGroup, column: ComparedColumn, seeds: frozenset[int]) -> str:
    count = len(defined_values(group.column(column)))
    if count < 2:
        return f"one {group.contender.unit}" if count else "no value"
    return group.gaps(column, seeds)


def unranked_text(reasons: Sequence[tuple[str, str]]) -> str:
    """Contenders and why they have no rank, if they have none, as text; the reason alone if it is that of all.

    Example:
        >>> unranked_text([("a", "one seed"), ("b", "one seed")]), unranked_text([("a", "one seed"), ("b", "")])
        ('one seed', 'a (one seed)')
    """
    different = {reason for _, reason in reasons}
    return different.pop() if len(different) == 1 else named_by_reason(reasons)


SHARED = tuple(key for key in COMMON if key != "dataset")
"""Columns in which methods agree if they are compared over data sets."""

Method = tuple[str, str]
"""A method and its tuning; its base, network and size may differ from data set to data set."""


@dataclass(frozen=True)
class OverDatasets:
    """One metric over all data sets that a group of methods has in common.

    ``shared`` is their protocol, preset and ensemble. ``means`` are over seeds, ``[D, K]``, with the sign that makes
    higher better. ``left_out`` are methods that lack a data set, and the reason.
    """

    shared: tuple[str, ...]
    column: ComparedColumn
    datasets: tuple[str, ...]
    methods: tuple[Method, ...]
    means: np.ndarray
    left_out: Mapping[Method, str]

    @property
    def ranks(self) -> np.ndarray:
        """Mean ranks over data sets, ``[K]``."""
        return statistics.mean_ranks(self.means)

    @property
    def p(self) -> float:
        """P-value of the Friedman test; nan with fewer than five data sets or three methods."""
        enough = len(self.datasets) >= statistics.RANKED and len(self.methods) > 2
        return statistics.friedman(self.means) if enough else float("nan")

    @property
    def critical_difference(self) -> float:
        """Critical difference of mean ranks; nan with fewer than five data sets."""
        few = len(self.datasets) < statistics.RANKED
        return np.nan if few else statistics.critical_difference(len(self.methods), len(self.datasets))

    @property
    def ties(self) -> list[str]:
        """Letters of the methods; two without a common one differ by the critical difference. Dashes if there is none.

        Nothing differs unless the Friedman test says that something does.
        """
        if np.isnan(self.critical_difference):
            return [GAP] * len(self.methods)
        ranks = self.ranks
        different = np.abs(ranks[:, None] - ranks) >= self.critical_difference
        return statistics.tie_groups(different & (self.p <= 0.05), np.argsort(ranks, kind="stable"))

    @property
    def places(self) -> list[tuple[Method, float, str]]:
        """Methods with mean rank and letters, the best first."""
        return sorted(zip(self.methods, self.ranks.tolist(), self.ties), key=lambda place: (place[1], place[0]))


def over_datasets(groups: Iterable[SeedGroup]) -> list[OverDatasets]:
    """Values of all methods on the data sets that they have in common, for every column of the comparison.

    A method counts if it has, on every data set, a value at the seeds that most methods have there. The others are left
    out by name. A data set on which fewer than two methods have values is not among them; two data sets or more must
    be.
    """
    found = []
    for shared, own in divided(groups, SHARED).items():
        by_dataset = {name: part for (name,), part in divided(own, ["dataset"]).items()}
        every = (_over(shared, column, by_dataset) for column in compared())
        found += [one for one in every if one is not None]
    return found


def _over(
    shared: tuple[str, ...], column: ComparedColumn, by_dataset: Mapping[str, list[SeedGroup]]
) -> OverDatasets | None:
    names = {
        dataset: [(group.contender._replace(base="").label, group.contender.tuning) for group in groups]
        for dataset, groups in by_dataset.items()
    }
    fields = {dataset: competition(groups, column) for dataset, groups in by_dataset.items()}
    fields = {dataset: field for dataset, field in fields.items() if len(field.able) > 1}
    reasons: dict[Method, list[str]] = {name: [] for own in names.values() for name in own}
    for dataset, field in fields.items():
        for name, reason in zip(names[dataset], field.reasons):
            why = "several settings" if names[dataset].count(name) > 1 else reason
            reasons[name] += [f"{dataset}: {why}"] if why else []
    for name, own in reasons.items():
        own += [f"not on {dataset}" for dataset in fields if name not in names[dataset]]
    methods = tuple(name for name, own in reasons.items() if not own)
    if len(fields) < 2 or len(methods) < 2:
        return None
    means = []
    for dataset, field in fields.items():
        of = dict(zip((names[dataset][place] for place in field.able), field.values.mean(0)))
        means.append([of[name] for name in methods])
    left_out = {name: "; ".join(dict.fromkeys(own)) for name, own in reasons.items() if own}
    return OverDatasets(shared, column, tuple(fields), methods, np.array(means), left_out)


def mean_rank_frame(found: Sequence[OverDatasets]) -> pd.DataFrame:
    """Table of mean ranks over data sets, one row per metric and method; nan for a method that is left out."""
    return pd.DataFrame(
        {
            **dict(zip(SHARED, one.shared)),
            "metric": one.column.metric,
            "split": one.column.split,
            "method": method,
            "tuning": tuning,
            "mean_rank": rank,
            "ties": ties,
            "datasets": " ".join(one.datasets),
            "friedman_p": one.p,
            "critical_difference": one.critical_difference,
            "left_out": one.left_out.get((method, tuning), ""),
        }
        for one in found
        for (method, tuning), rank, ties in [*one.places, *((name, np.nan, GAP) for name in one.left_out)]
    )


ABOUT = (
    "Mean over data sets of the rank by the mean over seeds, 1 for the best. Methods with a common letter differ by"
    " less than Nemenyi's critical difference (95 %), which needs five data sets."
)


def rank_document(found: Sequence[OverDatasets]) -> Document:
    """Tables of mean ranks, one per protocol, preset and ensemble, with a column per metric."""
    tables = tuple(_table(*part) for part in grouped(found, lambda one: one.shared).items())
    return Document(
        "mean_ranks", "Mean ranks over data sets", ABOUT, tables, mean_rank_frame(found), always=("method",)
    )


def _table(shared: tuple[str, ...], columns: Sequence[OverDatasets]) -> Table:
    cells: dict[Method, dict[str, str]] = {}
    order: dict[Method, float] = {}
    notes = []
    for one in columns:
        for name, rank, ties in one.places:
            cells.setdefault(name, {})[one.column.title] = f"{rank:.2f}" + (f" {ties}" if ties != GAP else "")
            if one.column.metric == "map_at_r":
                order[name] = rank
        test = "" if one.p != one.p else f"; Friedman p {one.p:.3f}, critical difference {one.critical_difference:.2f}"
        out = ", ".join(f"{method} ({reason})" for (method, _), reason in one.left_out.items())
        left_out = f"; left out: {out}" if out else ""
        notes.append(f"{one.column.title}: {len(one.methods)} methods on {', '.join(one.datasets)}{test}{left_out}.")
    titles = [one.column.title for one in columns]
    rows = sorted(cells, key=lambda name: (order.get(name, np.inf), name))
    return cells_table(
        ", ".join(filter(None, shared)),
        headings(METHOD.title, TUNING.title, *titles, labels=2),
        [(*name, *(cells[name].get(title, GAP) for title in titles)) for name in rows],
        notes=tuple(notes),
        caption=ABOUT,
    )
