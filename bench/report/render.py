"""Renderers: the functions that write a table as CSV, as Markdown, as LaTeX, on a terminal and as HTML.

Names of confidences, files, settings and classes and the reasons of failures come from users, plug-ins and files. None
of them may end a cell, start a command or become a formula.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ..errors import printable
from ..store.files import write_atomic
from ..store.specs import Pinned
from .table import Cell, Document, Table

if TYPE_CHECKING:
    import pandas as pd
    from jinja2 import Environment
    from markupsafe import Markup

PACKAGES = "% needs \\usepackage{booktabs,graphicx}"
"""First line of a LaTeX file: the packages that its tables need."""


_LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "_%&#${}"},
        "\\": "\\textbackslash{}",
        "^": "\\^{}",
        "~": "\\textasciitilde{}",
        "<": "$<$",
        ">": "$>$",
        "|": "$\\mid$",
        "±": "$\\pm$",
        "†": "\\textsuperscript{\\dag}",
        "↓": "$\\downarrow$",
    }
)

_FORMULA = tuple("=+-@")
"""Characters with which a text starts that spreadsheets take for a formula."""


def latex_text(text: str) -> str:
    r"""Escape the characters that LaTeX would take for commands, and write signs such as ± in math mode.

    Example:
        >>> latex_text("a_b > 1 ± 2 %")
        'a\\_b $>$ 1 $\\pm$ 2 \\%'
    """
    text = printable(text)
    escaped = text.translate(_LATEX)
    # After the end of a row these would be its arguments.
    return f"{{{escaped[0]}}}{escaped[1:]}" if text[:1] in ("[", "*") else escaped


def markdown_text(text: str) -> str:
    r"""Escape the characters that Markdown or HTML would take for markup; underscores inside words are none.

    Example:
        >>> markdown_text("proxy_anchor [released] | *x* <b> _y_")
        'proxy_anchor [released] \\| \\*x\\* &lt;b> \\_y\\_'
    """
    text = re.sub(r"[\\`*|~$]", r"\\\g<0>", printable(text).strip())
    text = re.sub(r"&(?=[#\w])", "&amp;", text).replace("<", "&lt;")
    text = re.sub(r"\](?=[(\[:])", r"\\]", text)
    text = re.sub(r"(?<![^\W_])_+|_+(?![^\W_])", lambda found: "\\_" * len(found[0]), text)
    # At the start of a line these make headings, lists, quotations and rules.
    return re.sub(r"^(\d*)(>|[#+=.)-](?=[\s#=+-]|$))", r"\1\\\2", text)


def to_csv(frame: pd.DataFrame) -> str:
    """A table as CSV in which no text is a formula or several lines.

    A text that starts like a formula gets an apostrophe in front of it, unless it is a number or a lone dash. Control
    characters are shown as escapes, line breaks as spaces.

    Example:
        >>> import pandas as pd
        >>> to_csv(pd.DataFrame({"name": ["=1+1", "-", "a", "-0.5"], "value": [-1.0, 2.0, 3.0, 4.0]})).split()
        ['name,value', "'=1+1,-1.0", '-,2.0', 'a,3.0', '-0.5,4.0']
    """
    import pandas as pd

    parts: list[tuple[np.ndarray, list[str]]] = []
    for _, column in frame.items():
        own, names = _by_kind(column)
        if parts and len(names) * 8 < len(frame):
            # Neighbours of few kinds become one column, so that far fewer texts are joined: a third of pandas' time.
            last, kinds = parts[-1]
            both, places = pd.factorize(last * len(names) + own)
            if len(places) * 8 < len(frame):
                pairs = zip(*np.divmod(places, len(names)))
                parts[-1] = both, [f"{kinds[first]},{names[second]}" for first, second in pairs]
                continue
        parts.append((own, names))
    texts = [np.array(kinds, dtype=object) for _, kinds in parts]
    blocks = [",".join(csv_text(name) for name in frame.columns)]
    for start in range(0, len(frame), 100_000):  # all lines at once would take twice the memory
        columns = (text[codes[start : start + 100_000]] for text, (codes, _) in zip(texts, parts))
        blocks.append("\n".join(map(",".join, zip(*columns))))
    return "\n".join([*blocks, ""])


def _by_kind(column: pd.Series[Any]) -> tuple[np.ndarray, list[str]]:
    """Kinds of values of a column as texts of a CSV, and the place among them of every row's."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype | pd.StringDtype) or column.dtype.kind in "iub":
        codes, found = pd.factorize(column, use_na_sentinel=True)
        return np.where(codes < 0, len(found), codes), [*map(csv_text, found), ""]
    # Zeros of both signs, and 1 and 1.0 among objects, are one kind but different texts.
    text: Callable[[Any], str] = repr if column.dtype.kind == "f" else csv_text
    return np.arange(len(column)), ["" if each is None or each != each else text(each) for each in column.tolist()]


def csv_text(value: object) -> str:
    """A value as a cell of a CSV file: no formula, and one line."""
    text = str(_harmless(value))
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\r\n') else text


def _harmless(text: object) -> object:
    if isinstance(text, Pinned):
        text = text.text
    if not isinstance(text, str):
        return text
    text = printable(text)
    if not text.lstrip().startswith(_FORMULA) or text == "-":
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def to_markdown(table: Table) -> str:
    """A table in Markdown, without its title and notes."""
    lines = [[markdown_text(column.title) for column in table.columns], ["---"] * len(table.columns)]
    lines += [[_emphasised(cell, markdown_text, "**{}**", "<u>{}</u>") for cell in row.cells] for row in table.rows]
    head, rule, *rows = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, rule.replace(" ", ""), *rows])


def to_latex(table: Table) -> str:
    """A table in LaTeX (booktabs) with its caption and notes; one that is wider than the text is scaled down."""
    caption = latex_text(table.title) + (f": {latex_text(table.caption)}" if table.caption else "")
    alignment = "".join("l" if column.label else "r" for column in table.columns)
    out = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{caption}}}",
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
        f"\\begin{{tabular}}{{{alignment}}}",
        "\\toprule",
        " & ".join(latex_text(column.title) for column in table.columns) + " \\\\",
        "\\midrule",
    ]
    for row in table.rows:
        cells = [_emphasised(cell, latex_text, "\\textbf{{{}}}", "\\underline{{{}}}") for cell in row.cells]
        out.append(" & ".join(cells) + " \\\\")
    out += ["\\bottomrule", "\\end{tabular}}"]
    out += ["\\par\\smallskip\\raggedright\\footnotesize"] if table.notes else []
    return "\n".join([*out, *(f"{latex_text(note)}\\par" for note in table.notes), "\\end{table}", ""])


def _emphasised(cell: Cell, escape: Callable[[str], str], bold: str, underlined: str) -> str:
    text = escape(cell.text)
    text = bold.format(text) if cell.bold else text
    return underlined.format(text) if cell.underlined else text


def print_table(table: Table, console: Console) -> None:
    """Print a table with its notes; if it is too wide even without gaps, labels are folded, since they may wrap."""
    shown = _for_terminal(table)
    if _width(shown, console) > console.width:
        shown.padding = 0
    console.print(shown)
    if table.notes:
        console.print(Text("\n".join(map(printable, table.notes))))
        console.print()


def fits(table: Table, console: Console) -> bool:
    """True if a table fits a terminal, without gaps if need be, and no label has to be folded."""
    shown = _for_terminal(table)
    shown.padding = 0
    return _width(shown, console) <= console.width


def _width(shown: RichTable, console: Console) -> int:
    return console.measure(shown, options=console.options.update(max_width=1000)).maximum


def _for_terminal(table: Table) -> RichTable:
    shown = RichTable(title=_text(table.title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in table.columns:
        whole = column.number if column.whole is None else column.whole
        shown.add_column(
            _text(column.title),
            justify="right" if column.number and not column.label else "left",
            no_wrap=whole,
            overflow="ellipsis" if whole else "fold",
        )
    for row in table.rows:
        shown.add_row(*map(_styled, row.cells))
    return shown


def _styled(cell: Cell) -> Text:
    return _text(cell.text, " ".join(["bold"] * cell.bold + ["underline"] * cell.underlined))


def _text(text: str, style: str = "") -> Text:
    """A text as it is: brackets in it are no markup, control characters other than line breaks are escaped."""
    return Text("\n".join(map(printable, text.split("\n"))), style=style)


def to_html(table: Table) -> Markup:
    """A table in HTML, with its caption and notes."""
    from markupsafe import Markup  # late: only pages need it, and a template

    return Markup(environment().get_template("table.tmpl").render(t=table).strip())  # escaped by the template


def data_uri(media_type: str, content: bytes) -> str:
    """Content of a file as a URI, such as the source of an image that is part of a page (RFC 2397)."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


@cache
def environment() -> Environment:
    """Templates of pages, which escape every text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(__package__, "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )


def files_of(document: Document) -> dict[str, str]:
    """Tables as texts, by name of the file: numbers as CSV, tables for readers as Markdown and LaTeX."""
    texts = {}
    if not document.numbers.empty:
        texts[f"{document.name}.csv"] = to_csv(document.numbers)
    if document.tables:
        parts = [f"# {document.heading}", "", document.introduction, ""]
        for table in document.tables:
            parts += [f"## {markdown_text(table.title)}", "", to_markdown(table), ""]
            parts += [line for note in table.notes for line in (markdown_text(note), "")]
        texts[f"{document.name}.md"] = "\n".join(parts)
        always = document.always
        brief = document.tables if always is None else [table.without_shared(always) for table in document.tables]
        texts[f"{document.name}.tex"] = "\n".join([PACKAGES, *map(to_latex, brief)])
    return texts


def write_file(path: Path, data: bytes) -> None:
    """Write a file of a report, whose folder is made if it is missing, but not the folder around that.

    A results folder that is deleted meanwhile is not made again: without records no run would take it for its own.
    """
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, data)


def write_documents(documents: Iterable[Document], out: Path) -> list[Path]:
    """Write the files of documents to a folder, in the order of their names."""
    texts = {name: text for document in documents for name, text in files_of(document).items()}
    for name, text in sorted(texts.items()):
        write_file(out / name, text.encode())
    return [out / name for name in sorted(texts)]
