"""Tables as texts, written as Markdown and as LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .escape import latex_text, markdown_text

PACKAGES = "% needs \\usepackage{booktabs,graphicx}"
"""First line of a LaTeX file: the packages that its tables need."""


@dataclass(frozen=True)
class Styled:
    """A text of a cell with its emphasis."""

    text: str
    bold: bool = False
    underlined: bool = False


@dataclass(frozen=True)
class TextTable:
    """A table as texts, which are escaped when it is written.

    Attributes:
        title: Heading in Markdown, beginning of the caption in LaTeX.
        columns: Headings of the columns.
        rows: Texts of the cells, row by row.
        labels: Number of columns, from the first, that are aligned to the left.
        notes: Paragraphs below the table.
        caption: Rest of the caption in LaTeX, a sentence.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | Styled, ...], ...]
    labels: int = 1
    notes: tuple[str, ...] = ()
    caption: str = ""

    def without_shared(self, always: Iterable[str] = ()) -> TextTable:
        """The table without label columns that have one text in all rows, which the caption says instead.

        Args:
            always: Headings of columns that stay.
        """
        kept, said = [], []
        for place, heading in enumerate(self.columns):
            texts = {_text(row[place]) for row in self.rows}
            if place >= self.labels or heading in always or len(texts) > 1:
                kept.append(place)
            elif (text := texts.pop()) not in ("", "-"):
                said.append(f"{heading} {text}")
        caption = f"{self.caption} In all rows: {'; '.join(said)}." if said else self.caption
        labels = sum(place < self.labels for place in kept)
        rows = tuple(tuple(row[place] for place in kept) for row in self.rows)
        columns = tuple(self.columns[place] for place in kept)
        return TextTable(self.title, columns, rows, labels, self.notes, caption.strip())


def _text(cell: str | Styled) -> str:
    return cell.text if isinstance(cell, Styled) else cell


def markdown_page(heading: str, introduction: str, tables: Sequence[TextTable]) -> str:
    """A page of tables in Markdown.

    Args:
        heading: Heading of the page.
        introduction: Paragraph below it, in Markdown.
        tables: The tables, each with a heading of its own.
    """
    out = [f"# {heading}", "", introduction, ""]
    for table in tables:
        out += [f"## {markdown_text(table.title)}", ""]
        out += ["| " + " | ".join(map(markdown_text, table.columns)) + " |", "|" + "---|" * len(table.columns)]
        out += ["| " + " | ".join(_styled(cell, markdown_text, _MARKDOWN) for cell in row) + " |" for row in table.rows]
        out += ["", *(line for note in table.notes for line in (markdown_text(note), ""))]
    return "\n".join(out)


def latex_page(tables: Sequence[TextTable]) -> str:
    """Tables in LaTeX (booktabs); one that is wider than the text is scaled down to its width.

    Args:
        tables: The tables, each with a caption of its own.
    """
    return "\n".join([PACKAGES, *(line for table in tables for line in _latex(table))])


def page_texts(
    heading: str, introduction: str, tables: Sequence[TextTable], always: Iterable[str] | None = None
) -> dict[str, str]:
    """Tables in Markdown and LaTeX, by ending of the file.

    Args:
        heading: Heading of the page in Markdown.
        introduction: Paragraph below it, in Markdown.
        tables: The tables, each with a heading and a caption of its own.
        always: In LaTeX, label columns with one text in all rows are left out, except these; None leaves out none.
    """
    brief = tables if always is None else [table.without_shared(always) for table in tables]
    return {".md": markdown_page(heading, introduction, tables), ".tex": latex_page(brief)}


def _latex(table: TextTable) -> list[str]:
    caption = latex_text(table.title) + (f": {latex_text(table.caption)}" if table.caption else "")
    out = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{caption}}}",
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
        f"\\begin{{tabular}}{{{'l' * table.labels}{'r' * (len(table.columns) - table.labels)}}}",
        "\\toprule",
        " & ".join(map(latex_text, table.columns)) + " \\\\",
        "\\midrule",
    ]
    out += [" & ".join(_styled(cell, latex_text, _LATEX) for cell in row) + " \\\\" for row in table.rows]
    out += ["\\bottomrule", "\\end{tabular}}"]
    out += ["\\par\\smallskip\\raggedright\\footnotesize"] if table.notes else []
    return [*out, *(f"{latex_text(note)}\\par" for note in table.notes), "\\end{table}", ""]


_MARKDOWN = ("**{}**", "<u>{}</u>")
_LATEX = ("\\textbf{{{}}}", "\\underline{{{}}}")


def _styled(cell: str | Styled, escape: Callable[[str], str], styles: tuple[str, str]) -> str:
    text = escape(_text(cell))
    if isinstance(cell, Styled):
        text = styles[0].format(text) if cell.bold else text
        text = styles[1].format(text) if cell.underlined else text
    return text
