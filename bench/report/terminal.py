"""Tables on the terminal: the comparison, class splits, systems, paired differences."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console

from ..errors import printable
from ..protocols.rows import RERANKED
from ..store.specs import split_pinned
from .compare import OUTCOMES, Comparison
from .comparison import ALONE, COLUMNS, ComparisonRow, Part, Rows, metric_column, parts
from .contender import COMMON, TUNING, distinct_labels
from .questions import IMAGES, USES
from .render import fits, print_table
from .seeds import ComparedColumn, compared
from .splits import MEAN
from .table import GAP, Cell, Column, Table, cells_table, grouped, headings, label, table_of
from .views import SIDES, split_document, systems_of

if TYPE_CHECKING:
    from .write import Judged

NARROW = 100
"""Width of a terminal, in columns, below which wide columns are left out."""


def print_tables(judged: Judged, console: Console) -> None:
    """Print the comparison of methods, the means over class splits, and which methods are better systems."""
    print_comparison(judged.comparison, console)
    print_splits(judged.splits, console)
    print_answers(judged.systems, console)


def print_comparison(rows: Rows, console: Console) -> None:
    """Print the main columns of the comparison of methods, a table per data set and budget."""
    for part in parts(rows):
        table = _comparison_table(part, console)
        fit = fits(table, console)
        shown = table if fit else table.only(lambda column: column.title != "rank")
        print_table(replace(shown, notes=tuple(_notes(part, fit))), console)


def print_splits(found: Sequence[Comparison], console: Console) -> None:
    """Print means over class splits; differences are in files."""
    for table in split_document([row for row in found if row.question == MEAN]).tables:
        print_table(table, console)


def _comparison_table(part: Part, console: Console) -> Table:
    rows = part.rows
    values = [
        metric_column(place, brief=True)
        for place, column in enumerate(compared())
        if column.brief and (console.width >= NARROW or not column.wide)
    ]
    # What all rows share is said once, in the title: the table has to fit 80 columns.
    common = table_of(COLUMNS, rows, "", place="terminal").shared(("rank",))
    ranked = any(row.rank.interval is not None for row in rows)
    pinned, texts = split_pinned([row.contender.pinned for row in rows])
    own_pinned = {row.contender: text for row, text in zip(rows, texts)}
    backbones = {row.contender.backbone for row in rows}
    backbone = backbones.pop() if len(backbones) == 1 and "network" not in common else ""
    changed: dict[str, Column[ComparisonRow]] = {"pinned": _shown("pinned", lambda row: own_pinned[row.contender])}
    if backbone:
        changed["network"] = _shown("dim", lambda row: row.contender.network.removeprefix(f"{backbone}/"))
    labels = [
        changed.get(column.title, column)
        for column in COLUMNS
        if column.label and column.title not in common and (ranked or column.title != "rank")
    ]
    columns = [_shown("method", lambda row: row.marked), *labels, *values]
    title = "\n".join([_title(part, common, backbone, pinned), *map(printable, part.against)])
    return table_of(columns, rows, title, place="terminal")


def _shown(title: str, text: Callable[[ComparisonRow], str]) -> Column[ComparisonRow]:
    return label(title, text, places=("terminal",))


def _notes(part: Part, fit: bool) -> list[str]:
    if len(part.rows) < 2:
        return part.remarks
    ranked = any(row.rank.interval is not None for row in part.rows)
    meaning = "by MAP@R, 95 % interval over paired seeds" if fit else "in comparison.md, this terminal is too narrow"
    notes = {"rank": meaning if ranked else "", "no rank": part.unranked, "unequal budget": part.unequal}
    return [*part.remarks, *(f"{name}: {text}" for name, text in notes.items() if text)]


def _title(part: Part, common: Mapping[str, str], backbone: str, pinned: str) -> str:
    seeds = "seeds" if "seeds" not in common else f"{common['seeds']} seed{'s' * (common['seeds'] != '1')}"
    title = f"{printable(part.title)}: mean ± SD over {seeds}"
    title += f", {common[TUNING.title]}" if TUNING.title in common and part.budget in ("", ALONE) else ""
    title += f", {printable(backbone)}" if backbone else ""
    return title + (f"\n{printable(pinned)}" if pinned else "")


def print_answers(found: Iterable[Comparison], console: Console) -> None:
    """Print which methods with a confidence of their own are better systems than the plain method.

    A line for each data set, use and kind of images, at the leading budget: AUGRC of the plain method with the free
    confidence that validation chose minus that of the method [95 % interval], so above 0 if the method is better.
    """
    shown = [row for row in systems_of(found) if row.leads and row.column.split in IMAGES]
    for dataset, of_dataset in grouped(shown, lambda row: row.contender.dataset).items():
        names = distinct_labels(list(dict.fromkeys(row.contender for row in of_dataset)))
        plain = next((row.against.label for row in of_dataset if row.against), "the plain method")
        lines = [f"{dataset}: better with its own confidence than {plain} with a free one? (AUGRC)"]
        for (use, split), own in grouped(of_dataset, lambda row: (row.use, row.column.split)).items():
            said = grouped(own, lambda row: (OUTCOMES.index(row.outcome), _outcome(row)))
            texts = (f"{said_of}: {', '.join(_gained(names[row.contender], row) for row in said[place, said_of])}"
                     for place, said_of in sorted(said))  # fmt: skip
            lines.append(f"{USES[use]}, {IMAGES[split]}: {'; '.join(texts)}")
        for line in (*lines, ""):
            console.print(printable(line), markup=False, highlight=False)


def _outcome(row: Comparison) -> str:
    return f"no verdict ({row.why})" if row.outcome == "no verdict" else row.outcome


def _gained(name: str, row: Comparison) -> str:
    reason = f", {row.why}" if row.why else ""
    return name if row.outcome == "no verdict" else f"{name} {row.text}{reason}"


def print_paired(differences: pd.DataFrame, console: Console) -> None:
    """Print paired differences between methods, other minus first, with intervals and verdicts, by data set."""
    columns = [each for each in compared() if each.brief and (console.width >= NARROW or not each.wide)]
    for (protocol, preset, dataset, ensemble), rows in differences.groupby(list(COMMON), sort=False):
        place = ", ".join(str(name) for name in (protocol, preset, ensemble) if name)
        where = printable(f"{dataset} ({place})")
        title = f"{where}: other - first\nmean over paired seeds [95 % t-interval]"
        table = _paired_table(title, rows, columns, between=" ")
        if not fits(table, console):
            table = _paired_table(title, rows, columns, between="\n")
        print_table(replace(table, notes=tuple(_paired_notes(rows))), console)


def _paired_table(title: str, rows: pd.DataFrame, columns: Sequence[ComparedColumn], between: str) -> Table:
    """Table of differences, with some space or a new line between the ends of an interval."""
    lines: list[list[Cell | str]] = []
    for _, pair in rows.groupby(list(SIDES), sort=False):
        # One above the other, so that both names fit next to the numbers.
        names = "\n- ".join(_side(pair, rows, side) for side in ("other", "first"))
        values = [Cell(_difference(pair, column, between)) for column in columns]
        lines.append([Cell(names), *values, str(int(pair["seeds"].max()))])
    return cells_table(
        title, headings("other\n- first", *(textwrap.fill(column.title, 14) for column in columns), "seeds"), lines
    )


def _paired_notes(rows: pd.DataFrame) -> list[str]:
    notes = ["verdict on the other, p adjusted by Holm's method; equivalent: inside the region"]
    notes.append("intervals are not adjusted")
    left_out = "; ".join(text for text in rows["left_out"].unique() if text)
    return [*notes, *([f"left out: {left_out}"] if left_out else [])]


def _side(pair: pd.DataFrame, rows: pd.DataFrame, side: str) -> str:
    """Name of a side, with its tuning if the table has the method at several."""
    name, tuning = pair[side].iloc[0], pair[f"{side}_tuning"].iloc[0]
    several = rows[rows[side] == name][f"{side}_tuning"].nunique() > 1
    return printable(f"{name}, {tuning}" if several else str(name))


def _difference(pair: pd.DataFrame, column: ComparedColumn, between: str) -> str:
    variants = [column.variant, *([RERANKED] if column.reranked else [])]
    chosen = pair[(pair["metric"] == column.metric) & (pair["split"] == column.split) & pair["variant"].isin(variants)]
    if chosen.empty:
        return GAP
    line = chosen.iloc[0]
    mean, low, high = (
        column.text(float(line[key]), "+", brief=True) for key in ("difference_mean", "ci95_low", "ci95_high")
    )
    ends = "" if low == GAP else f"\n[{low},{between}{high}]"
    return f"{mean}{ends}\n{_verdict(str(line['verdict']), float(line['p_holm']))}"


def _verdict(text: str, p: float) -> str:
    """The verdict, with its p-value if one method is better."""
    if text not in ("better", "worse"):
        return text
    return f"{text} {'<.001' if p < 0.001 else f'{p:.3f}'[1:]}"
