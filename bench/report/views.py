"""Tables of comparisons: each is a choice of rows. Files have columns of their own, readers one table for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from ..protocols.rows import FREE_IMAGE_CONFIDENCES, OWN, cost_of
from .compare import Comparison, level
from .contender import COMMON, LABELS, Contender, distinct_labels, ranked_together
from .questions import CONFIDENCE, DECIDES, IMAGES, PLAIN, SYSTEM, USES
from .ranks import competition
from .seeds import SeedGroup, compared, divided
from .splits import MEAN
from .table import GAP, Cell, Column, Document, Table, grouped, interval, label, lines_frame, number, table_of

SIDE = ("", "_tuning", "_network", "_pinned")
"""Endings of the columns that name a side of a pair: the method itself, and what tells its settings apart."""

WORTH = {"better": "worth it", "worse": "not worth it"}
"""Words of files for the outcomes of a learned confidence against the chosen free one, where they differ."""

FREE = "free confidence"
"""What the own confidence is compared with: the free one that validation chose."""


def images_of(split: str) -> str:
    """Words for the images of a split, such as ``centre crops``."""
    return IMAGES.get(split, split.removeprefix("test_"))


def outcome_text(row: Comparison, words: Mapping[str, str]) -> str:
    """The outcome in words with the reason."""
    return ": ".join(filter(None, (_word(row, words), row.why))) or GAP


def _word(row: Comparison, words: Mapping[str, str]) -> str:
    return "" if row.outcome == "no verdict" else words.get(row.outcome, row.outcome)


def against_of(row: Comparison) -> str:
    """What the contender is compared with: the other method, and the free confidence if there is one."""
    other = (
        row.against.label if row.against else "" if row.question != CONFIDENCE.name else FREE * (row.unit == "split")
    )
    return ": ".join(filter(None, (other, row.rival))) or GAP


def _difference_text(row: Comparison) -> Cell | str:
    if row.question == MEAN:  # which is compared with nothing
        return GAP
    return Cell(interval(*(row.column.text(end, "+") for end in (row.mean, row.low, row.high))), row.mean)


def _side_text(side: str) -> Callable[[Comparison], Cell]:
    def cell(row: Comparison) -> Cell:
        mean = level(row, getattr(row, side))
        ends = (row.low, row.high) if row.question == MEAN and side == "values" else (float("nan"),) * 2
        return Cell(interval(*(row.column.text(end) for end in (mean, *ends))), mean)

    return cell


TABLE: tuple[Column[Comparison], ...] = (
    *LABELS,
    label("ranking", lambda row: row.ranking or GAP, "scorer that ranks"),
    label("confidence", lambda row: row.confidence or GAP, "that of the method, as validation chose it"),
    label("against", against_of, "what it is compared with; a free confidence is the one that validation chose"),
    Column("method's", _side_text("values"), note="mean over seeds, or over class splits"),
    Column("other's", _side_text("others"), note="mean over seeds, or over class splits"),
    Column(
        "difference",
        _difference_text,
        note="in favour of the method, whichever direction is better: mean over paired seeds or splits [95 %]",
    ),
    Column("n", lambda row: str(row.n), note="paired seeds, or class splits"),
    Column("verdict", lambda row: Cell(outcome_text(row, {}), mark=row.outcome), number=False),
    Column(
        "p, Holm", lambda row: number(row.p_holm, 3), note="p-value, adjusted over all comparisons that are counted"
    ),
    Column(
        "best on test",
        lambda row: GAP if row.outcome != "better" or not row.free else "yes" if row.survives else "no",
        number=False,
        note="whether it is better than with every free confidence, whichever is best on the test images",
    ),
)
"""Columns of the tables of comparisons for readers."""

ABOUT = (
    "Differences are in favour of the method, mean over paired seeds or class splits [95 % t-interval; over splits that"
    " of Nadeau and Bengio, a heuristic]. Free confidences, and the scorer that ranks, are chosen on validation"
    " images. Holm: p-value adjusted over all comparisons that are counted. Shares in percent."
)
"""Legend of the tables of comparisons."""


def tables_of(rows: Iterable[Comparison]) -> tuple[Table, ...]:
    """Tables for readers: one per data set, budget, metric, images and use, with the columns that have a value."""

    def place(row: Comparison) -> tuple[str, ...]:
        common = row.contender
        about = (common.protocol, common.preset, common.ensemble, str(row.about.get("budget", "")))
        unit = "over class splits" if row.unit == "split" else ""
        use = (USES[row.use], images_of(row.column.split)) if row.use else ()
        head = ", ".join(filter(None, (common.dataset, unit, *use)))
        plain = (common.protocol, common.preset) == ("reality_check", "strict")
        return head, ", ".join(filter(None, about[2 if plain else 0 :])), row.column.title

    tables = []
    for (head, about, metric), own in grouped(rows, place).items():
        table = table_of(TABLE, own, f"{head}{f' ({about})' if about else ''}: {metric}", caption=ABOUT)
        left_out = dict.fromkeys(f"Left out: {row.about['left_out']}." for row in own if row.about.get("left_out"))
        empty = [all(line.cells[at].is_gap for line in table.rows) for at in range(len(table.columns))]
        kept = {column.title for column, none in zip(table.columns, empty) if not none}
        tables.append(replace(table.only(lambda column, kept=kept: column.title in kept), notes=tuple(left_out)))  # type: ignore[misc]
    return tuple(tables)


def document(name: str, heading: str, rows: Sequence[Comparison], numbers: pd.DataFrame, about: str = "") -> Document:
    """A document of comparisons, with the numbers of its file."""
    return Document(name, heading, f"{about} {ABOUT}".strip(), tables_of(rows), numbers, always=("method", "against"))


def _sides(row: Comparison) -> dict[str, object]:
    assert row.against is not None
    shared = dict(zip(COMMON, row.contender.common))
    return {**shared, **_side("first", row.against), **_side("other", row.contender)}


def _side(name: str, contender: Contender) -> dict[str, object]:
    texts = (contender.label, contender.tuning, contender.network, contender.pinned.text)
    return {f"{name}{ending}": text for ending, text in zip(SIDE, texts)}


def _tested(row: Comparison) -> dict[str, object]:
    return {
        "metric": row.column.metric,
        "split": row.column.split,
        "variant": row.about["variant"],
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


def paired_frame(rows: Iterable[Comparison]) -> pd.DataFrame:
    """Table of every two contenders, other minus first, as metrics are measured; the verdict is on the other."""
    return lines_frame(({**_sides(row), **_tested(row)} for row in rows), seeds_needed="Int64")


def base_frame(rows: Iterable[Comparison]) -> pd.DataFrame:
    """Table of two-stage methods minus the base models that their heads were trained on."""
    return lines_frame(({**row.contender._asdict(), **_tested(row)} for row in rows), seeds_needed="Int64")


def form_document(rows: Sequence[Comparison]) -> Document:
    """The two forms of methods; a line of the file has the names of the released form."""

    def line(row: Comparison) -> dict[str, object]:
        assert row.against is not None
        means = {"corrected_mean": level(row, row.values), "released_mean": level(row, row.others)}
        return {**row.against._asdict(), **means, **_tested(row)}

    about = (
        "Each method as its paper's equations say against what a public code computes (`--fidelity released`), at the"
        " same seeds and settings. `undecided`: the seeds do not tell whether the difference of the codes changes the"
        " result."
    )
    return document("fidelity", "Public codes", rows, lines_frame(map(line, rows), seeds_needed="Int64"), about)


def decisions(groups: Iterable[SeedGroup], pairs: Iterable[Comparison]) -> list[Comparison]:
    """Every contender against the best one at its budget, by every column; the smallest loss first.

    The best is that of the highest mean of those that have a value at the seeds that most have. P-values are those of
    all pairs.
    """
    made = {(row.contender, row.against, row.column): row for row in pairs}
    found: list[Comparison] = []
    for own in divided(groups, COMMON).values():
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


DECIDED = (
    *("difference_mean", "ci95_low", "ci95_high", "superiority", "superiority_ci95_low", "superiority_ci95_high"),
    *("region", "seeds", "left_out", "p_holm", "p_equivalence_holm", "verdict"),
)
"""Columns of pairs that decisions have, too."""


def decision_document(rows: Sequence[Comparison]) -> Document:
    """Each contender against the best one of its budget, and how many more seeds an undecided one needs."""

    def line(row: Comparison) -> dict[str, object]:
        assert row.against is not None
        tested = _tested(row)
        needed = row.units_needed(0.05 / row.family) if row.outcome == "undecided" and not row.reason else None
        return {
            **row.contender._asdict(),
            "metric": row.column.metric,
            "split": row.column.split,
            **_side("best", row.against),
            **{name: tested[name] for name in DECIDED},
            "more_seeds": None if needed is None else max(needed - row.n, 1),
        }

    about = (
        "Each method against the one with the best mean. Intervals are not adjusted for the choice of the best one; the"
        " verdict is: its p-values are adjusted by Holm's method over all pairs, not only those shown."
    )
    return document("decisions", "Decisions", rows, lines_frame(map(line, rows), more_seeds="Int64"), about)


def _difference(row: Comparison, prefix: str = "") -> dict[str, object]:
    ends = {f"{prefix}ci95_low": row.low, f"{prefix}ci95_high": row.high}
    return {f"{prefix}difference_mean": row.mean, f"{prefix}difference_sd": row.sd, **ends}


def _judged(row: Comparison, words: Mapping[str, str]) -> dict[str, object]:
    sure = {"p": row.p, "p_holm": row.p_holm, "p_bh": row.p_bh, "survives": row.survives}
    return {"seeds": row.n, "verdict": _word(row, words), "reason": row.why, **sure, "same_order_as": row.same_order_as}


def verdict_document(rows: Sequence[Comparison]) -> Document:
    """Each confidence of a method against the free one of its network that validation chose."""

    def line(row: Comparison) -> dict[str, object]:
        about = row.about
        return {
            **row.contender._asdict(),
            "split": row.column.split,
            "question": row.use,
            "ranking": row.ranking,
            "chosen": about["chosen"],
            "challenger": row.confidence,
            "challenger_mean": about["own_mean"],
            "rival": row.rival,
            "rival_remark": about["rival_remark"],
            "rival_mean": level(row, row.others),
            "best_on_test": about["best_on_test"],
            "best_on_test_mean": about["best_on_test_mean"],
            **_difference(row),
            **_judged(row, WORTH),
        }

    return document("verdicts", "Verdicts", rows, lines_frame(map(line, rows)), "AUROC of Recall@1 being right.")


def system_document(rows: Iterable[Comparison]) -> Document:
    """Each method with its own confidence against the plain method with a free one, by three measures of risk."""
    every = list(rows)
    measures = grouped(every, lambda row: (row.contender, row.column.split, row.use))

    def line(row: Comparison) -> dict[str, object]:
        found = {
            **row.contender._asdict(),
            "split": row.column.split,
            "question": row.use,
            "ranking": row.ranking,
            "confidence": row.confidence,
            "confidence_remark": row.about["confidence_remark"],
            "free": row.rival,
            "free_remark": row.about["rival_remark"],
        }
        for each in measures[row.contender, row.column.split, row.use]:
            name = each.column.metric
            found |= {f"{name}_method": level(each, each.values), f"{name}_plain": level(each, each.others)}
            found |= _difference(each, f"{name}_")
        return found | _judged(row, {})

    risks = "AUGRC: share of queries that are answered wrongly and accepted, mean over coverages."
    numbers = lines_frame(line(row) for row in every if row.column.metric == DECIDES)
    return document("systems", "Systems", every, numbers, f"{risks} The verdict is that of AUGRC.")


def _against(name: str, line: tuple[str, Sequence[Comparison]]) -> Cell:
    for row in line[1]:
        if row.rival == name:
            text = interval(*(row.column.text(end, "+") for end in (row.mean, row.low, row.high)))
            return Cell(f"{text} {outcome_text(row, {})}", row.mean, mark=row.outcome)
    return Cell(GAP)


def rival_document(rows: Iterable[Comparison]) -> Document:
    """Each method with its own confidence against the plain method with each free image confidence, side by side."""
    tables = []
    for (_, split, unit), own in grouped(rows, lambda row: (row.contender.common, row.column.split, row.unit)).items():
        lines = grouped(own, lambda row: row.contender)
        held = {row.rival for row in own}
        columns: list[Column[tuple[str, Sequence[Comparison]]]] = [label("method", lambda line: line[0])]
        shown = [name for name in FREE_IMAGE_CONFIDENCES if name in held]
        needs = {name: f" ({cost})" if (cost := cost_of(name)) else "" for name in shown}
        columns += [Column(f"{name}{needs[name]}", partial(_against, name)) for name in shown]
        head = f"{own[0].contender.dataset}, {images_of(split)}, over {unit}s"
        named = zip(distinct_labels([*lines]).values(), lines.values())
        tables.append(table_of(columns, named, head))
    about = (
        "Points of AUGRC before there is a gallery, in favour of the method with its own confidence against the plain"
        " method with each free one [95 %], and what the free one costs. Outcomes are those of each comparison alone;"
        " p-values adjusted over the methods are in comparisons.csv."
    )
    return Document("rivals", "Every free image confidence", about, tuple(tables))


def of_splits(rows: Iterable[Comparison]) -> list[Comparison]:
    """Comparisons over class splits that the table has: systems by AUGRC, of methods that are not free in disguise.

    Of confidences, those of the own one before the gallery on clean images.
    """
    every, first = list(rows), ("before_gallery", "test", OWN)
    systems = [row for row in every if row.question == SYSTEM.name and row.column.metric == DECIDES and row.n]
    learned = {row.contender for row in systems if not row.same_order_as}

    def shown(row: Comparison) -> bool:
        if row.question == CONFIDENCE.name:
            return (row.use, row.column.split, row.confidence) == first and (row.counts or row.n == 1)
        of_system = row.column.metric == DECIDES and row.n > 0 and row.contender in learned
        return row.question in (MEAN, PLAIN.name) or (row.question == SYSTEM.name and of_system)

    return list(filter(shown, every))


def split_document(rows: Sequence[Comparison]) -> Document:
    """Means, differences from the plain method and comparisons of systems over class splits."""

    def line(row: Comparison) -> dict[str, object]:
        system = row.question == SYSTEM.name
        other = FREE if row.question == CONFIDENCE.name else row.against.label if row.against else ""
        lost = f"no split and seed in common with {other}" if row.question == PLAIN.name and not row.n else ""
        return {
            **row.contender._asdict(),
            "metric": row.column.metric,
            "split": row.column.split,
            "against": other,
            "question": row.use if system else "",
            "mean": row.mean,
            "sd": row.sd,
            "ci95_low": row.low,
            "ci95_high": row.high,
            "splits": row.n,
            "seeds": row.about["seeds"],
            "test_over_train": row.test_over_train,
            "reason": row.why if system else lost,
            **({"p": row.p, "p_holm": row.p_holm} if system else {}),
        }

    shown = of_splits(rows)
    about = (
        "The unit is the class split, with the mean over its seeds: training and test classes are drawn anew, the"
        " validation classes are the same on all splits. Without the numbers of classes there is no interval."
    )
    return document("splits", "Class splits", shown, lines_frame(map(line, shown)), about)
