"""The comparison and the verdicts as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .budgets import unequal_text
from .comparison import HEAD, Comparison, ComparisonRow, parts
from .ranks import unranked_text
from .seeds import COMPARED
from .text_table import Styled, TextTable, latex_page, markdown_page
from .verdicts import ABOUT_VERDICTS, IMAGES, ON_TEST, QUESTIONS, Verdict

NOTE = (
    "Mean ± SD over seeds (ddof 1). Percent, except the rank correlation `Crop rho` between confidence and crop size. "
    "AURC (on crops): lower is better. `trainings`: tuning trials of the method and of its base. `[4/5]`: one of five "
    "seeds gave every image the same confidence, which has no rank correlation. `sep.`: mean over the models of a "
    "cross-validation; `conc.`: their embeddings side by side; `ens.`: the models of all seeds of a base as one. "
    "`rank`: ranks by MAP@R that the paired seeds leave possible, for all methods at once with 95 % confidence, among "
    "those of one protocol, preset and ensemble; methods that share a letter in `ties` are not told apart."
)


CAPTION = (
    "mean ± SD over seeds; bold: best; underlined: better than every deterministic method; rank: 95 % interval by MAP@R"
    " over paired seeds; ties: methods that share a letter are not told apart."
)
"""Caption of the comparison in LaTeX, after the name of the data set."""

SEVERAL_BUDGETS = (
    "A data set with results at several budgets (source of the hyper-parameters, trials, fixed settings, network, form"
    " of the methods) has a table for each, the leading one first: ranks, bold and underlined are within a table."
)
"""Rest of the introduction if a data set has several tables."""


def to_markdown(rows: Comparison, untested: Mapping[str, Sequence[str]] | None = None) -> str:
    """Render the comparison of methods as Markdown, one table per data set and budget.

    The best values are bold. Values of probabilistic methods that beat every deterministic method are underlined.

    Args:
        rows: Rows by data set, as :func:`~bench.report.comparison.comparison` makes them.
        untested: Methods without a finished test, by data set, which a footnote names.
    """
    introduction = NOTE + " **Bold**: best. <u>Underlined</u>: better than every deterministic method."
    introduction += f" {SEVERAL_BUDGETS}" if any(part.budget for part in parts(rows)) else ""
    return markdown_page("Comparison", introduction, _comparison_tables(rows, untested or {}))


def to_latex(rows: Comparison, untested: Mapping[str, Sequence[str]] | None = None) -> str:
    """Render the comparison of methods as LaTeX tables (booktabs), one per data set and budget.

    The best values are bold. Values of probabilistic methods that beat every deterministic method are underlined. What
    all rows share is in the caption.

    Args:
        rows: Rows by data set, as :func:`~bench.report.comparison.comparison` makes them.
        untested: Methods without a finished test, by data set, which a footnote names.
    """
    return latex_page(
        [table.without_shared(("method", "rank", "ties")) for table in _comparison_tables(rows, untested or {})]
    )


def _comparison_tables(rows: Comparison, untested: Mapping[str, Sequence[str]]) -> list[TextTable]:
    columns = (*HEAD, *(column.title for column in COMPARED))
    left = dict(untested)
    return [
        TextTable(
            title=part.title,
            columns=columns,
            rows=tuple((*_labels(row), *_values(row)) for row in part.rows),
            labels=len(HEAD),
            notes=(*_notes(part.rows), *([f"No finished test: {', '.join(lost)}."] if lost else [])),
            caption=CAPTION,
        )
        for part in parts(rows)
        for lost in [left.pop(part.dataset, ())]  # below the first table of the data set
    ]


def _labels(row: ComparisonRow) -> list[str]:
    """Labels of a row; the name of one with an unequal budget has a star."""
    return [f"{row.label} *" if row.unequal else row.label, *row.labels[1:]]


def _notes(rows: Sequence[ComparisonRow]) -> tuple[str, ...]:
    """Paragraphs that name the rows without a rank, nothing for a single row, and those with unequal budgets."""
    text = unranked_text((row.label, row.rank) for row in rows) if len(rows) > 1 else ""
    unequal = unequal_text([row.label for row in rows], [row.unequal for row in rows])
    return (*([f"No rank: {text}."] if text else []), *([f"* Unequal budget: {unequal}."] if unequal else []))


def _values(row: ComparisonRow) -> list[Styled]:
    return [
        Styled(value.text(column.percent), bold=mark.best, underlined=mark.beats_deterministic)
        for column, value, mark in zip(COMPARED, row.values, row.marks)
    ]


def verdicts_markdown(answers: Sequence[Verdict]) -> str:
    """Render the verdicts about learned confidences as Markdown, one table per data set, split and question.

    Args:
        answers: Verdicts, as :func:`~bench.report.verdicts.verdicts` makes them.
    """
    introduction = f"{ABOUT_VERDICTS} {ON_TEST}. Percent.".replace("\n", " ")
    return markdown_page("Verdicts", introduction, _verdict_tables(answers))


def verdicts_latex(answers: Sequence[Verdict]) -> str:
    """Render the verdicts about learned confidences as LaTeX tables, one per data set, split and question.

    Args:
        answers: Verdicts, as :func:`~bench.report.verdicts.verdicts` makes them.
    """
    tables = _verdict_tables(answers)
    return latex_page([table.without_shared(("method", "confidence")) for table in tables])


def _verdict_tables(answers: Sequence[Verdict]) -> list[TextTable]:
    columns = (*HEAD[:4], "confidence", "own", "best free", "own - free", "seeds", "verdict")
    places = dict.fromkeys((each.contender.dataset, each.split, each.question) for each in answers)
    tables = []
    for place in places:
        dataset, split, question = place
        heading = f"{dataset}, {IMAGES.get(split, split.removeprefix('test_'))}, {QUESTIONS[question]}"
        rows = [each for each in answers if (each.contender.dataset, each.split, each.question) == place]
        caption = f"{ABOUT_VERDICTS}. Percent.".replace("\n", " ")
        tables.append(TextTable(heading, columns, tuple(map(_verdict_cells, rows)), 5, caption=caption))
    return tables


def _verdict_cells(each: Verdict) -> tuple[str, ...]:
    contender, texts = each.contender, each.texts
    seeds = str(each.difference.n) if each.difference else "-"
    head = (contender.label, contender.network, contender.tuning, contender.pinned.text, each.challenger or "-")
    return (*head, texts.own, texts.free, texts.difference or "-", seeds, texts.verdict)
