"""Decisions against the best method of a table: difference, P(better), verdict, and the seeds that are still needed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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


@dataclass(frozen=True)
class Decision:
    """Decision about a contender (method at one setting) against the best one at its budget, by one metric.

    Attributes:
        contender: The contender.
        best: The one with the best mean of those that have a value at the seeds that most have.
        column: Column of the comparison table.
        mean: Contender minus best, mean over the seeds of both; nan without a common seed.
        interval: 95 % t-interval of this difference; nan with one seed.
        better: Share of seeds at which the contender is better, with its exact 95 % interval.
        seeds: Number of seeds of both.
        left_out: Seeds that only one of them has, as text.
        p_holm: P-value of a difference, adjusted over all pairs of the table; nan if it cannot be computed.
        p_equivalence_holm: P-value of equivalence, likewise.
        verdict: The contender is ``better``, ``worse``, ``equivalent`` or ``undecided``, or the reason for no verdict.
        more_seeds: Seeds still needed if it is undecided, at least 1; None otherwise.
        budget: Budget of both as text; empty if the data set has one only.
    """

    contender: Contender
    best: Contender
    column: ComparedColumn
    mean: float
    interval: tuple[float, float]
    better: tuple[float, float, float]
    seeds: int
    left_out: str
    p_holm: float
    p_equivalence_holm: float
    verdict: str
    more_seeds: int | None
    budget: str = ""


def decisions(groups: Iterable[SeedGroup], pairs: pd.DataFrame) -> list[Decision]:
    """Decide about every contender against the best at its budget, by every column of the comparison.

    Args:
        groups: Values over seeds of all contenders.
        pairs: Differences of all pairs (:func:`~bench.report.pairing.paired_methods`).

    Returns:
        Decisions by protocol, preset, data set, ensemble, column and budget (the leading one first); of a column and
        budget, the smallest loss first.
    """
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
                found += [replace(each, budget=budget) for each in rivals]
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
        line = forward or backward
        if contender != best and line is not None:
            found.append(_decision(contender, best, column, line, 1 if forward else -1, family))
    return sorted(found, key=lambda each: -np.inf if each.mean != each.mean else column.sign * each.mean, reverse=True)


_OPPOSITE = {"better": "worse", "worse": "better"}


def _decision(
    contender: Contender, best: Contender, column: ComparedColumn, line: Mapping[Hashable, Any], sign: int, family: int
) -> Decision:
    """Decision from a row about a pair; ``sign`` is -1 if its difference is best minus contender."""
    interval = sorted((sign * line["ci95_low"], sign * line["ci95_high"]))
    better = [line[name] for name in ("superiority", "superiority_ci95_low", "superiority_ci95_high")]
    if sign < 0:
        better = [1 - better[0], 1 - better[2], 1 - better[1]]
        verdict = _OPPOSITE.get(line["verdict"], line["verdict"])
    else:
        verdict = line["verdict"]
    more = None
    effect = max(abs(line["difference_mean"]), line["region"])
    if verdict == "undecided" and effect > 0:
        needed = seeds_needed(line["difference_sd"], effect, alpha=0.05 / family)
        more = max(needed - line["seeds"], 1)
    return Decision(
        contender=contender,
        best=best,
        column=column,
        mean=sign * line["difference_mean"],
        interval=(interval[0], interval[1]),
        better=(better[0], better[1], better[2]),
        seeds=line["seeds"],
        left_out=line["left_out"],
        p_holm=line["p_holm"],
        p_equivalence_holm=line["p_equivalence_holm"],
        verdict=verdict,
        more_seeds=more,
    )


def _side_of_best(each: Decision) -> dict[str, object]:
    return {f"best{ending}": text for ending, text in zip(SIDE, side(each.best))}


def _difference(each: Decision) -> Mapping[str, object]:
    return {"difference_mean": each.mean, "ci95_low": each.interval[0], "ci95_high": each.interval[1]}


def _better(each: Decision) -> Mapping[str, object]:
    names = ("superiority", "superiority_ci95_low", "superiority_ci95_high")
    return dict(zip(names, each.better))


def _difference_text(each: Decision) -> str:
    return interval(*(each.column.text(value, "+") for value in (each.mean, *each.interval)))


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else number(value, 3)


COLUMNS: tuple[Column[Decision], ...] = (
    CONTENDER,
    Column("", fields=lambda each: {"metric": each.column.metric, "split": each.column.split}),
    Column("", fields=_side_of_best),
    Column("difference", _difference_text, _difference),
    Column("P(better)", lambda each: interval(*map(number, each.better)), _better),
    Column("", fields=lambda each: {"region": each.column.declared.equivalence}),
    Column("seeds", fields=held("seeds")),
    Column("", fields=held("left_out")),
    Column("verdict", lambda each: each.verdict, number=False),
    Column("p", lambda each: _p(each.p_holm), held("p_holm")),
    Column("p equivalent", lambda each: _p(each.p_equivalence_holm), held("p_equivalence_holm")),
    Column("", fields=held("verdict")),  # in CSV files after the p-values it follows from
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
    notes = [f"{names[row.contender]}: left out {row.left_out}." for row in rows if row.left_out]
    region = column.text(column.declared.equivalence) if column.declared.equivalence else "none"
    method: Column[Decision] = label("method", lambda row: names[row.contender])
    return table_of(
        (method, *COLUMNS),
        rows,
        f"{place.dataset} ({common}), {column.title}: each method minus {names[first.best]}",
        notes=(f"Region of equivalence: {region}.", *notes),
        caption=ABOUT,
    )
