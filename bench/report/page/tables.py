"""Tables of a page: results, confidences to use, verdicts, and what is not decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pandas as pd

from ...store.specs import split_pinned
from .. import comparison, pairing
from ..comparison import ComparisonRow, comparison_frame
from ..contender import Contender
from ..cost import CostRow
from ..seeds import ComparedColumn, SeedStatistics
from ..table import GAP, Cell, Column, Table, frame_of, label, table_of
from ..verdicts import IMAGES, JUDGED, QUESTIONS, Question, Verdict, images_of, verdict_frame
from .answer import Cases
from .words import Advice, Candidate, DatasetFacts, Open, Words, mean_text, named

R = TypeVar("R")


@dataclass(frozen=True)
class Of(Generic[R]):
    """Something about a contender of a data set at one budget."""

    facts: DatasetFacts
    contender: Contender
    about: R

    @property
    def method(self) -> Cell:
        """Name of the contender, with a link to its row in the table of results."""
        return Cell(self.facts.labels[self.contender], href=self.facts.anchors[self.contender])

    @property
    def kind(self) -> str:
        """Whether the embedding is a distribution or a point."""
        return "probabilistic" if self.facts.groups[self.contender].probabilistic else "deterministic"


METHOD: Column[Of[Any]] = label(
    "method",
    lambda each: each.method,
    "name of the method; in parentheses the base that its head is trained on",
    fields=lambda each: {"method": each.method.text},
)
BUDGET: Column[Of[Any]] = label(
    "budget",
    lambda each: each.facts.budget_text,
    "source of the hyper-parameters with its tuning trials, and what else tells budgets apart",
    fields=lambda each: {"budget": each.facts.budget_text},
)
"""Column of the budgets. Ranks, ties and marks are among the rows of one budget."""
KIND: Column[Of[Any]] = label("kind", lambda each: each.kind, "whether the embedding is a distribution or a point")


def about(column: Column[R]) -> Column[Of[R]]:
    """A column of what is said about contenders as one of a table of several budgets."""
    return column.on(lambda each: each.about)


def results_table(budgets: Sequence[DatasetFacts], anchor: str, costs: Mapping[Contender, CostRow]) -> Table:
    """Table of results of one data set, one budget after the other, best mean MAP@R first."""

    def speed(each: Of[ComparisonRow]) -> Cell:
        found = costs[each.contender].ms_per_image if each.contender in costs else None
        return Cell(f"{found:.3g}", found) if found is not None else Cell(GAP, note="not recorded")

    columns = (
        METHOD,
        BUDGET,
        *map(about, comparison.PLACED),
        KIND,
        *(about(column) for column in comparison.COLUMNS if not column.label),
        *(_gain(split, images) for split, images in IMAGES.items()),
        *(_augrc(split, images) for split, images in (("test", "clean"), ("test_crop", "crops"))),
        Column(
            "networks",
            lambda each: str(each.facts.models[each.contender]),
            note="trained networks behind one result; an ensemble embeds images with each of them",
        ),
        Column("ms per image", speed, note="time to read and embed a test image, mean over seeds"),
        *(about(column) for column in comparison.COLUMNS if column.label and column not in comparison.PLACED),
    )
    rows = [Of(facts, row.contender, row) for facts in budgets for row in facts.rows]
    table = table_of(
        columns,
        rows,
        f"{budgets[0].name}: results per method",
        place="page",
        anchors=[each.facts.anchors[each.contender] for each in rows],
        anchor=anchor,
        csv=comparison_frame(each.about for each in rows),
    )
    return table.with_notes([*_gaps(table), *_fixed(budgets)])


def _gain(split: str, images: str) -> Column[Of[ComparisonRow]]:
    def cell(each: Of[ComparisonRow]) -> Cell:
        for found in each.facts.verdicts:
            if (found.contender, found.split, found.question) == (each.contender, split, "before_gallery"):
                mean = found.difference.mean if found.difference else None
                return Cell(found.texts.difference, mean, mark=found.outcome, note=found.texts.verdict)
        return Cell(GAP, note="no verdict")

    title = f"own confidence − best free one, {images}"
    return Column(title, cell, note="AUROC before there is a gallery, in points")


def _augrc(split: str, images: str) -> Column[Of[ComparisonRow]]:
    column = ComparedColumn("augrc", split=split, variant="recall_at_1")

    def cell(each: Of[ComparisonRow]) -> Cell:
        value = SeedStatistics.of(each.facts.groups[each.contender].column(column))
        return value.cell(column.percent)

    note = "risk of wrong answers by the default confidence, lower is better"
    return Column(f"AUGRC, {images}", cell, note=note)


def _gaps(table: Table) -> Iterator[str]:
    """Paragraph for the columns that have no value in some row, with the reasons; methods once, at any budget."""
    several = len({row.cells[1].text for row in table.rows}) > 1
    names = [f"{row.cells[0].text} at {row.cells[1].text}" if several else row.cells[0].text for row in table.rows]
    found: dict[str, list[str]] = {}
    for place, column in enumerate(table.columns):
        reasons: dict[str, list[str]] = {}
        for name, row in zip(names, table.rows):
            if row.cells[place].is_gap:
                reasons.setdefault(row.cells[place].note or "no value", []).append(name)
        texts = [f"{'all' if len(own) == len(names) else ', '.join(own)} ({why})" for why, own in reasons.items()]
        if texts:
            found.setdefault("; ".join(texts), []).append(column.title)
    for text, titles in found.items():
        yield f"No {' or '.join(titles)}: {text}."


def _fixed(budgets: Sequence[DatasetFacts]) -> Iterator[str]:
    """Paragraph for the fixed settings that all rows have; others are part of the budget."""
    shared, _ = split_pinned([facts.budget.pinned for facts in budgets])
    if shared:
        yield f"Fixed settings of all rows: {shared}."


def use_table(budgets: Sequence[Words], anchor: str) -> Table:
    """Table of the confidence to use with each method of a data set."""
    # In the order of the questions, and in each of them of the images, whichever budget has them.
    columns = [METHOD, BUDGET]
    columns += [
        _use(question, images)
        for question in QUESTIONS
        for images in IMAGES.values()
        if any(tally.images == images for words in budgets for tally in words.tallies[question])
    ]
    rows = [Of(words.facts, row.contender, words) for words in budgets for row in words.facts.rows]
    title = f"{budgets[0].facts.name}: confidence to use"
    return table_of(columns, rows, title, place="page", anchor=anchor, csv=frame_of(columns, rows))


def _use(question: Question, images: str) -> Column[Of[Words]]:
    title = f"{QUESTIONS[question]}, {images}"

    def advised(each: Of[Words]) -> Advice:
        return each.about.advice(each.contender, question, images)

    return Column(
        title,
        lambda each: _advice_cell(advised(each)),
        lambda each: {title: advised(each).use},
        number=False,
        note="use this",
    )


def _advice_cell(each: Advice) -> Cell:
    if not each.use:
        return Cell(GAP, note=each.reason)
    caveat = f"; {each.caveat}" if each.caveat else ""
    ends = {
        "better": f" ({each.own} over {each.over}{caveat})",
        "worse": f" ({each.best} {each.own}, not worth it)",
        "undecided": f" ({each.best} {each.own}, undecided)",
    }
    text = f"{named(each.use)} {each.auroc}{ends.get(each.outcome, '')}"
    return Cell(text, f"{each.outcome} {each.use}", mark=each.outcome if not each.alike else "")


def verdict_table(budgets: Sequence[DatasetFacts], anchor: str, names: Sequence[str]) -> Table:
    """Table of all verdicts on the confidences of one data set."""
    columns = (
        METHOD,
        BUDGET,
        label("question", lambda each: QUESTIONS[each.about.question]),
        label("images", lambda each: images_of(each.about.split)),
        label(
            "confidence",
            lambda each: named(each.about.challenger),
            "(ranks): mean of the ranks of the two; (fitted): logistic regression on validation classes",
        ),
        *map(about, JUDGED),
    )
    rows: list[Of[Verdict]] = [Of(facts, each.contender, each) for facts in budgets for each in facts.verdicts]
    return table_of(
        columns,
        rows,
        f"{budgets[0].name}: verdicts on confidences",
        place="page",
        anchors=names,
        anchor=anchor,
        csv=verdict_frame([each.about for each in rows]),
    )


def forms_table(dataset: str, rows: pd.DataFrame, anchor: str) -> Table:
    """Table of the corrected form of each method of a data set minus the form that a public code computes."""
    title = (
        f"{dataset}: methods as their papers say (corrected) and as public code computes them; the verdict is on the"
        " corrected form, with p-values adjusted over these methods (the intervals are not)"
    )
    return table_of(pairing.FORM_COLUMNS, pairing.form_rows(rows)[1], title, place="page", anchor=anchor, csv=rows)


OPEN: tuple[Column[Of[Open]], ...] = (
    METHOD,
    BUDGET,
    label("what", lambda each: each.about.what, fields=lambda each: {"what": each.about.what}),
    Column(
        "difference",
        lambda each: Cell(each.about.difference.text, each.about.difference.mean),
        lambda each: {"difference": each.about.difference.mean, "seeds_needed": each.about.difference.needed},
        note="points, mean over paired seeds [95 % t-interval]",
    ),
    Column(
        "decision",
        lambda each: Cell(each.about.difference.decision, each.about.difference.needed),
        lambda each: {"decision": each.about.difference.decision},
        note="of this pair alone; paired seeds that it needs in all",
    ),
)
"""Columns of what is not decided."""


def open_table(budgets: Sequence[Words], anchor: str) -> Table:
    """Table of the differences that the seeds do not decide."""
    rows = [Of(words.facts, each.contender, each) for words in budgets for each in words.open]
    title = f"{budgets[0].facts.name}: not decided"
    return table_of(OPEN, rows, title, place="page", anchor=anchor, csv=frame_of(OPEN, rows))


CANDIDATES: tuple[Column[Of[Candidate]], ...] = (
    METHOD,
    KIND,
    Column("MAP@R, %", lambda each: mean_text(each.about.row)),
    Column("behind by, points [95 %]", lambda each: each.about.ahead.text if each.about.ahead else GAP),
    label("compared as a pair", lambda each: each.about.ahead.decision if each.about.ahead else "no common seed"),
)
"""Columns of the methods that may also be the best."""


def candidates_table(facts: DatasetFacts, leader: Contender, candidates: Sequence[Candidate]) -> Table:
    """Table of the methods that may also be the best."""
    title = f"{facts.name}: methods that may also be the best, and how far they are behind {facts.labels[leader]}"
    rows = [Of(facts, each.row.contender, each) for each in candidates]
    return table_of(CANDIDATES, rows, title, place="page", small="small")


def cases_table(cases: Sequence[Cases], data_sets: int, matters: str) -> Table:
    """Table of how often a learned confidence is worth it."""
    columns: tuple[Column[Cases], ...] = (
        label("use of the learned confidence", lambda each: each.use),
        label("images", lambda each: each.images),
        Column("worth it", lambda each: each.text),
        Column("something free may be as good", lambda each: str(each.alike)),
        Column(f"equal within {matters}", lambda each: str(each.equivalent)),
        Column("not worth it", lambda each: str(each.worse)),
        Column("not decided", lambda each: str(each.undecided)),
    )
    counted = f"methods and {data_sets} data set{'s' * (data_sets != 1)}"
    title = f"How often a learned confidence is worth it, counted over {counted}"
    return table_of(columns, cases, title, place="page", anchor="cases", small="small fit")
