"""Results over class splits: means whose unit is the split, and comparisons with the plain method of the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..protocols.rows import OWN
from ..protocols.statistics import Summary, holm, p_over_splits, paired_difference, summarise_splits
from ..store.folder import Store
from .contender import CONTENDER, Contender, by_budget, distinct_labels
from .frame import Results
from .seeds import NO_DIFFERENCE, ComparedColumn, SeedGroup, SeedStatistics, defined_values, seed_groups
from .systems import plain_of, systems
from .table import GAP, Column, Document, Table, cells_table, frame_of, grouped, headings, held, interval, number
from .verdicts import IMAGES, METRIC, QUESTIONS, Question, images_of, verdicts

MEASURED = (ComparedColumn("map_at_r", reranked=True), ComparedColumn("recall_at_1", reranked=True))
"""Metrics of which a contender has a mean, and a difference from the plain method."""


def _systems_title(question: Question, split: str) -> str:
    """Heading of a comparison of systems, by question and test images."""
    return f"{QUESTIONS[question]}, {images_of(split)}"


FIRST: tuple[Question, str] = ("before_gallery", "test")
"""Question and test images of the comparison whose p-value is shown and adjusted."""

BRIEF = (
    *("method", "splits", "seeds", *(column.title for column in MEASURED)),
    *(_systems_title(question, split) for question in QUESTIONS for split in IMAGES),
)
"""Headings of the columns that a narrow terminal shows."""

AUGRC = ComparedColumn("augrc", variant="recall_at_1")
"""Metric of systems."""

FREE = "free confidence"
"""What the own confidence is compared with: the free one that validation chose on each split."""

ABOUT = (
    "Mean over class splits of the means over their seeds [95 % t-interval of Nadeau and Bengio, with the variance"
    " factor 1/J + test/training classes: a heuristic], at the setting of the data set's own split, which is not among"
    " them. Training and test classes are drawn anew, the validation classes are the same on all splits. Every method"
    " ranks by its own score. Differences are over common splits. Percent."
)
"""Legend of the tables."""

ABOUT_SYSTEMS = (
    "AUGRC of Recall@1 of the plain method with the free confidence that validation chose on each split, minus that of"
    " the method with its own confidence: above 0, the method is the better system. Each side ranks by the scorer that"
    " validation chose. Intervals as for the means: no new draw of the validation classes. p:"
    f" t-test of the same heuristic for {_systems_title(*FIRST)}; Holm: adjusted over the methods of the table."
    " Methods whose confidence orders images as a free one does, on all splits, are left out."
)
"""Legend of the tables of systems."""

BySplit = Mapping[int, SeedGroup]
"""Values over seeds of one contender by the number of the class split."""


@dataclass(frozen=True)
class OverSplits:
    """One value of a contender by class split, or a difference: own confidence or method minus what it is ``against``.

    A comparison of systems has the ``question`` that the confidences answer, and is plain minus method.
    ``test_over_train`` is the number of test classes over that of training classes; nan if it is not known.
    """

    contender: Contender
    column: ComparedColumn
    against: str
    values: Mapping[int, float]
    seeds: int
    test_over_train: float
    reason: str = ""
    question: Question | Literal[""] = ""
    p_holm: float = float("nan")

    @property
    def p(self) -> float:
        """P-value of a difference that is 0; nan with fewer than two splits."""
        return p_over_splits([*self.values.values()], self.test_over_train)

    @property
    def summary(self) -> Summary:
        """Mean over splits with its interval."""
        return summarise_splits([*self.values.values()], self.test_over_train) if self.values else NO_DIFFERENCE

    @property
    def text(self) -> str:
        """Mean and interval as text."""
        found, sign = self.summary, "+" if self.against else ""
        return interval(*(self.column.text(value, sign) for value in (found.mean, found.ci_low, found.ci_high)))


def groups_by_split(results: Results) -> dict[Contender, dict[int, SeedGroup]]:
    """Values over seeds of every contender on class splits that are not the data set's own."""
    found: dict[Contender, dict[int, SeedGroup]] = {}
    for group in (
        seed_groups(Results.of(results.splits, rescorings=results.rescorings).merged) if results.splits else ()
    ):
        pinned = group.contender.pinned
        found.setdefault(group.contender._replace(pinned=pinned.on_split(0)), {})[pinned.class_seed] = group
    return found


def over_splits(store: Store, results: Results) -> list[OverSplits]:
    """Values of every contender over class splits, by data set and budget."""
    every = groups_by_split(results)
    found: list[OverSplits] = []
    for of_dataset in grouped(every, lambda contender: contender.dataset).values():
        for contenders in by_budget(of_dataset).values():
            first = {each: next(iter(every[each].values())) for each in contenders if not each.ensemble}
            chosen = plain_of([*first.values()]) if first else None
            plain = next((each for each, group in first.items() if group is chosen), None)
            for each in contenders:
                ratio = test_over_train(every[each], results, store)
                found += _of_contender(each, every[each], ratio)
                if plain not in (None, each) and plain.common == each.common:
                    found += _differences(each, every[each], plain, every[plain], ratio)
            found += _systems({each: every[each] for each in contenders}, found)
    return found


def _of_contender(contender: Contender, splits: BySplit, ratio: float) -> Iterator[OverSplits]:
    seeds = max(group.seeds for group in splits.values())
    for column in MEASURED:
        means = {number: SeedStatistics.of(group.column(column)).mean for number, group in splits.items()}
        if values := defined_values(means):
            yield OverSplits(contender, column, "", values, seeds, ratio)
    gains = {
        number: answer.difference.mean
        for number, group in splits.items()
        for answer in verdicts([group])
        if (answer.split, answer.question, answer.challenger) == ("test", "before_gallery", OWN)
        and answer.difference
        and answer.counts
    }
    if gains:
        yield OverSplits(contender, ComparedColumn(METRIC), FREE, gains, seeds, ratio)


def _differences(
    contender: Contender, splits: BySplit, plain: Contender, others: BySplit, ratio: float
) -> Iterator[OverSplits]:
    """Differences from the plain method over common splits, of the mean over common seeds within each."""
    for column in MEASURED:
        own, other = (
            {number: defined_values(group.column(column)) for number, group in side.items()}
            for side in (splits, others)
        )
        if any([*own.values(), *other.values()]):
            both = [number for number in sorted(own.keys() & other.keys()) if own[number].keys() & other[number].keys()]
            found = {number: paired_difference(own[number], other[number]) for number in both}
            values = {number: difference.mean for number, difference in found.items()}
            seeds = max((difference.n for difference in found.values()), default=0)
            reason = "" if values else f"no split and seed in common with {plain.label}"
            yield OverSplits(contender, column, plain.label, values, seeds, ratio, reason)


def _systems(every: Mapping[Contender, BySplit], means: Iterable[OverSplits]) -> list[OverSplits]:
    """Comparisons of systems over splits, by question and images, for the methods of a budget."""
    of = {each.contender: each for each in means}
    gains: dict[tuple[Contender, str, Question, str], dict[int, float]] = {}
    learned = set()  # contenders whose confidence is not a free one in another scale
    for place in sorted({place for splits in every.values() for place in splits}):
        for each in systems(splits[place] for splits in every.values() if place in splits):
            if each.plain and each.difference.n:
                contender = each.contender._replace(pinned=each.contender.pinned.on_split(0))
                key = contender, each.plain.label, each.question, each.split
                gains.setdefault(key, {})[place] = each.difference.mean
                if not each.same_order_as:
                    learned.add(contender)
    found = [
        replace(of[contender], column=replace(AUGRC, split=split), against=plain, question=question, values=values)
        for (contender, plain, question, split), values in gains.items()
        if contender in learned
    ]
    compared = grouped(found, lambda each: (each.question, each.column.split)).values()
    return [
        replace(each, p_holm=float(p)) for own in compared for each, p in zip(own, holm(np.array([o.p for o in own])))
    ]


def test_over_train(splits: BySplit, results: Results, *stores: Store) -> float:
    """Test over training classes of the first test of a contender whose training is here; nan if there is none."""
    units = {unit for group in splits.values() for unit in group.rows["unit"].unique()}
    for record in results.splits:
        if record.unit in units and record.test_classes is not None:
            every = (store.trained(record.trained_cell, record.spec.train[0]) for store in stores)
            trained = next(filter(None, every), None)
            if trained is not None:
                return record.test_classes / trained.num_classes
    return float("nan")


def _numbers(each: OverSplits) -> dict[str, object]:
    found = each.summary
    ends = {"ci95_low": found.ci_low, "ci95_high": found.ci_high}
    sure = {"p": each.p, "p_holm": each.p_holm} if each.question else {}
    return {"mean": found.mean, "sd": found.sd, **ends, **sure, "splits": found.n, "seeds": each.seeds}


NUMBERS: tuple[Column[OverSplits], ...] = (
    CONTENDER,
    Column("", fields=lambda each: {"metric": each.column.metric, "split": each.column.split}),
    Column("", fields=held("against")),
    Column("", fields=held("question")),
    Column("", fields=_numbers),
    Column("", fields=held("test_over_train")),
    Column("", fields=held("reason")),
)
"""Columns of the numbers; tables for readers have a column per metric and difference."""


def split_document(found: Sequence[OverSplits]) -> Document:
    """Tables of means, differences and systems over class splits, one of each per data set."""
    tables: list[Table] = []
    for dataset, rows in grouped(found, lambda each: each.contender.dataset).items():
        tables.append(_table(dataset, [row for row in rows if not row.question]))
        if compared := [row for row in rows if row.question]:
            tables.append(_table_of_systems(dataset, compared))
    return Document("splits", "Class splits", ABOUT, tuple(tables), frame_of(NUMBERS, found))


def _table(dataset: str, rows: Sequence[OverSplits]) -> Table:
    titles = list(dict.fromkeys(map(_title, rows)))
    names = distinct_labels([*dict.fromkeys(row.contender for row in rows)])
    notes = list(dict.fromkeys(f"{names[row.contender]}: {row.reason}." for row in rows if row.reason))
    by_contender = grouped(rows, lambda row: row.contender)
    unknown = [names[each] for each, own in by_contender.items() if own[0].test_over_train != own[0].test_over_train]
    notes += [f"No interval, as the numbers of classes are not known: {', '.join(unknown)}."] if unknown else []
    return _lines(f"{dataset}, over class splits", rows, titles, _title, ABOUT, notes)


def _table_of_systems(dataset: str, rows: Sequence[OverSplits]) -> Table:
    def title(row: OverSplits) -> str:
        return _systems_title(row.question, row.column.split) if row.question else ""

    plain = ", ".join(dict.fromkeys(row.against for row in rows))
    titles = [title(row) for question in QUESTIONS for row in rows if row.question == question]
    name = f"{dataset}, systems over class splits: AUGRC of {plain} minus the method's"
    return _lines(name, rows, list(dict.fromkeys(titles)), title, ABOUT_SYSTEMS)


def _lines(
    name: str,
    rows: Sequence[OverSplits],
    titles: Sequence[str],
    title_of: Callable[[OverSplits], str],
    caption: str,
    notes: Sequence[str] = (),
) -> Table:
    """A table with a line per contender and a column per title; one of systems has p-values, too."""
    by_contender = grouped(rows, lambda row: row.contender)
    names = distinct_labels(list(by_contender))
    sure = ("p", "p, Holm") if rows[0].question else ()
    lines = []
    for contender, own in by_contender.items():
        texts = {title_of(row): row.text for row in own}
        counts = str(max(len(row.values) for row in own)), str(max(row.seeds for row in own))
        first = next((row for row in own if (row.question, row.column.split) == FIRST), None)
        p = ((number(first.p, 3), number(first.p_holm, 3)) if first else (GAP, GAP)) if sure else ()
        lines.append((names[contender], *counts, *(texts.get(title, GAP) for title in titles), *p))
    columns = headings("method", "splits", "seeds", *titles, *sure)
    return cells_table(name, columns, lines, notes=tuple(notes), caption=caption)


def _title(row: OverSplits) -> str:
    """Heading of a value: the metric, and what it is compared with."""
    against = "free" if row.against == FREE else row.against
    return f"{row.column.title}{f': own - {against}' if against else ''}"
