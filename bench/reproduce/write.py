"""Tables next to published numbers as CSV, Markdown, LaTeX and text on the terminal."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from ..errors import printable
from ..report.escape import csv_text, latex_text, markdown_text
from ..report.terminal import new_table, plain
from ..store.files import write_atomic
from .table import NOTHING, UNPUBLISHED, Cell, Table


def write_table(table: Table, out: Path) -> list[Path]:
    """Write a reproduced table as ``DATASET.csv``, ``.md`` and ``.tex``; the same table gives the same files.

    Args:
        table: The table.
        out: Folder for the files.

    Returns:
        Paths of the files.
    """
    texts = {
        ".csv": csv_text(to_frame(table)),
        ".md": to_markdown(table),
        ".tex": to_latex(table),
    }
    written = []
    for suffix, text in texts.items():
        path = out / f"{table.dataset}{suffix}"
        write_atomic(path, text.encode())
        written.append(path)
    return written


def to_frame(table: Table) -> pd.DataFrame:
    """Long form of a reproduced table: one row per cell that has a value of ours or a published one.

    Columns are ``name`` of the table, ``dataset``, the titles ``row`` and ``column``; our ``ours_mean``, ``ours_sd``
    and ``ours_seeds`` (number of seeds); ``published_mean`` and ``published_sd``; method and setting of our run;
    ``differs`` (how our set-up differs from the paper's) and ``published_note``, which is ``no published value`` for a
    value of ours that the paper has no number for.
    """
    lines = []
    for line in table.lines:
        contender = line.run.contender._asdict() if line.run else {}
        for column, cell in zip(table.columns, line.cells):
            ours, published = cell.ours, cell.published
            if ours is None and published is None:
                continue
            lines.append(
                {
                    "name": table.named.name,
                    "dataset": table.dataset,
                    "row": line.title,
                    "column": column.title,
                    "ours_mean": ours.mean if ours else None,
                    "ours_sd": ours.sd if ours else None,
                    "ours_seeds": ours.defined if ours else None,
                    "published_mean": published.mean if published else None,
                    "published_sd": published.sd if published else None,
                    **{key: value for key, value in contender.items() if key not in ("dataset", "ensemble")},
                    "differs": table.differs,
                    "published_note": published.note if published else UNPUBLISHED,
                }
            )
    return pd.DataFrame(lines)


def _text(cell: Cell, compared: bool) -> str:
    """``ours | published``; ours alone where nothing was published for the whole table."""
    if not compared:
        return cell.our_text
    if cell.our_text == cell.published_text == NOTHING:
        return NOTHING
    return f"{cell.our_text} | {cell.published_text}"


def to_markdown(table: Table) -> str:
    """Render a reproduced table as a Markdown page.

    The page has the question that the table answers, the table, and remarks: differences between our set-up and the
    paper's, notes on published numbers, and rows left out (:attr:`~bench.reproduce.table.Table.remarks`).
    """
    named = table.named
    # A bar would end the cell.
    rows = [
        [markdown_text(line.title), *(_text(cell, table.compared).replace("|", "\\|") for cell in line.cells)]
        for line in table.lines
    ]
    titles = ["", *(markdown_text(column.title) for column in table.columns)]
    head = [f"{named.name} on {table.dataset}", "", f"{named.paper.title}. {named.item.title}.", named.item.asks, ""]
    out = [f"# {markdown_text(head[0])}", *map(markdown_text, head[1:])]
    out += [_legend(table), "", f"| {' | '.join(titles)} |", "|---" + "|---:" * len(table.columns) + "|"]
    out += [f"| {' | '.join(row)} |" for row in rows]
    out += ["", *(f"* {markdown_text(text)}" for text in table.remarks), ""]
    return "\n".join(out)


def _legend(table: Table) -> str:
    if not table.compared:
        return "Mean ± SD over seeds. No value was published to put next to ours."
    return f"Ours | published, mean ± SD over seeds; {NOTHING} is no value of ours, or {UNPUBLISHED}."


def to_latex(table: Table) -> str:
    """Render a reproduced table in LaTeX (booktabs), with remarks below it.

    Remarks are differences between our set-up and the paper's, notes on published numbers, and rows left out
    (:attr:`~bench.reproduce.table.Table.remarks`).
    """
    named = table.named
    caption = f"{named.item.title} ({table.dataset}). {_legend(table)}"
    out = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{latex_text(caption)}}}",
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "\\toprule",
        " & ".join(["", *(latex_text(column.title) for column in table.columns)]) + " \\\\",
        "\\midrule",
    ]
    for line in table.lines:
        texts = [line.title, *(_text(cell, table.compared) for cell in line.cells)]
        out.append(" & ".join(map(latex_text, texts)) + " \\\\")
    out += ["\\bottomrule", "\\end{tabular}", "\\par\\raggedright\\footnotesize"]
    out += [f"{latex_text(text)}.\\par" for text in table.remarks]
    return "\n".join([*out, "\\end{table}", ""])


def print_table(table: Table, console: Console) -> None:
    """Print a reproduced table, and remarks below it.

    Remarks are differences between our set-up and the paper's, notes on published numbers, and rows left out
    (:attr:`~bench.reproduce.table.Table.remarks`).
    """
    named = table.named
    title = f"{named.name} on {table.dataset}: {named.item.asks}\n{_legend(table)}"
    shown = new_table(Text(title))
    shown.add_column("")
    shown.add_column("ours")
    for column in table.columns:
        shown.add_column(plain(column.title), justify="right")
    for line in table.lines:
        texts = [line.title, line.ours, *(_text(cell, table.compared) for cell in line.cells)]
        shown.add_row(*map(plain, texts))
    console.print(shown)
    for text in table.remarks:
        console.print(f"* {printable(text)}", highlight=False, markup=False, soft_wrap=True)
