"""Tables over data sets: mean ranks with Nemenyi's critical difference, and performance profiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..protocols.statistics import (
    PROFILED,
    RANKED,
    critical_difference,
    friedman,
    mean_ranks,
    performance_profile,
    tie_groups,
)
from .contender import COMMON
from .ranks import competition
from .seeds import COMPARED, ComparedColumn, SeedGroup, divided
from .table import GAP, Document, Table, cells_table, headings

SHARED = tuple(key for key in COMMON if key != "dataset")
"""Columns in which methods agree if they are compared over data sets."""

THRESHOLDS = np.round(np.linspace(0.0, 1.2, 121), 2)
"""Thresholds of performance profiles, as parts of the best mean on a data set."""


@dataclass(frozen=True)
class OverDatasets:
    """One metric over all data sets that a group of methods has in common.

    ``shared`` is their protocol, preset and ensemble. ``scores`` has, for each data set, the values at the seeds
    ``[S_d, K]``, with the sign that makes higher better. ``left_out`` are methods that lack a data set, and the reason.
    """

    shared: tuple[str, ...]
    column: ComparedColumn
    datasets: tuple[str, ...]
    methods: tuple[tuple[str, str], ...]
    scores: tuple[np.ndarray, ...]
    left_out: Mapping[tuple[str, str], str]

    @property
    def means(self) -> np.ndarray:
        """Mean over seeds, ``[D, K]``."""
        return np.array([values.mean(0) for values in self.scores])

    @property
    def ranks(self) -> np.ndarray:
        """Mean ranks over data sets, ``[K]``."""
        return mean_ranks(self.means)

    @property
    def p(self) -> float:
        """P-value of the Friedman test; nan with fewer than five data sets or three methods."""
        enough = len(self.datasets) >= RANKED and len(self.methods) > 2
        return friedman(self.means) if enough else float("nan")

    @property
    def critical_difference(self) -> float:
        """Critical difference of mean ranks; nan with fewer than five data sets."""
        return critical_difference(len(self.methods), len(self.datasets)) if len(self.datasets) >= RANKED else np.nan

    @property
    def ties(self) -> list[str]:
        """Letters of the methods; two without a common one differ by the critical difference. Dashes if there is none.

        Nothing differs unless the Friedman test says that something does.
        """
        if np.isnan(self.critical_difference):
            return ["-"] * len(self.methods)
        ranks = self.ranks
        different = np.abs(ranks[:, None] - ranks) >= self.critical_difference
        return tie_groups(different & (self.p <= 0.05), np.argsort(ranks, kind="stable"))


def over_datasets(groups: Iterable[SeedGroup]) -> list[OverDatasets]:
    """Values of all methods on the data sets that they have in common, for every column of the comparison.

    A method counts if it has, on every data set, a value at the seeds that most methods have there. The others are left
    out by name. A data set on which fewer than two methods have values is not among them; two data sets or more must
    be.
    """
    found = []
    for shared, own in divided(groups, SHARED).items():
        by_name = {name: part for (name,), part in divided(own, ["dataset"]).items()}
        every = (_over(shared, column, by_name) for column in COMPARED)
        found += [one for one in every if one is not None]
    return found


def _over(
    shared: tuple[str, ...], column: ComparedColumn, by_dataset: Mapping[str, list[SeedGroup]]
) -> OverDatasets | None:
    values: dict[str, dict[tuple[str, str], np.ndarray]] = {}
    reasons: dict[tuple[str, str], list[str]] = {}
    for dataset, groups in by_dataset.items():
        names = [_name(group) for group in groups]
        field = competition(groups, column)
        if len(field.able) < 2:
            continue
        values[dataset] = {names[place]: field.values[:, index] for index, place in enumerate(field.able)}
        for name, reason in zip(names, field.reasons):
            why = "several settings" if names.count(name) > 1 else reason
            if why and f"{dataset}: {why}" not in reasons.setdefault(name, []):
                reasons[name].append(f"{dataset}: {why}")
    every = dict.fromkeys(name for groups in by_dataset.values() for name in map(_name, groups))
    for name in every:
        for dataset in values:
            if name not in map(_name, by_dataset[dataset]):
                reasons.setdefault(name, []).append(f"not on {dataset}")
    methods = tuple(name for name in every if not reasons.get(name))
    if len(values) < 2 or len(methods) < 2:
        return None
    scores = tuple(np.stack([of[name] for name in methods], 1) for of in values.values())
    left_out = {name: "; ".join(reasons[name]) for name in every if reasons.get(name)}
    return OverDatasets(shared, column, tuple(values), methods, scores, left_out)


def _name(group: SeedGroup) -> tuple[str, str]:
    """A method and its tuning; its base, network and size may differ from data set to data set."""
    contender = group.contender
    return contender._replace(base="").label, contender.tuning


def mean_rank_frame(found: Sequence[OverDatasets]) -> pd.DataFrame:
    """Table of mean ranks over data sets, one row per metric and method; nan for a method that is left out."""
    lines = []
    for one in found:
        head = {**dict(zip(SHARED, one.shared)), "metric": one.column.metric, "split": one.column.split}
        tail = {
            "datasets": " ".join(one.datasets),
            "friedman_p": one.p,
            "critical_difference": one.critical_difference,
        }
        for (method, tuning), rank, ties in sorted(zip(one.methods, one.ranks, one.ties), key=lambda x: (x[1], x[0])):
            line = {**head, "method": method, "tuning": tuning, "mean_rank": rank, "ties": ties}
            lines.append({**line, **tail, "left_out": ""})
        for (method, tuning), reason in one.left_out.items():
            line = {**head, "method": method, "tuning": tuning, "mean_rank": float("nan"), "ties": "-"}
            lines.append({**line, **tail, "left_out": reason})
    return pd.DataFrame(lines)


def profile_frame(found: Sequence[OverDatasets]) -> pd.DataFrame:
    """Table of performance profiles by MAP@R: share of runs whose value is above a part of the best mean.

    Data sets count alike; with fewer than four it is empty.
    """
    lines = []
    for one in found:
        if one.column.metric != "map_at_r" or len(one.datasets) < PROFILED:
            continue
        relative = [values / values.mean(0).max() for values in one.scores]
        shares = performance_profile(relative, THRESHOLDS)
        for place, (method, tuning) in enumerate(one.methods):
            head = {**dict(zip(SHARED, one.shared)), "metric": one.column.metric, "method": method, "tuning": tuning}
            lines += [{**head, "threshold": at, "share": share} for at, share in zip(THRESHOLDS, shares[:, place])]
    return pd.DataFrame(lines)


ABOUT = (
    "Mean over data sets of the rank by the mean over seeds, 1 for the best. Methods with a common letter differ by"
    " less than Nemenyi's critical difference (95 %), which needs five data sets."
)


def rank_document(found: Sequence[OverDatasets]) -> Document:
    """Tables of mean ranks, one per protocol, preset and ensemble, with a column per metric."""
    tables: dict[tuple[str, ...], list[OverDatasets]] = {}
    for one in found:
        tables.setdefault(one.shared, []).append(one)
    shown = tuple(_table(shared, columns) for shared, columns in tables.items())
    return Document("mean_ranks", "Mean ranks over data sets", ABOUT, shown, mean_rank_frame(found), always=("method",))


def _table(shared: tuple[str, ...], columns: Sequence[OverDatasets]) -> Table:
    cells: dict[tuple[str, str], dict[str, str]] = {}
    order: dict[tuple[str, str], float] = {}
    notes = []
    for one in columns:
        for name, rank, ties in zip(one.methods, one.ranks, one.ties):
            cells.setdefault(name, {})[one.column.title] = f"{rank:.2f}" + (f" {ties}" if ties != GAP else "")
            if one.column.metric == "map_at_r":
                order[name] = float(rank)
        test = "" if one.p != one.p else f"; Friedman p {one.p:.3f}, critical difference {one.critical_difference:.2f}"
        out = ", ".join(f"{method} ({reason})" for (method, _), reason in one.left_out.items())
        left_out = f"; left out: {out}" if out else ""
        notes.append(f"{one.column.title}: {len(one.methods)} methods on {', '.join(one.datasets)}{test}{left_out}.")
    titles = [one.column.title for one in columns]
    rows = sorted(cells, key=lambda name: (order.get(name, np.inf), name))
    return cells_table(
        ", ".join(filter(None, shared)),
        headings("method", "tuning", *titles, labels=2),
        [(*name, *(cells[name].get(title, GAP) for title in titles)) for name in rows],
        notes=tuple(notes),
        caption=ABOUT,
    )
