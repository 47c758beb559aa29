"""The comparison as Markdown and LaTeX, the verdicts as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .comparison import HEAD, Comparison, ComparisonRow
from .escape import latex_text, markdown_text
from .ranks import unranked_text
from .seeds import COMPARED
from .verdicts import ABOUT_VERDICTS, IMAGES, ON_TEST, QUESTIONS, Verdict

NOTE = (
    "Mean ± SD over seeds (ddof 1). Percent, except the rank correlation `Crop rho` between confidence and crop size. "
    "AURC (on crops): lower is better. `trainings`: tuning trials of the method and of its base. `[4/5]`: one of five "
    "seeds gave every image the same confidence, which has no rank correlation. `sep.`: mean over the models of a "
    "cross-validation; `conc.`: their embeddings side by side; `ens.`: the models of all seeds of a base as one. "
    "`rank`: ranks by MAP@R that the paired seeds leave possible, for all methods at once with 95 % confidence, among "
    "those of one protocol, preset and ensemble; methods that share a letter in `ties` are not told apart."
)


def to_markdown(rows: Comparison) -> str:
    """Render the comparison of methods as Markdown, one table per data set.

    The best values are bold. Values of probabilistic methods that beat every deterministic method are underlined.

    Args:
        rows: Rows by data set, as :func:`~bench.report.comparison.comparison` makes them.
    """
    out = [
        "# Comparison",
        "",
        NOTE + " **Bold**: best. <u>Underlined</u>: better than every deterministic method.",
        "",
    ]
    titles = [*HEAD, *(column.title for column in COMPARED)]
    for dataset, group in rows.items():
        out += [f"## {markdown_text(dataset)}", "", "| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
        out += ["| " + " | ".join([*map(markdown_text, row.labels), *_markdown_values(row)]) + " |" for row in group]
        out += ["", *_unranked(group, "No rank: ", markdown_text)]
    return "\n".join(out)


def _markdown_values(row: ComparisonRow) -> list[str]:
    texts = []
    for column, value, mark in zip(COMPARED, row.values, row.marks):
        text = value.text(column.percent)
        text = f"**{text}**" if mark.best else text
        texts.append(f"<u>{text}</u>" if mark.beats_deterministic else text)
    return texts


def verdicts_markdown(answers: Sequence[Verdict]) -> str:
    """Render the verdicts about learned confidences as Markdown, one table per data set and split of the test images.

    Args:
        answers: Verdicts, as :func:`~bench.report.verdicts.verdicts` makes them.
    """
    out = ["# Verdicts", "", f"{ABOUT_VERDICTS} {ON_TEST}. Percent.".replace("\n", " "), ""]
    titles = [*HEAD[:4], "confidence", "own", "best free", "own - free", "seeds", "verdict"]
    tables = dict.fromkeys((each.contender.dataset, each.split, each.question) for each in answers)
    for place in tables:
        dataset, split, question = place
        heading = f"{dataset}, {IMAGES.get(split, split.removeprefix('test_'))}, {QUESTIONS[question]}"
        out += [f"## {markdown_text(heading)}", "", "| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
        for each in answers:
            if (each.contender.dataset, each.split, each.question) == place:
                out.append("| " + " | ".join(map(markdown_text, _verdict_cells(each))) + " |")
        out.append("")
    return "\n".join(out)


def _verdict_cells(each: Verdict) -> list[str]:
    contender, texts = each.contender, each.texts
    seeds = str(each.difference.n) if each.difference else "-"
    head = [contender.label, contender.network, contender.tuning, contender.pinned, each.challenger or "-"]
    return [*head, texts.own, texts.free, texts.difference or "-", seeds, texts.verdict]


def to_latex(rows: Comparison) -> str:
    """Render the comparison of methods as LaTeX tables (booktabs), one per data set.

    The best values are bold. Values of probabilistic methods that beat every deterministic method are underlined.

    Args:
        rows: Rows by data set, as :func:`~bench.report.comparison.comparison` makes them.
    """
    out = ["% needs \\usepackage{booktabs}"]
    titles = [*HEAD, *(latex_text(column.title) for column in COMPARED)]
    for dataset, group in rows.items():
        out += [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{latex_text(dataset)}: mean $\\pm$ SD over seeds; bold: best; underlined: better"
            " than every deterministic method; rank: 95 \\% interval by MAP@R over paired seeds; ties: methods that"
            " share a letter are not told apart.}",
            "\\begin{tabular}{" + "l" * len(HEAD) + "r" * len(COMPARED) + "}",
            "\\toprule",
            " & ".join(titles) + " \\\\",
            "\\midrule",
        ]
        for row in group:
            out.append(" & ".join([*map(latex_text, row.labels), *_latex_values(row)]) + " \\\\")
        out += ["\\bottomrule", "\\end{tabular}"]
        out += [line for line in _unranked(group, "\\par No rank: ", latex_text) if line]
        out += ["\\end{table}", ""]
    return "\n".join(out)


def _unranked(rows: Sequence[ComparisonRow], start: str, escape: Callable[[str], str]) -> list[str]:
    """Paragraph that names the rows without a rank and why; nothing for a single row or if all have one."""
    text = unranked_text((row.label, row.rank) for row in rows) if len(rows) > 1 else ""
    return [start + escape(text) + ".", ""] if text else []


def _latex_values(row: ComparisonRow) -> list[str]:
    texts = []
    for column, value, mark in zip(COMPARED, row.values, row.marks):
        text = latex_text(value.text(column.percent))
        text = f"\\textbf{{{text}}}" if mark.best else text
        texts.append(f"\\underline{{{text}}}" if mark.beats_deterministic else text)
    return texts
