"""The comparison as Markdown and LaTeX."""

from __future__ import annotations

from .comparison import HEAD, Comparison, ComparisonRow
from .seeds import COMPARED

NOTE = (
    "Mean ± SD over seeds (ddof 1). Percent, except the rank correlation `Crop rho` between confidence and crop size. "
    "AURC (on crops): lower is better. `trainings`: tuning trials of the method and of its base. `[4/5]`: one of five "
    "seeds gave every image the same confidence, which has no rank correlation. `sep.`: mean over the models of a "
    "cross-validation; `conc.`: their embeddings side by side."
)

_LATEX = str.maketrans({c: f"\\{c}" for c in "_%&#$"})
_SYMBOLS = {"±": "$\\pm$", ">": "$>$", "|": "$\\mid$", "^": "\\^{}"}


def latex_text(text: str) -> str:
    r"""Escape the characters that LaTeX would take for commands, and write signs such as ± in math mode.

    Example:
        >>> latex_text("a_b > 1 ± 2 %")
        'a\\_b $>$ 1 $\\pm$ 2 \\%'
    """
    escaped = text.translate(_LATEX)
    for sign, command in _SYMBOLS.items():
        escaped = escaped.replace(sign, command)
    return escaped


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
        out += [f"## {dataset}", "", "| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
        out += ["| " + " | ".join([*row.labels, *_markdown_values(row)]) + " |" for row in group]
        out.append("")
    return "\n".join(out)


def _markdown_values(row: ComparisonRow) -> list[str]:
    texts = []
    for column, value, mark in zip(COMPARED, row.values, row.marks):
        text = value.text(column.percent)
        text = f"**{text}**" if mark.best else text
        texts.append(f"<u>{text}</u>" if mark.beats_deterministic else text)
    return texts


def to_latex(rows: Comparison) -> str:
    """Render the comparison of methods as LaTeX tables (booktabs), one per data set.

    The best values are bold. Values of probabilistic methods that beat every deterministic method are underlined.

    Args:
        rows: Rows by data set, as :func:`~bench.report.comparison.comparison` makes them.
    """
    out = ["% needs \\usepackage{booktabs}"]
    titles = [*HEAD, *(column.title.replace(">", "$>$") for column in COMPARED)]
    for dataset, group in rows.items():
        out += [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{dataset.translate(_LATEX)}: mean $\\pm$ SD over seeds; bold: best; underlined: better"
            " than every deterministic method.}",
            "\\begin{tabular}{lllllll" + "r" * len(COMPARED) + "}",
            "\\toprule",
            " & ".join(titles) + " \\\\",
            "\\midrule",
        ]
        for row in group:
            labels = [label.translate(_LATEX) for label in row.labels]
            out.append(" & ".join([*labels, *_latex_values(row)]) + " \\\\")
        out += ["\\bottomrule", "\\end{tabular}", "\\end{table}", ""]
    return "\n".join(out)


def _latex_values(row: ComparisonRow) -> list[str]:
    texts = []
    for column, value, mark in zip(COMPARED, row.values, row.marks):
        text = value.text(column.percent).replace("±", "$\\pm$")
        text = f"\\textbf{{{text}}}" if mark.best else text
        texts.append(f"\\underline{{{text}}}" if mark.beats_deterministic else text)
    return texts
