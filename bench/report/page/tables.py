"""Tables of a page: results, confidences to use, verdicts, and what is not decided."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from ...store.pinned import split_pinned
from ..comparison import ComparisonRow, Mark, comparison_frame
from ..contender import Contender
from ..cost import CostRow
from ..escape import csv_text
from ..fidelity import COLUMNS as FORM_COLUMNS
from ..fidelity import rows_of
from ..seeds import COMPARED, ComparedColumn, SeedStatistics
from ..verdicts import IMAGES, QUESTIONS, Verdict, verdict_frame
from .facts import DatasetFacts
from .words import Advice, Open, Words, named

GAP = "\N{EN DASH}"
"""Text of a cell without a value."""


@dataclass(frozen=True)
class Cell:
    """Cell of a table.

    Attributes:
        text: Its text.
        sort: Number or text to sort by; empty cells are sorted last.
        mark: Classes for its style, such as ``best``.
        note: Explanation that is shown on request; empty for most.
        href: Id on the page that the text leads to; empty for no link.
    """

    text: str
    sort: str = ""
    mark: str = ""
    note: str = ""
    href: str = ""


@dataclass(frozen=True)
class Column:
    """Heading of a column: its text, an explanation, and whether its cells are numbers."""

    title: str
    note: str = ""
    number: bool = False


@dataclass(frozen=True)
class Row:
    """Row of a table; the first cell is its heading. Its id is empty if nothing leads to it."""

    anchor: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Table of a page.

    Attributes:
        anchor: Its id.
        caption: What it shows.
        columns: Its columns.
        rows: Its rows.
        notes: Paragraphs below it, such as the gaps and their reasons.
        csv: Its numbers as CSV, as a data URI; empty for none.
    """

    anchor: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    csv: str = ""


def csv_uri(frame: pd.DataFrame) -> str:
    """A table as CSV in a data URI, in which no text is a formula.

    Example:
        >>> csv_uri(pd.DataFrame({"a": ["=1"]}))
        'data:text/csv;charset=utf-8;base64,YQonPTEK'
    """
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(csv_text(frame).encode()).decode()


def text_cell(text: str, note: str = "") -> Cell:
    """Cell with a text, by which it is sorted; a dash and no place in the order if it is empty."""
    return Cell(text, text, note=note) if text else Cell(GAP, mark="gap", note=note)


def number_cell(value: float, text: str, note: str = "", mark: str = "") -> Cell:
    """Cell with a number, by which it is sorted; a dash if it is nan."""
    return Cell(text, f"{value:.10g}", mark, note) if value == value else Cell(GAP, mark="gap", note=note)


_SHOWN = ("recall_at_1", "map_at_r", "spearman_crop")
"""Metrics of the comparison that the table of results shows; its CSV has all."""
_AUGRC = (
    ("AUGRC, clean", ComparedColumn("augrc", variant="recall_at_1")),
    ("AUGRC, crops", ComparedColumn("augrc", split="test_crop", variant="recall_at_1")),
)


BUDGET = Column("budget", "source of the hyper-parameters with its tuning trials, and what else tells budgets apart")
"""Column of the budgets. Ranks, ties and marks are among the rows of one budget."""


def results_table(budgets: Sequence[DatasetFacts], anchor: str, costs: Mapping[Contender, CostRow]) -> Table:
    """Table of results of one data set, one budget after the other, best mean MAP@R first.

    Args:
        budgets: The data set at each of its budgets, the leading one first.
        anchor: Id of the table.
        costs: What the results of each method took.
    """
    shown = [column for column in COMPARED if column.metric in _SHOWN]
    columns = (
        Column("method", "name of the method; in parentheses the base that its head is trained on"),
        BUDGET,
        Column("rank", "ranks by MAP@R that the paired seeds leave possible, all methods of a budget at once", True),
        Column("ties", "methods that share a letter are not told apart"),
        Column("kind", "whether the embedding is a distribution or a point"),
        *(Column(column.title, "mean ± SD over seeds", True) for column in shown),
        *(
            Column(f"own confidence − best free one, {images}", "AUROC before there is a gallery, in points", True)
            for images in IMAGES.values()
        ),
        *(
            Column(title, "risk of wrong answers by the default confidence, lower is better", True)
            for title, _ in _AUGRC
        ),
        Column("tuning trainings", "trainings spent on tuning, those of the base included", True),
        Column("networks", "trained networks behind one result; an ensemble embeds images with each of them", True),
        Column("ms per image", "time to read and embed a test image, mean over seeds", True),
        Column("seeds", "number of seeds", True),
        Column("network", "backbone and size of the embedding"),
    )
    lines = [(facts, row) for facts in budgets for row in facts.rows]
    rows = tuple(
        Row(facts.anchors[row.contender], tuple(_result_cells(facts, row, shown, costs))) for facts, row in lines
    )
    name = budgets[0].name
    return Table(
        anchor,
        f"{name}: results per method",
        columns,
        rows,
        tuple([*_gaps(columns, rows), *_fixed(budgets)]),
        csv_uri(comparison_frame(row for _, row in lines)),
    )


def _result_cells(
    facts: DatasetFacts, row: ComparisonRow, shown: Sequence[ComparedColumn], costs: Mapping[Contender, CostRow]
) -> Iterator[Cell]:
    group, interval = facts.groups[row.contender], row.rank.interval
    label = facts.labels[row.contender]
    yield Cell(label, label, href=facts.anchors[row.contender])
    yield text_cell(facts.budget_text)
    place = interval.low + interval.high / 1000 if interval else float("nan")
    yield number_cell(place, row.rank.text, row.rank.reason or row.rank.seeds)
    yield text_cell(interval.ties if interval else "", row.rank.reason)
    yield text_cell("probabilistic" if facts.is_probabilistic(row) else "deterministic")
    for column, value, mark in zip(COMPARED, row.values, row.marks):
        if column in shown:
            yield _mean_cell(value, column.percent, mark)
    for split in IMAGES:
        yield _gain_cell(facts, row.contender, split)
    for _, column in _AUGRC:
        yield _mean_cell(SeedStatistics.of(group.column(column)), column.percent)
    yield number_cell(row.trainings, str(row.trainings))
    models = facts.models[row.contender]
    yield number_cell(models, str(models))
    speed = costs[row.contender].ms_per_image if row.contender in costs else None
    yield number_cell(float("nan") if speed is None else speed, f"{speed or 0:.3g}", "" if speed else "not recorded")
    yield number_cell(row.seeds, str(row.seeds))
    yield text_cell(row.contender.network)


def _mean_cell(value: SeedStatistics, percent: bool, mark: Mark | None = None) -> Cell:
    style = " ".join(["best"] * mark.best + ["beats"] * mark.beats_deterministic) if mark else ""
    note = "" if value.complete else f"{value.defined} of {value.seeds} seeds have a value"
    return number_cell(value.mean, value.text(percent), note, style)


def _gain_cell(facts: DatasetFacts, contender: Contender, split: str) -> Cell:
    for each in facts.verdicts:
        if (each.contender, each.split, each.question) == (contender, split, "before_gallery"):
            mean = each.difference.mean if each.difference else float("nan")
            mark = each.verdict.replace(" ", "-")
            return number_cell(mean, each.texts.difference, each.texts.verdict, mark)
    return Cell(GAP, mark="gap", note="no verdict")


def _gaps(columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[str]:
    """Paragraph for the columns that have no value in some row, with the reasons; methods once, at any budget."""
    found: dict[str, list[str]] = {}
    for index, column in enumerate(columns):
        reasons: dict[str, list[str]] = {}
        for row in rows:
            if row.cells[index].mark == "gap":
                reasons.setdefault(row.cells[index].note or "no value", []).append(_named_row(row, rows))
        texts = [f"{'all' if len(names) == len(rows) else ', '.join(names)} ({why})" for why, names in reasons.items()]
        if texts:
            found.setdefault("; ".join(texts), []).append(column.title)
    for text, titles in found.items():
        yield f"No {' or '.join(titles)}: {text}."


def _fixed(budgets: Sequence[DatasetFacts]) -> Iterator[str]:
    """Paragraph for the fixed settings that all rows have; others are part of the budget."""
    shared, _ = split_pinned([facts.budget.pinned for facts in budgets])
    if shared:
        yield f"Fixed settings of all rows: {shared}."


def _named_row(row: Row, rows: Sequence[Row]) -> str:
    """Name of a row in a note: its method, with its budget if there are several."""
    name, budget = (cell.text for cell in row.cells[:2])
    return name if len({each.cells[1].text for each in rows}) == 1 else f"{name} at {budget}"


def use_table(budgets: Sequence[Words], anchor: str) -> Table:
    """Table of the confidence to use with each method of a data set.

    Args:
        budgets: The verdicts on the data set, one for each budget.
        anchor: Id of the table.
    """
    # In the order of the questions, and in each of them of the images, whichever budget has them.
    places = [
        (question, images)
        for question in QUESTIONS
        for images in IMAGES.values()
        if any(tally.images == images for words in budgets for tally in words.tallies[question])
    ]
    columns = [Column("method", "name of the method"), BUDGET]
    columns += [Column(f"{QUESTIONS[question]}, {images}", "use this") for question, images in places]
    lines, rows = [], []
    for words in budgets:
        facts = words.facts
        for row in facts.rows:
            advised = [words.advice(row.contender, question, images) for question, images in places]
            label = facts.labels[row.contender]
            head = Cell(label, label, href=facts.anchors[row.contender]), text_cell(facts.budget_text)
            rows.append(Row("", (*head, *map(_advice_cell, advised))))
            line = {"method": label, "budget": facts.budget_text}
            lines.append(line | {c.title: each.use for c, each in zip(columns[2:], advised)})
    name, frame = budgets[0].facts.name, pd.DataFrame(lines)
    return Table(anchor, f"{name}: confidence to use", tuple(columns), tuple(rows), (), csv_uri(frame))


def _advice_cell(each: Advice) -> Cell:
    if each.state == "open":
        return Cell(GAP, mark="gap", note=each.reason)
    caveat = f"; {each.caveat}" if each.caveat else ""
    ends = {
        **dict.fromkeys(("own", "alike"), f" ({each.own} over {each.over}{caveat})"),
        "free": f" ({each.best} {each.own}, not worth it)",
        "undecided": f" ({each.best} {each.own}, undecided)",
        "none": "",
    }
    return Cell(f"{named(each.use)} {each.auroc}{ends[each.state]}", f"{each.state} {each.use}", each.state)


def verdict_table(budgets: Sequence[DatasetFacts], anchor: str, names: Sequence[str]) -> Table:
    """Table of all verdicts on the confidences of one data set.

    Args:
        budgets: The data set at each of its budgets.
        anchor: Id of the table.
        names: Ids of the rows.
    """
    columns = (
        Column("method"),
        BUDGET,
        Column("question"),
        Column("images"),
        Column(
            "confidence", "(ranks): mean of the ranks of the two; (fitted): logistic regression on validation classes"
        ),
        Column("its AUROC", "in percent, mean over seeds", True),
        Column("best free one", "chosen on validation classes; in brackets: best on test, if validation cannot choose"),
        Column("difference", "mean over paired seeds [95 % t-interval], points", True),
        Column("seeds", "paired seeds", True),
        Column("verdict", "worth it if the interval lies above 0, not worth it if below"),
    )
    lines = [(facts, each) for facts in budgets for each in facts.verdicts]
    rows = tuple(Row(name, tuple(_verdict_cells(facts, each))) for name, (facts, each) in zip(names, lines))
    frame = verdict_frame([each for _, each in lines])
    return Table(anchor, f"{budgets[0].name}: verdicts on confidences", columns, rows, (), csv_uri(frame))


def _verdict_cells(facts: DatasetFacts, each: Verdict) -> Iterator[Cell]:
    texts, label = each.texts, facts.labels[each.contender]
    yield Cell(label, label, href=facts.anchors[each.contender])
    yield text_cell(facts.budget_text)
    yield text_cell(QUESTIONS[each.question])
    yield text_cell(IMAGES.get(each.split, each.split.removeprefix("test_")))
    yield text_cell(named(each.challenger))
    yield number_cell(each.challenger_mean, texts.own)
    yield text_cell(texts.free)
    nan = float("nan")
    yield number_cell(each.difference.mean if each.difference else nan, texts.difference)
    yield number_cell(each.difference.n if each.difference else nan, str(each.difference.n) if each.difference else "")
    yield Cell(texts.verdict, texts.verdict, each.verdict.replace(" ", "-"))


def forms_table(dataset: str, rows: pd.DataFrame, anchor: str) -> Table:
    """Table of the corrected form of each method of a data set minus the form that a public code computes.

    Args:
        dataset: Name of the data set.
        rows: Its rows of :func:`~bench.report.fidelity.fidelity_table`.
        anchor: Id of the table.
    """
    columns = tuple(Column(column.title, column.note, column.number) for column in FORM_COLUMNS)
    shown = []
    for form in rows_of(rows)[1]:
        cells = [column.of(form) for column in FORM_COLUMNS]
        shown.append(Row("", tuple(Cell(GAP, mark="gap") if c.is_gap else Cell(c.text, c.sort) for c in cells)))
    caption = (
        f"{dataset}: methods as their papers say (corrected) and as public code computes them; the verdict is on the"
        " corrected form, with p-values adjusted over these methods (the intervals are not)"
    )
    return Table(anchor, caption, columns, tuple(shown), (), csv_uri(rows))


def open_table(budgets: Sequence[Words], anchor: str) -> Table:
    """Table of the differences that the seeds do not decide.

    Args:
        budgets: The verdicts on the data set, one for each budget.
        anchor: Id of the table.
    """
    columns = (
        Column("method"),
        BUDGET,
        Column("what"),
        Column("difference", "points, mean over paired seeds [95 % t-interval]", True),
        Column("decision", "of this pair alone; paired seeds that it needs in all", True),
    )
    lines = [(words.facts, each) for words in budgets for each in words.open]
    rows = tuple(Row("", tuple(_open_cells(facts, each))) for facts, each in lines)
    numbers = [
        {"method": facts.labels[each.contender], "budget": facts.budget_text, "what": each.what}
        | {"difference": each.difference.mean, "seeds_needed": each.difference.needed}
        | {"decision": each.difference.decision}
        for facts, each in lines
    ]
    name = budgets[0].facts.name
    return Table(anchor, f"{name}: not decided", columns, rows, (), csv_uri(pd.DataFrame(numbers)))


def _open_cells(facts: DatasetFacts, each: Open) -> Iterator[Cell]:
    label = facts.labels[each.contender]
    yield Cell(label, label, href=facts.anchors[each.contender])
    yield text_cell(facts.budget_text)
    yield text_cell(each.what)
    yield number_cell(each.difference.mean, each.difference.text)
    yield Cell(each.difference.decision, f"{each.difference.needed}".replace("nan", ""))
