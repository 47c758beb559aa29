"""Tables of a page: results, confidences to use, and how often a learned one is better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from .. import comparison
from ..comparison import ComparisonRow, comparison_frame
from ..contender import Contender
from ..cost import CostRow
from ..ranks import Rank
from ..seeds import ComparedColumn, SeedStatistics
from ..table import GAP, Cell, Column, Table, frame_of, grouped, label, table_of
from ..verdicts import IMAGES, QUESTIONS, Question, ranking_of
from .answer import Cases
from .words import Advice, Candidate, DatasetFacts, Words, mean_text, named, state_of

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
KIND: Column[Of[Any]] = label("kind", lambda each: each.kind, "whether the embedding is a distribution or a point")


def about(column: Column[R]) -> Column[Of[R]]:
    """A column of what is said about contenders as one of a table of several budgets."""
    held: Column[Any] = column
    read = held.fields
    return replace(
        held,
        cell=lambda each: column.of(each.about),
        fields=None if read is None else lambda each: read(each.about),
    )


def results_table(facts: DatasetFacts, anchor: str, costs: Mapping[Contender, CostRow]) -> Table:
    """Table of results of one data set, best mean MAP@R first."""

    def speed(each: Of[ComparisonRow]) -> Cell:
        found = costs[each.contender].ms_per_image if each.contender in costs else None
        return Cell(f"{found:.3g}", found) if found is not None else Cell(GAP, note="not recorded")

    labels = [column for column in comparison.columns() if column.label and column not in comparison.PLACED]
    columns = (
        METHOD,
        *(about(column) for column in comparison.PLACED),
        label(
            "may be best",
            lambda each: _may_be_best(each.about.rank),
            "whether no other ranked method is better, by paired tests with one adjustment for their number",
        ),
        KIND,
        *(about(column) for column in comparison.columns() if not column.label),
        *_against(facts.rows),
        *(_gain(split, images) for split, images in IMAGES.items()),
        *(_augrc(split, images) for split, images in (("test", "clean"), ("test_crop", "crops"))),
        Column(
            "networks",
            lambda each: str(each.facts.models[each.contender]),
            note="trained networks behind one result; an ensemble embeds images with each of them",
        ),
        Column("ms per image", speed, note="time to read and embed a test image, mean over seeds"),
        *(about(column) for column in labels),
    )
    rows = [Of(facts, row.contender, row) for row in facts.rows]
    table = table_of(
        columns,
        rows,
        f"{facts.title}: results per method",
        place="page",
        anchors=[each.facts.anchors[each.contender] for each in rows],
        anchor=anchor,
        csv=comparison_frame(each.about for each in rows),
    )
    return replace(table, notes=tuple(_gaps(table)))


def _may_be_best(rank: Rank) -> Cell:
    if rank.interval is None:
        return Cell(GAP, note=rank.reason)
    wider = "a paired test finds a better one; the interval of the rank, about all pairs at once, is wider"
    return Cell("yes" if rank.may_be_best else "no", note="" if rank.may_be_best or rank.interval.low > 1 else wider)


def _against(rows: Sequence[ComparisonRow]) -> Iterator[Column[Of[ComparisonRow]]]:
    """Columns of what heads on frozen features gain over the network as it is, one for each metric of retrieval."""
    every = [each for row in rows for each in row.against]
    for column, found in grouped(every, lambda each: each.column).items():

        def cell(of: Of[ComparisonRow], column: ComparedColumn = column) -> Cell:
            for each in of.about.against:
                if each.column == column:
                    return Cell(each.text, each.line["difference_mean"], mark=each.verdict, note=each.verdict)
            return Cell(GAP, note="nothing to compare it with")

        names = ", ".join(dict.fromkeys(each.reference.label for each in found))
        yield Column(f"{column.title} − {names}", cell, note="paired over seeds, in points")


def _gain(split: str, images: str) -> Column[Of[ComparisonRow]]:
    def cell(each: Of[ComparisonRow]) -> Cell:
        for found in each.facts.verdicts:
            if (found.contender, found.split, found.question) == (each.contender, split, "before_gallery"):
                mean = found.difference.mean if found.difference else None
                return Cell(found.texts.difference, mean, mark=state_of(found), note=state_of(found) or found.reason)
        return Cell(GAP, note="no verdict")

    title = f"own confidence − chosen free one, {images}"
    return Column(title, cell, note="AUROC before there is a gallery, in points")


def _augrc(split: str, images: str) -> Column[Of[ComparisonRow]]:
    column = ComparedColumn("augrc", split=split, variant="recall_at_1")

    def cell(each: Of[ComparisonRow]) -> Cell:
        group = each.facts.groups[each.contender]
        return SeedStatistics.of(group.under(ranking_of(group)).column(column)).cell(column.percent)

    note = "risk of wrong answers by the default confidence, under the ranking of the systems; lower is better"
    return Column(f"AUGRC, {images}", cell, note=note)


def _gaps(table: Table) -> Iterator[str]:
    """Paragraph for the columns that have no value in some row, with the reasons."""
    names = [row.cells[0].text for row in table.rows]
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


def use_table(words: Words, anchor: str) -> Table:
    """Table of the confidence to use with each method of a data set."""
    columns: list[Column[Of[Words]]] = [METHOD]
    columns += [_use(question, tally.images) for question in QUESTIONS for tally in words.tallies[question]]
    rows = [Of(words.facts, row.contender, words) for row in words.facts.rows]
    title = f"{words.facts.title}: confidence to use"
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
        "": "",
        "better": f" ({each.own} over {each.over}{caveat})",
    }
    text = f"{named(each.use)} {each.auroc}{ends.get(each.outcome, f' ({each.best} {each.own}, {each.outcome})')}"
    return Cell(text, f"{each.outcome} {each.use}", mark=each.outcome if not each.alike else "")


CANDIDATES: tuple[Column[Of[Candidate]], ...] = (
    METHOD,
    KIND,
    Column("MAP@R, %", lambda each: mean_text(each.about.row)),
    Column("behind by, points [95 %]", lambda each: each.about.ahead.text if each.about.ahead else GAP),
    label("leader against it", lambda each: each.about.ahead.decision if each.about.ahead else "no common seed"),
)
"""Columns of the methods that may also be the best."""


def candidates_table(facts: DatasetFacts, leader: Contender, candidates: Sequence[Candidate]) -> Table:
    """Table of the methods that may also be the best."""
    title = f"{facts.title}: methods that may also be the best, and how far they are behind {facts.labels[leader]}"
    rows = [Of(facts, each.row.contender, each) for each in candidates]
    return table_of(CANDIDATES, rows, title, place="page", small="small")


def cases_table(cases: Sequence[Cases], data_sets: int, matters: str) -> Table:
    """Table of how often a learned confidence is better than the free one that validation chose."""
    columns: tuple[Column[Cases], ...] = (
        label("use of the learned confidence", lambda each: each.use),
        label("images", lambda each: each.images),
        Column("better", lambda each: each.text),
        Column("by Holm, by Benjamini-Hochberg", lambda each: f"{each.adjusted}, {each.false_discovery}"),
        Column(f"equivalent (within {matters})", lambda each: str(each.equivalent)),
        Column("worse", lambda each: str(each.worse)),
        Column("undecided", lambda each: str(each.undecided)),
        Column("not counted: a free one", lambda each: str(each.same)),
    )
    counted = f"methods and {data_sets} data set{'s' * (data_sets != 1)}"
    title = f"Learned confidences against the free one that validation chose, counted over {counted}"
    return table_of(columns, cases, title, place="page", anchor="cases", small="small fit")
