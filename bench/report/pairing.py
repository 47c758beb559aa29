"""Paired differences between contenders, seed by seed: of every two, from the best one, and of the forms of a method.

Seeds pair up because initialisation and order of the data depend on (data set, replicate), not on the method.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..protocols.metrics import declared_metric
from ..protocols.statistics import (
    Summary,
    Superiority,
    holm,
    p_different,
    p_equivalent,
    paired_difference,
    probability_of_superiority,
    seeds_needed,
    verdict,
)
from ..store.specs import split_pinned
from .contender import COMMON, CONTENDER, TUNING, Contender, distinct_labels, ranked_together
from .ranks import competition
from .seeds import (
    NO_DIFFERENCE,
    ComparedColumn,
    SeedGroup,
    SeedStatistics,
    compared,
    defined_values,
    difference_fields,
    divided,
)
from .table import GAP, Cell, Column, Document, Table, frame_of, grouped, held, interval, label, number, table_of

SIDE = ("", "_tuning", "_network", "_pinned")
"""Endings of the columns that name a side of a difference: the method itself, and what tells its settings apart."""

SIDES = tuple(f"{side}{ending}" for side in ("first", "other") for ending in SIDE)
"""Columns that name the two sides of a difference."""

Line = Mapping[Hashable, Any]
"""Row of a table of differences."""


def differences(
    minuend: SeedGroup, subtrahend: SeedGroup, columns: Sequence[ComparedColumn] | None = None
) -> Iterator[dict[str, object]]:
    """Differences ``minuend - subtrahend`` over paired seeds, each side with its own scorer and confidence.

    Without a common seed, or with one only, what cannot be computed is nan. ``superiority`` is the share of paired
    seeds at which the one is better than the other, ties counted half, with its exact 95 % interval; ``region`` is the
    largest difference without practical meaning, or 0; p-values are before Holm's adjustment. ``seeds_needed`` are
    paired seeds, in all, at which a true difference of the observed size, but at least of the region's, would be found
    in 80 % of cases.
    """
    for column in compared() if columns is None else columns:
        left, right = (defined_values(group.column(column)) for group in (minuend, subtrahend))
        if left or right:
            sides = [
                (group.contender.label, group.gaps(column, set(left) | set(right))) for group in (minuend, subtrahend)
            ]
            left_out = "; ".join(f"{name}: {gap}" for name, gap in sides if gap)
            yield _difference(column, minuend.variant(column), left, right, left_out)


def _difference(
    column: ComparedColumn, variant: str, left: dict[int, float], right: dict[int, float], left_out: str
) -> dict[str, object]:
    nan = float("nan")
    seeds = sorted(set(left) & set(right))
    values = np.array([left[seed] - right[seed] for seed in seeds])
    region, several = column.declared.equivalence, len(seeds) > 1
    difference = paired_difference(left, right) if seeds else NO_DIFFERENCE
    better = probability_of_superiority(column.sign * values) if seeds else Superiority(nan, nan, nan, 0)
    return {
        "metric": column.metric,
        "split": column.split,
        "variant": variant,
        **difference_fields(difference),
        "seeds": len(seeds),
        "left_out": left_out,
        "superiority": better.probability,
        "superiority_ci95_low": better.ci_low,
        "superiority_ci95_high": better.ci_high,
        "region": region,
        "p": float(p_different(values)) if several else nan,
        "p_equivalence": float(p_equivalent(values, region)) if several and region else nan,
        "seeds_needed": pairs_needed(difference, region) if several else nan,
    }


def pairs_needed(difference: Summary, region: float) -> float:
    """Paired seeds, in all, at which a difference of the observed size would be found in 80 % of cases.

    A difference smaller than the region counts as the region; without either there is no number (nan).
    """
    effect = max(abs(difference.mean), region)
    return seeds_needed(difference.sd, effect) if effect else float("nan")


def judged(lines: list[dict[str, object]]) -> pd.DataFrame:
    """Table of differences with p-values adjusted over the pairs of a data set and metric, and their verdicts."""
    table = pd.DataFrame(lines)
    if table.empty:
        return table
    family = table.groupby([*COMMON, "metric", "split"], sort=False)
    for name in ("p", "p_equivalence"):
        table[f"{name}_holm"] = family[name].transform(lambda p: holm(p.to_numpy()))
    sign = {metric: declared_metric(metric).sign for metric in table["metric"].unique()}
    keys = ("metric", "seeds", "difference_mean", "p_holm", "p_equivalence_holm")
    table["verdict"] = [
        verdict(sign[metric] * mean, p, equivalence) if seeds > 1 else "one seed" if seeds else "no pairs"
        for metric, seeds, mean, p, equivalence in zip(*(table[key] for key in keys))
    ]
    # Whole numbers, and an empty cell where there is none.
    table["seeds_needed"] = pd.Series([None if n != n else int(n) for n in table["seeds_needed"]], dtype=object)
    return table


def paired_methods(groups: Iterable[SeedGroup], names: Sequence[str] = ()) -> pd.DataFrame:
    """Table of paired differences over seeds between two contenders that share ``COMMON``, other minus first.

    ``names[0]`` is the first of every pair, any later contender is the other. Without names, every two contenders are
    compared, and the first is the one that comes first in sorted order. P-values are adjusted over the pairs of the
    table with the same data set, metric and split; the verdict is on the other, or the reason for having none.
    """
    lines: list[dict[str, object]] = []
    for own in divided(groups, COMMON).values():
        for first, other in _pairs(own, names):
            line: dict[str, object] = dict(zip(COMMON, first.contender.common))
            line |= dict(zip(SIDES, (*side(first.contender), *side(other.contender))))
            lines += [{**line, **difference} for difference in differences(other, first)]
    return judged(lines)


def side(contender: Contender) -> tuple[str, ...]:
    """Texts of a contender in the columns of a side: name, tuning, network, fixed settings."""
    return contender.label, contender.tuning, contender.network, contender.pinned.text


def _pairs(groups: list[SeedGroup], names: Sequence[str]) -> Iterator[tuple[SeedGroup, SeedGroup]]:
    if not names:
        yield from combinations(groups, 2)
        return
    # A name that is given twice must not enlarge the family that p-values are adjusted over.
    chosen = [group for name in dict.fromkeys(names) for group in groups if group.contender.method == name]
    for first, other in combinations(chosen, 2):
        if first.contender.method == names[0]:
            yield first, other


def paired_with_base(groups: Sequence[SeedGroup]) -> pd.DataFrame:
    """Table of paired differences over seeds: two-stage method minus the base models that its heads were trained on."""
    by_contender = {group.contender: group for group in groups}
    lines: list[dict[str, object]] = []
    for head in groups:
        # The very networks that the heads were trained on: budgets and pinned values of head and base may differ.
        trained_on = set(head.rows["base_train"].unique()) if head.contender.base else set()
        bases = [group for group in groups if trained_on & group.trained]
        parts = [group.rows[group.rows["train"].isin(trained_on)] for group in bases]
        if not parts:
            continue
        # Its networks at seeds that have no head, so that these are named.
        alike = by_contender[Contender.of(parts[0])].rows
        base = pd.concat([*parts, alike[~alike["seed"].isin(head.rows["seed"])]])
        lines += [{**head.contender._asdict(), **line} for line in differences(head, SeedGroup.of(base))]
    return judged(lines)


DECISIONS_ABOUT = (
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
    line: Line
    more_seeds: int | None
    budget: str


def decisions(groups: Iterable[SeedGroup], pairs: pd.DataFrame) -> list[Decision]:
    """Decide about every contender against the best at its budget, by every column; the smallest loss first."""
    found: list[Decision] = []
    if pairs.empty:
        return found
    by_table = {tuple(map(str, key)): rows for key, rows in pairs.groupby([*COMMON, "metric", "split"], sort=False)}
    for common, own in divided(groups, COMMON).items():
        by_contender = {group.contender: group for group in own}
        budgets = ranked_together(by_contender)
        for column in compared():
            of_column = by_table.get((*common, column.metric, column.split))
            if of_column is not None:
                for budget, contenders in budgets:
                    rivals = [by_contender[contender] for contender in contenders]
                    found += _against_best(rivals, column, of_column, budget)
    return found


def _against_best(
    groups: Sequence[SeedGroup], column: ComparedColumn, pairs: pd.DataFrame, budget: str
) -> list[Decision]:
    field = competition(groups, column)
    if not field.able:
        return []
    best = groups[field.able[int(np.argmax(field.values.mean(0)))]].contender
    lines: dict[tuple[str, ...], Line] = {
        tuple(line[name] for name in SIDES): line for line in pairs.to_dict("records")
    }
    family = int(pairs["p"].notna().sum())
    found = []
    for contender in (group.contender for group in groups):
        forward, backward = lines.get((*side(best), *side(contender))), lines.get((*side(contender), *side(best)))
        line = forward or (backward and _turned(backward))
        if contender != best and line is not None:
            found.append(Decision(contender, best, column, line, _more_seeds(line, family), budget))

    def gain(each: Decision) -> float:
        mean: float = each.line["difference_mean"]
        return -np.inf if mean != mean else column.sign * mean

    return sorted(found, key=gain, reverse=True)


def _more_seeds(line: Line, family: int) -> int | None:
    effect = max(abs(line["difference_mean"]), line["region"])
    if line["verdict"] != "undecided" or not effect > 0:
        return None
    needed = seeds_needed(line["difference_sd"], effect, alpha=0.05 / family)
    return max(needed - int(line["seeds"]), 1)


_OPPOSITE = {"better": "worse", "worse": "better"}


def _turned(line: Line) -> dict[Hashable, Any]:
    """A row about a pair with its sides exchanged."""
    return {
        **line,
        "difference_mean": -line["difference_mean"],
        "ci95_low": -line["ci95_high"],
        "ci95_high": -line["ci95_low"],
        "superiority": 1 - line["superiority"],
        "superiority_ci95_low": 1 - line["superiority_ci95_high"],
        "superiority_ci95_high": 1 - line["superiority_ci95_low"],
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


DECISION_COLUMNS: tuple[Column[Decision], ...] = (
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
    parts = grouped(found, lambda each: (each.contender.common, each.column, each.budget))
    numbers = frame_of(DECISION_COLUMNS, found, more_seeds="Int64")
    about = f"{DECISIONS_ABOUT} Shares in percent."
    return Document("decisions", "Decisions", about, tuple(map(_decision_table, parts.values())), numbers)


def _decision_table(rows: Sequence[Decision]) -> Table:
    first = rows[0]
    names = distinct_labels([first.best, *(row.contender for row in rows)])
    column, place = first.column, first.contender
    common = ", ".join(filter(None, [place.protocol, place.preset, place.ensemble, first.budget]))
    notes = [f"{names[row.contender]}: left out {row.line['left_out']}." for row in rows if row.line["left_out"]]
    region = column.text(column.declared.equivalence) if column.declared.equivalence else "none"
    method: Column[Decision] = label("method", lambda row: names[row.contender])
    return table_of(
        (method, *DECISION_COLUMNS),
        rows,
        f"{place.dataset} ({common}), {column.title}: each method minus {names[first.best]}",
        notes=(f"Region of equivalence: {region}.", *notes),
        caption=DECISIONS_ABOUT,
    )


FORM_METRICS = (
    ComparedColumn("map_at_r"),
    ComparedColumn("recall_at_1"),
    ComparedColumn("spearman_crop", split="test_crop"),
    ComparedColumn("confidence_auroc"),
)
"""Metrics in which the two forms are compared; those of a confidence judge the default one of each form."""

FORMS_ABOUT = (
    "Each method as its paper's equations say (corrected) and as a public code computes it (`--fidelity "
    "released`), at the same seeds and settings: means over the paired seeds, and the mean of corrected minus "
    "released with its 95 % interval. The verdict is about the corrected form; Holm's method adjusts its p-values "
    "over the methods of a data set and metric. `undecided`: the seeds do not tell whether the difference of the "
    "codes changes the result."
)
"""Introduction of the table."""


def form_differences(groups: Iterable[SeedGroup]) -> pd.DataFrame:
    """Table of paired differences over seeds between the two forms of every method: corrected minus released.

    There is one row per contender in a released form, and metric; the verdict is on the corrected form, as in
    :func:`paired_methods`.
    """
    by_contender = {group.contender: group for group in groups}
    lines: list[dict[str, object]] = []
    for contender, released in by_contender.items():
        corrected = by_contender.get(contender._replace(fidelity="corrected"))
        if contender.fidelity == "corrected" or corrected is None:
            continue
        for column in FORM_METRICS:
            for line in differences(corrected, released, [column]):
                lines.append({**contender._asdict(), **_means(column, corrected, released), **line})
    return judged(lines)


def _means(column: ComparedColumn, corrected: SeedGroup, released: SeedGroup) -> dict[str, float]:
    """Means of both forms over the seeds at which both have a value."""
    left, right = (defined_values(group.column(column)) for group in (corrected, released))
    return {
        name: SeedStatistics.of({seed: values[seed] for seed in set(left) & set(right)}).mean
        for name, values in (("corrected_mean", left), ("released_mean", right))
    }


class Form(NamedTuple):
    """Row of :func:`form_differences`: a contender in a released form, its own fixed settings, and the numbers."""

    contender: Contender
    pinned: str
    line: Line

    @property
    def column(self) -> ComparedColumn:
        """Column of the metric."""
        metric = self.line["metric"], self.line["split"]
        return next(each for each in FORM_METRICS if (each.metric, each.split) == metric)

    def number(self, name: str, *ends: str, sign: str = "") -> Cell:
        """Cell of a mean, with the ends of its interval if there are any."""
        texts = (self.column.text(float(self.line[each]), sign) for each in (name, *ends))
        return Cell(interval(*texts) if ends else next(texts), float(self.line[name]))


FORM_COLUMNS: tuple[Column[Form], ...] = (
    label("method", lambda row: row.contender.label, "in brackets the form of the public code"),
    replace(TUNING, note="source of the hyper-parameters, of both forms"),
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


def form_document(forms: pd.DataFrame) -> Document:
    """Tables of the two forms, one per protocol, preset, data set and ensemble."""
    parts = [rows for _, rows in forms.groupby(list(COMMON), sort=True)] if len(forms) else []
    tables = tuple(_form_table(rows) for rows in parts)
    return Document("fidelity", "Public codes", FORMS_ABOUT, tables, forms, always=("method",))


def _form_table(rows: pd.DataFrame) -> Table:
    contenders = [Contender.of(rows.iloc[[place]]) for place in range(len(rows))]
    shared, own = split_pinned([each.pinned for each in contenders])
    forms = [Form(*each) for each in zip(contenders, own, rows.to_dict("records"))]
    title = ", ".join(filter(None, [forms[0].contender.dataset, shared]))
    left_out = [text for text in dict.fromkeys(rows["left_out"]) if text]
    return table_of(FORM_COLUMNS, forms, title, notes=tuple(f"Left out: {text}." for text in left_out))
