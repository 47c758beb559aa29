"""Tables of comparisons: each is a choice of rows, with the columns of its file and those that readers see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..store.specs import split_pinned
from .compare import Comparison, common, decided
from .contender import COMMON, CONTENDER, LABELS, TUNING, Contender, distinct_labels, ranked_together
from .questions import IMAGES, MEASURES, PAIR, USES, pairs_of
from .ranks import competition
from .seeds import ComparedColumn, SeedGroup, SeedStatistics, compared, divided
from .table import (
    GAP,
    Cell,
    Column,
    Document,
    Table,
    frame_of,
    grouped,
    interval,
    label,
    number,
    percent,
    table_of,
)

SIDE = ("", "_tuning", "_network", "_pinned")
"""Endings of the columns that name a side of a pair: the method itself, and what tells its settings apart."""

SIDES = tuple(f"{side}{ending}" for side in ("first", "other") for ending in SIDE)
"""Columns that name the two sides of a pair."""

WORTH = {"better": "worth it", "worse": "not worth it", "no verdict": ""}
"""Words of files for the outcomes of a learned confidence against the chosen free one, where they differ."""


def images_of(split: str) -> str:
    """Words for the images of a split, such as ``centre crops``."""
    return IMAGES.get(split, split.removeprefix("test_"))


def side(name: str, contender: Contender) -> dict[str, object]:
    """Columns that name a side of a pair: method, tuning, network, fixed settings."""
    texts = (contender.label, contender.tuning, contender.network, contender.pinned.text)
    return {f"{name}{ending}": text for ending, text in zip(SIDE, texts)}


def _sides(row: Comparison) -> dict[str, object]:
    assert row.against is not None
    shared = dict(zip(COMMON, row.contender.common))
    return {**shared, **side("first", row.against), **side("other", row.contender)}


def _measured(row: Comparison) -> dict[str, object]:
    return {"metric": row.column.metric, "split": row.column.split, "variant": row.about["variant"]}


def _tested(row: Comparison) -> dict[str, object]:
    return {
        **row.raw,
        "seeds": row.n,
        "left_out": row.about["left_out"],
        **row.superiority,
        "region": row.column.declared.equivalence,
        "p": row.p,
        "p_equivalence": row.p_equivalence,
        "seeds_needed": row.units_needed(),
        "p_holm": row.p_holm,
        "p_equivalence_holm": row.p_equivalence_holm,
        "verdict": row.verdict,
    }


_NUMBERS: tuple[Column[Comparison], ...] = (Column("", fields=_measured), Column("", fields=_tested))
_WHOLE = {"seeds_needed": "Int64"}


def paired_frame(rows: Iterable[Comparison]) -> pd.DataFrame:
    """Table of every two contenders, other minus first, as metrics are measured; the verdict is on the other."""
    return frame_of((Column("", fields=_sides), *_NUMBERS), rows, **_WHOLE)


def paired_methods(groups: Sequence[SeedGroup], names: Sequence[str] = ()) -> pd.DataFrame:
    """Table of every two contenders; with names, ``names[0]`` is the first of every pair, any later one the other.

    P-values are adjusted over the pairs of the table with the same data set, metric and split.
    """
    return paired_frame(decided(pairs_of(groups, names), PAIR))


def base_frame(rows: Iterable[Comparison]) -> pd.DataFrame:
    """Table of two-stage methods minus the base models that their heads were trained on."""
    return frame_of((CONTENDER, *_NUMBERS), rows, **_WHOLE)


DECISIONS_ABOUT = (
    "Each method minus the one with the best mean: mean over paired seeds [95 % t-interval]; P(better): share of seeds"
    " at which it is better than that one [exact 95 % interval]. Intervals are those of a single pair, not adjusted for"
    " the choice of the best one; the verdict is: its p-values are adjusted by Holm's method over all pairs of the"
    " table, not only those shown. Equivalent: inside the region of practical equivalence. More seeds: paired seeds"
    " still needed to tell a true difference of the observed size, at least of the region's, at the level of the whole"
    " table in 80 % of cases."
)


def decisions(groups: Iterable[SeedGroup], pairs: Iterable[Comparison]) -> list[Comparison]:
    """Every contender against the best one at its budget, by every column; the smallest loss first.

    The best is that of the highest mean of those that have a value at the seeds that most have. P-values are those of
    all pairs.
    """
    made = {(row.contender, row.against, row.column): row for row in pairs if row.question == PAIR.name}
    found: list[Comparison] = []
    for own in divided(groups, COMMON).values() if made else ():
        held = {group.contender: group for group in own}
        budgets = ranked_together(held)
        for column in compared():
            for budget, contenders in budgets:
                field = competition([held[each] for each in contenders], column)
                if not field.able:
                    continue
                best = contenders[field.able[int(np.argmax(field.values.mean(0)))]]
                rows = []
                for each in contenders:
                    forward, backward = made.get((each, best, column)), made.get((best, each, column))
                    row = forward or (backward and backward.turned())
                    rows += [replace(row, about={**row.about, "budget": budget})] if row else []
                found += sorted(rows, key=lambda row: row.mean if row.mean == row.mean else -np.inf, reverse=True)
    return found


def _more_seeds(row: Comparison) -> int | None:
    needed = row.units_needed(0.05 / row.family) if row.outcome == "undecided" else None
    return None if needed is None else max(needed - row.n, 1)


def _raw_text(row: Comparison, *, sign: str = "+") -> str:
    """Difference as it is measured, with its interval."""
    found = row.raw
    return interval(*(row.column.text(found[key], sign) for key in ("difference_mean", "ci95_low", "ci95_high")))


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else number(value, 3)


def _of(read: Callable[[Comparison], Mapping[str, object]], *names: str) -> Callable[[Comparison], dict[str, object]]:
    return lambda row: {name: value for name, value in read(row).items() if name in names}


_BETTER = ("superiority", "superiority_ci95_low", "superiority_ci95_high")

DECISION_COLUMNS: tuple[Column[Comparison], ...] = (
    CONTENDER,
    Column("", fields=_of(_measured, "metric", "split")),
    Column("", fields=lambda row: side("best", row.against)),  # type: ignore[arg-type]
    Column("difference", _raw_text, _of(_tested, "difference_mean", "ci95_low", "ci95_high")),
    Column(
        "P(better)", lambda row: interval(*(number(row.superiority[name]) for name in _BETTER)), _of(_tested, *_BETTER)
    ),
    Column("", fields=_of(_tested, "region")),
    Column("seeds", fields=_of(_tested, "seeds")),
    Column("", fields=_of(_tested, "left_out")),
    Column("verdict", lambda row: row.verdict, number=False),
    Column("p", lambda row: _p(row.p_holm), _of(_tested, "p_holm")),
    Column("p equivalent", lambda row: _p(row.p_equivalence_holm), _of(_tested, "p_equivalence_holm")),
    Column("", fields=_of(_tested, "verdict")),  # in CSV files after the p-values it follows from
    Column("more seeds", fields=lambda row: {"more_seeds": _more_seeds(row)}),
)
"""Columns of the tables of decisions, without the names of the contenders, which depend on the table."""


def decision_document(found: Sequence[Comparison]) -> Document:
    """Tables of decisions, one per data set (with protocol, preset and ensemble), column and budget."""
    parts = grouped(found, lambda row: (row.contender.common, row.column, row.about["budget"]))
    numbers = frame_of(DECISION_COLUMNS, found, more_seeds="Int64")
    about = f"{DECISIONS_ABOUT} Shares in percent."
    return Document("decisions", "Decisions", about, tuple(map(_decision_table, parts.values())), numbers)


def _decision_table(rows: Sequence[Comparison]) -> Table:
    first = rows[0]
    assert first.against is not None
    names = distinct_labels([first.against, *(row.contender for row in rows)])
    column, place = first.column, first.contender
    about = ", ".join(filter(None, [place.protocol, place.preset, place.ensemble, str(first.about["budget"])]))
    left_out = [(names[row.contender], row.about["left_out"]) for row in rows]
    region = column.text(column.declared.equivalence) if column.declared.equivalence else "none"
    method: Column[Comparison] = label("method", lambda row: names[row.contender])
    return table_of(
        (method, *DECISION_COLUMNS),
        rows,
        f"{place.dataset} ({about}), {column.title}: each method minus {names[first.against]}",
        notes=(f"Region of equivalence: {region}.", *(f"{name}: left out {text}." for name, text in left_out if text)),
        caption=DECISIONS_ABOUT,
    )


FORMS_ABOUT = (
    "Each method as its paper's equations say (corrected) and as a public code computes it (`--fidelity "
    "released`), at the same seeds and settings: means over the paired seeds, and the mean of corrected minus "
    "released with its 95 % interval. The verdict is about the corrected form; Holm's method adjusts its p-values "
    "over the methods of a data set and metric. `undecided`: the seeds do not tell whether the difference of the "
    "codes changes the result."
)


def _form_means(row: Comparison) -> dict[str, float]:
    """Means of both forms over the seeds at which both have a value."""
    sides = (("corrected_mean", row.values), ("released_mean", row.others))
    return {name: SeedStatistics.of({at: values[at] for at in common(row)}).mean for name, values in sides}


def form_document(found: Sequence[Comparison]) -> Document:
    """Tables of the two forms, one per protocol, preset, data set and ensemble; a row is that of the released form."""
    rows = [row.turned() for row in found]  # named by the released form
    columns = (CONTENDER, Column("", fields=lambda row: _form_means(row.turned())), *_NUMBERS[:1])
    numbers = frame_of((*columns, Column("", fields=lambda row: _tested(row.turned()))), rows, **_WHOLE)
    parts = grouped(rows, lambda row: row.contender.common)
    tables = tuple(_form_table(parts[place]) for place in sorted(parts))
    return Document("fidelity", "Public codes", FORMS_ABOUT, tables, numbers, always=("method",))


def _form_table(rows: Sequence[Comparison]) -> Table:
    shared, own = split_pinned([row.contender.pinned for row in rows])
    pinned = dict(zip(map(id, rows), own))

    def mean(name: str) -> Callable[[Comparison], Cell]:
        return lambda row: Cell(row.column.text(value := _form_means(row.turned())[name]), value)

    columns: tuple[Column[Comparison], ...] = (
        label("method", lambda row: row.contender.label, "in brackets the form of the public code"),
        replace(TUNING, note="source of the hyper-parameters, of both forms"),
        label("network", lambda row: row.contender.network, "backbone and size of the embedding"),
        label("fixed", lambda row: pinned[id(row)] or GAP, "fixed settings, of both forms"),
        label("metric", lambda row: row.column.title),
        Column("corrected", mean("corrected_mean"), note="mean over the paired seeds"),
        Column("released", mean("released_mean"), note="public code, mean over the paired seeds"),
        Column("corrected - released", lambda row: _raw_text(row.turned()), note="mean [95 % t-interval]"),
        Column("seeds", lambda row: str(row.n), note="paired seeds"),
        Column("verdict", lambda row: row.turned().verdict, number=False, note="on the corrected form, adjusted"),
    )
    left_out = dict.fromkeys(f"Left out: {row.about['left_out']}." for row in rows if row.about["left_out"])
    title = ", ".join(filter(None, [rows[0].contender.dataset, shared]))
    return table_of(columns, rows, title, notes=tuple(left_out))


SURE: tuple[Column[Comparison], ...] = (
    Column(
        "p, Holm",
        lambda row: number(row.p_holm, 3),
        lambda row: {"p": row.p, "p_holm": row.p_holm},
        note="p-value of the difference, adjusted over all cases that are counted",
    ),
    Column(
        "p, BH",
        lambda row: number(row.p_bh, 3),
        lambda row: {"p_bh": row.p_bh},
        note="adjusted by Benjamini and Hochberg's method: the expected share of false ones among those below it",
    ),
    Column(
        "best on test",
        lambda row: GAP if row.outcome != "better" else "yes" if row.survives else "no",
        lambda row: {"survives": row.survives},
        number=False,
        note="whether it is better than every free confidence, whichever is best on the test images",
    ),
    Column("", fields=lambda row: {"same_order_as": row.same_order_as}),
)
"""Columns that say how sure an outcome is."""


def _difference(row: Comparison, name: str = "difference") -> dict[str, object]:
    prefix = name.removesuffix("difference")
    ends = {f"{prefix}ci95_low": row.low, f"{prefix}ci95_high": row.high}
    return {f"{name}_mean": row.mean, f"{name}_sd": row.sd, **ends}


def _free_text(row: Comparison) -> str:
    """The free confidence with its mean; that which is best on test in brackets, if none was chosen."""
    if row.rival:
        return f"{row.rival} {percent(SeedStatistics.of(row.others).mean, 1)}".removesuffix(f" {GAP}")
    best = row.about["best_on_test"]
    return f"({best} {percent(row.about['best_on_test_mean'], 1)})" if best else GAP  # type: ignore[arg-type]


VERDICT_COLUMNS: tuple[Column[Comparison], ...] = (
    CONTENDER,
    *LABELS,
    Column("", fields=lambda row: {"split": row.column.split, "question": row.use}),
    label(
        "ranking",
        lambda row: row.ranking + ("" if row.about["chosen"] else " (not chosen)"),
        "scorer that ranks; verdicts count under the one with the higher Recall@1 on validation images",
        fields=lambda row: {"ranking": row.ranking, "chosen": row.about["chosen"]},
    ),
    label("confidence", lambda row: row.confidence or GAP, fields=lambda row: {"challenger": row.confidence}),
    Column(
        "own",
        lambda row: Cell(percent(row.about["own_mean"], 1), row.about["own_mean"]),  # type: ignore[arg-type]
        lambda row: {"challenger_mean": row.about["own_mean"]},
        note="AUROC of the confidence in percent, mean over seeds",
    ),
    Column(
        "chosen free",
        _free_text,
        lambda row: {
            "rival": row.rival,
            "rival_remark": row.about["rival_remark"],
            "rival_mean": SeedStatistics.of(row.others).mean,
            "best_on_test": row.about["best_on_test"],
            "best_on_test_mean": row.about["best_on_test_mean"],
        },
        note="chosen on clean and corrupted validation images, the default with few errors there; in brackets: best on"
        " test, if validation cannot choose",
    ),
    Column(
        "own - free",
        lambda row: Cell(row.text, row.mean),
        _difference,
        note="mean over paired seeds [95 % t-interval], points",
    ),
    Column("seeds", lambda row: str(row.n or GAP), lambda row: {"seeds": row.n}, note="paired seeds"),
    Column(
        "verdict",
        lambda row: Cell(outcome_text(row, WORTH), mark=row.outcome),
        lambda row: {"verdict": WORTH.get(row.outcome, row.outcome), "reason": row.why},
        number=False,
        note="worth it if the interval lies above 0, not worth it if below",
    ),
    *SURE,
)
"""Columns of the tables of verdicts."""


def outcome_text(row: Comparison, words: Mapping[str, str]) -> str:
    """The outcome in words with the reason."""
    outcome = "" if row.outcome == "no verdict" else words.get(row.outcome, row.outcome)
    return ": ".join(filter(None, (outcome, row.why))) or GAP


ABOUT_VERDICTS = (
    "AUROC of Recall@1 being right; chosen free: by validation; own - free: mean over seeds [95 % t-interval]"
)
"""Legend of the tables of verdicts."""


def verdict_document(found: Sequence[Comparison]) -> Document:
    """Tables of verdicts on confidences, one per data set, split and use."""
    introduction = f"{ABOUT_VERDICTS} (in brackets: best on test, if validation cannot choose). Percent."
    tables = _by_place(VERDICT_COLUMNS, found, f"{ABOUT_VERDICTS}. Percent.")
    numbers = frame_of(VERDICT_COLUMNS, found)
    return Document("verdicts", "Verdicts", introduction, tables, numbers, always=("method", "confidence"))


def _by_place(columns: Sequence[Column[Any]], rows: Sequence[Comparison], caption: str) -> tuple[Table, ...]:
    places = grouped(rows, lambda row: (row.contender.dataset, row.column.split, row.use))
    return tuple(
        table_of(columns, own, f"{dataset}, {images_of(split)}, {USES[use]}", caption=caption)
        for (dataset, split, use), own in places.items()
    )


def systems_of(rows: Iterable[Comparison]) -> list[Comparison]:
    """Comparisons of systems by the measure that decides, with those by the other measures under their metrics."""
    places = grouped(
        (row for row in rows if row.question == "system"),
        lambda row: (row.contender, row.column.split, row.use),
    )
    found = []
    for own in places.values():
        by_metric = {row.column.metric: row for row in own}
        found.append(replace(own[0], about={**own[0].about, "measures": by_metric}))
    return found


def _risk_columns(column: ComparedColumn) -> Iterator[Column[Comparison]]:
    key = column.metric

    def measure(row: Comparison) -> Comparison:
        found: Comparison = row.about["measures"][key]  # type: ignore[index]
        return found

    def means(row: Comparison) -> dict[str, float]:
        sides = {"method": measure(row).values, "plain": measure(row).others}
        return {f"{key}_{name}": SeedStatistics.of(values).mean for name, values in sides.items()}

    title = "risk at 80 %" if key == "risk_at_coverage" else column.title
    for name in ("method", "plain"):
        yield Column(
            f"{title}, {name}",
            lambda row, name=name: Cell(percent(mean := means(row)[f"{key}_{name}"], 1), mean),  # type: ignore[misc]
        )
    yield Column(
        f"{title}, plain - method",
        lambda row: Cell(measure(row).text, measure(row).mean),
        lambda row: {**means(row), **_difference(measure(row), f"{key}_difference")},
    )


def _chosen(title: str, key: str, note: str) -> Column[Comparison]:
    return label(
        title,
        lambda row: getattr(row, key) or GAP,
        fields=lambda row: {title: getattr(row, key), f"{title}_remark": row.about[f"{key}_remark"]},
        note=note,
    )


SYSTEM_COLUMNS: tuple[Column[Comparison], ...] = (
    CONTENDER,
    *LABELS,
    Column("", fields=lambda row: {"split": row.column.split, "question": row.use}),
    label("ranking", lambda row: row.ranking, "scorer that ranks", fields=lambda row: {"ranking": row.ranking}),
    label("plain", lambda row: row.against.label if row.against else GAP, "plain method that it is compared with"),
    _chosen("confidence", "confidence", "own confidence that validation chose"),
    _chosen("free", "rival", "free confidence of the plain method that validation chose"),
    *(column for measure in MEASURES for column in _risk_columns(measure)),
    Column("seeds", fields=lambda row: {"seeds": row.n}, note="paired seeds"),
    Column(
        "verdict",
        lambda row: Cell(outcome_text(row, {}), mark=row.outcome),
        lambda row: {"verdict": row.outcome if row.outcome != "no verdict" else "", "reason": row.why},
        number=False,
        note="of AUGRC, plain minus method: better if the interval lies above 0, worse if below",
    ),
    *SURE,
)
"""Columns of the tables of systems."""

ABOUT_SYSTEMS = (
    "A method with a confidence of its own, against the plain method at the same budget with the free confidence that"
    " validation chose, each ranking by the scorer that validation chose. AUGRC: share of queries that are answered"
    " wrongly and accepted, mean over coverages; risk at"
    " 80 %: share of wrong answers among the 80 % most confident; both of Recall@1, in percent, lower is better."
    " Differences are plain minus method, mean over paired seeds [95 % t-interval]; the verdict is that of AUGRC."
    " Holm: p-value adjusted over all methods that are counted. Best on test: whether the method is better than the"
    " plain one with every free confidence."
)


def system_document(found: Sequence[Comparison]) -> Document:
    """Tables of systems, one per data set, split and use."""
    tables = _by_place(SYSTEM_COLUMNS, found, ABOUT_SYSTEMS)
    return Document("systems", "Systems", ABOUT_SYSTEMS, tables, frame_of(SYSTEM_COLUMNS, found), always=("method",))
