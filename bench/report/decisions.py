"""Decisions against the best method of a table: difference, P(better), verdict, and the seeds that are still needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..protocols.statistics import seeds_needed
from .budgets import ranked_together
from .contender import COMMON, CONTENDER, Contender, distinct_labels
from .pairing import SIDE, SIDES, side
from .ranks import competition
from .seeds import COMPARED, ComparedColumn, SeedGroup, divided
from .table import Column, Document, Table, frame_of, held, interval, label, number, table_of

ABOUT = (
    "Each method minus the one with the best mean: mean over paired seeds [95 % t-interval]; P(better): share of seeds"
    " at which it is better than that one [exact 95 % interval]. Intervals are those of a single pair, not adjusted for"
    " the choice of the best one; the verdict is: its p-values are adjusted by Holm's method over all pairs of the"
    " table, not only those shown. Equivalent: inside the region of practical equivalence. More seeds: paired seeds"
    " still needed to tell a true difference of the observed size, at least of the region's, at the level of the whole"
    " table in 80 % of cases."
)


class Decision(NamedTuple):
    """Decision about a contender against the best one at its budget, by one metric.

    The best is that of the highest mean of those that have a value at the seeds that most have. ``mean`` is contender
    minus best with its 95 % t-interval over the seeds of both; ``better`` is the share of seeds at which the contender
    is better, with its exact interval. P-values are adjusted over all pairs of the table. What does not exist is nan.
    """

    contender: Contender
    best: Contender
    column: ComparedColumn
    line: Mapping[Hashable, Any]
    more_seeds: int | None
    budget: str = ""


def decisions(groups: Iterable[SeedGroup], pairs: pd.DataFrame) -> list[Decision]:
    """Decide about every contender against the best at its budget, by every column; the smallest loss first."""
    found: list[Decision] = []
    if pairs.empty:
        return found
    by_table = {tuple(map(str, key)): rows for key, rows in pairs.groupby([*COMMON, "metric", "split"], sort=False)}
    for common, own in divided(groups, COMMON).items():
        held = {group.contender: group for group in own}
        budgets = ranked_together(held)
        for column in COMPARED:
            of_column = by_table.get((*common, column.metric, column.split))
            if of_column is None:
                continue
            for budget, contenders in budgets:
                rivals = _against_best([held[contender] for contender in contenders], column, of_column)
                found += [each._replace(budget=budget) for each in rivals]
    return found


def _against_best(groups: Sequence[SeedGroup], column: ComparedColumn, pairs: pd.DataFrame) -> list[Decision]:
    field = competition(groups, column)
    if not field.able:
        return []
    best = groups[field.able[int(np.argmax(field.values.mean(0)))]].contender
    lines = {tuple(line[name] for name in SIDES): line for line in pairs.to_dict("records")}
    family = int(pairs["p"].notna().sum())
    found = []
    for contender in (group.contender for group in groups):
        forward, backward = lines.get((*side(best), *side(contender))), lines.get((*side(contender), *side(best)))
        line = forward or (backward and _turned(backward))
        if contender != best and line is not None:
            found.append(Decision(contender, best, column, line, _more_seeds(line, family)))
    return sorted(found, key=lambda each: _loss(column, each.line["difference_mean"]), reverse=True)


def _loss(column: ComparedColumn, mean: float) -> float:
    return -np.inf if mean != mean else column.sign * mean


def _more_seeds(line: Mapping[Hashable, Any], family: int) -> int | None:
    effect = max(abs(line["difference_mean"]), line["region"])
    if line["verdict"] != "undecided" or not effect > 0:
        return None
    needed = seeds_needed(line["difference_sd"], effect, alpha=0.05 / family)
    return max(needed - int(line["seeds"]), 1)


_OPPOSITE = {"better": "worse", "worse": "better"}


def _turned(line: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """A row about a pair with its sides exchanged."""
    share = "superiority"
    return {
        **line,
        "difference_mean": -line["difference_mean"],
        "ci95_low": -line["ci95_high"],
        "ci95_high": -line["ci95_low"],
        share: 1 - line[share],
        f"{share}_ci95_low": 1 - line[f"{share}_ci95_high"],
        f"{share}_ci95_high": 1 - line[f"{share}_ci95_low"],
        "verdict": _OPPOSITE.get(line["verdict"], line["verdict"]),
    }


def _of_line(*names: str) -> Callable[[Decision], Mapping[str, object]]:
    return lambda each: {name: each.line[name] for name in names}


def _side_of_best(each: Decision) -> dict[str, object]:
    return {f"best{ending}": text for ending, text in zip(SIDE, side(each.best))}


_DIFFERENCE = ("difference_mean", "ci95_low", "ci95_high")
_BETTER = ("superiority", "superiority_ci95_low", "superiority_ci95_high")


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else number(value, 3)


COLUMNS: tuple[Column[Decision], ...] = (
    CONTENDER,
    Column("", fields=_of_line("metric", "split")),
    Column("", fields=_side_of_best),
    Column(
        "difference",
        lambda each: interval(*(each.column.text(each.line[name], "+") for name in _DIFFERENCE)),
        _of_line(*_DIFFERENCE),
    ),
    Column("P(better)", lambda each: interval(*(number(each.line[name]) for name in _BETTER)), _of_line(*_BETTER)),
    Column("", fields=_of_line("region")),
    Column("seeds", fields=_of_line("seeds")),
    Column("", fields=_of_line("left_out")),
    Column("verdict", lambda each: each.line["verdict"], number=False),
    Column("p", lambda each: _p(each.line["p_holm"]), _of_line("p_holm")),
    Column("p equivalent", lambda each: _p(each.line["p_equivalence_holm"]), _of_line("p_equivalence_holm")),
    Column("", fields=_of_line("verdict")),  # in CSV files after the p-values it follows from
    Column("more seeds", fields=held("more_seeds")),
)
"""Columns of the tables of decisions, without the names of the contenders, which depend on the table."""


def decision_document(found: Sequence[Decision]) -> Document:
    """Tables of decisions, one per data set (with protocol, preset and ensemble), column and budget."""
    numbers = frame_of(COLUMNS, found)
    if not numbers.empty:
        numbers = numbers.astype({"more_seeds": "Int64"})
    tables: dict[tuple[object, ...], list[Decision]] = {}
    for each in found:
        place = tuple(getattr(each.contender, key) for key in COMMON)
        tables.setdefault((*place, each.column, each.budget), []).append(each)
    shown = tuple(map(_table, tables.values()))
    return Document("decisions", "Decisions", f"{ABOUT} Shares in percent.", shown, numbers)


def _table(rows: Sequence[Decision]) -> Table:
    first = rows[0]
    names = distinct_labels([first.best, *(row.contender for row in rows)])
    column, place = first.column, first.contender
    common = ", ".join(filter(None, [place.protocol, place.preset, place.ensemble, first.budget]))
    notes = [f"{names[row.contender]}: left out {row.line['left_out']}." for row in rows if row.line["left_out"]]
    region = column.text(column.declared.equivalence) if column.declared.equivalence else "none"
    method: Column[Decision] = label("method", lambda row: names[row.contender])
    return table_of(
        (method, *COLUMNS),
        rows,
        f"{place.dataset} ({common}), {column.title}: each method minus {names[first.best]}",
        notes=(f"Region of equivalence: {region}.", *notes),
        caption=ABOUT,
    )
