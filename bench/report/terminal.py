"""Tables on the terminal: the comparison, class splits, systems, paired differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from ..errors import printable
from .compare import OUTCOMES, Comparison
from .comparison import ALONE, COLUMNS, ComparisonRow, Part, metric_column
from .contender import ONE_SETTING, PINNED, TUNING, Contender, distinct_labels
from .questions import DECIDES, IMAGES, SYSTEM, USES
from .render import fits, print_table
from .seeds import compared
from .splits import MEAN
from .studies import study_lines
from .table import GAP, Column, Table, cells_table, grouped, headings, interval, label, table_of
from .views import split_document

if TYPE_CHECKING:
    from .write import Judged

FEW = 5
"""Replicates whose values are printed one by one, beside their mean."""

NARROW = 100
"""Width of a terminal, in columns, below which wide columns are left out."""


def print_tables(judged: Judged, console: Console) -> None:
    """Print the comparison of methods, the means over class splits, and which methods are better systems."""
    print_comparison(judged.comparison, console)
    for table in split_document([row for row in judged.splits if row.question == MEAN]).tables:  # others are in files
        brief = replace(table, caption="").without_shared(("method",))
        print_table(replace(brief, notes=(*filter(None, [brief.caption]),)), console)
    apart = [
        row for row in judged.splits if row.question == SYSTEM.name and row.contender.dataset in judged.over_splits
    ]
    over_seeds = (row for row in judged.ask(SYSTEM) if row.contender.dataset not in judged.over_splits)
    print_answers([*over_seeds, *apart], console)
    for line in (*study_lines(judged.studies), *judged.mixed):
        console.print(printable(line), markup=False, highlight=False)


def print_comparison(parts: Iterable[Part], console: Console) -> None:
    """Print the main columns of the comparison of methods, a table per data set and budget."""
    for part in parts:
        table = _comparison_table(part, console)
        fit = fits(table, console)
        shown = table if fit else table.only(lambda column: column.title != "rank")
        print_table(replace(shown, notes=tuple(_notes(part, fit))), console)


def _comparison_table(part: Part, console: Console) -> Table:
    rows = part.rows
    values = [
        metric_column(place, brief=True)
        for place, column in enumerate(compared())
        if column.brief and (console.width >= NARROW or not column.wide)
    ]
    # What all rows share is said once, in the title: the table has to fit 80 columns.
    common = table_of(COLUMNS, rows, "", place="terminal").shared(("rank",))
    left_out = set(common) if _is_ranked(part) else {*common, "rank"}
    labels = [column for column in COLUMNS if column.label and column.title not in left_out]
    name: Column[ComparisonRow] = label("method", lambda row: row.marked, places=("terminal",))
    seeds = common.get("seeds", "")
    unit = rows[0].contender.unit
    title = f"{part.title}: mean ± SD over {seeds}{' ' * bool(seeds)}{unit}{'s' * (seeds != '1')}"
    told = [] if part.budget not in ("", ALONE) else [common.get(TUNING.title, "")]
    lines = [", ".join(filter(None, [title, *told])), common.get(PINNED.title, ""), *part.against]
    title = "\n".join(printable(line) for line in lines if line not in ("", GAP))
    return table_of([name, *labels, *values], rows, title, place="terminal")


def _is_ranked(part: Part) -> bool:
    return any(row.rank.interval is not None for row in part.rows)


def _notes(part: Part, fit: bool) -> list[str]:
    said = [*part.remarks, *part.thresholds]
    if len(part.rows) < 2:
        return said
    meaning = "by MAP@R, 95 % interval over paired seeds" if fit else "in comparison.md, this terminal is too narrow"
    notes = {"rank": meaning * _is_ranked(part), "no rank": part.unranked, "unequal budget": part.unequal}
    return [*said, *(f"{name}: {text}" for name, text in notes.items() if text)]


def print_answers(found: Iterable[Comparison], console: Console) -> None:
    """Print which methods with a confidence of their own are better systems than the plain method.

    A line for each data set, use and kind of images, at the leading budget: AUGRC of the plain method with the free
    confidence that validation chose minus that of the method [95 % interval], so above 0 if the method is better.
    """
    shown = [row for row in found if row.leads and row.column.split in IMAGES and row.column.metric == DECIDES]
    for dataset, of_dataset in grouped(shown, lambda row: row.contender.dataset).items():
        names = distinct_labels(list(dict.fromkeys(row.contender for row in of_dataset)))
        plain = next((row.against.label for row in of_dataset if row.against), "the plain method")
        over = "over class splits; " if of_dataset[0].unit == "split" else ""
        lines = [
            f"{dataset}: better with its own confidence than {plain} with a free one? (AUGRC; {over}*: also adjusted)"
        ]
        for (use, split), own in grouped(of_dataset, lambda row: (row.use, row.column.split)).items():
            said = grouped(own, lambda row: (9 if row.same_order_as else OUTCOMES.index(row.outcome), _outcome(row)))
            texts = (
                f"{of}: {', '.join(_gained(names[row.contender], row) for row in said[at, of])}"
                for at, of in sorted(said)
            )
            lines.append(f"{USES[use]}, {IMAGES[split]}: {'; '.join(texts)}")
        if any(row.unit == "seed" and row.contender.is_one_setting for row in of_dataset):
            lines.append(f"{ONE_SETTING} Leave out --studies 1.")
        for line in (*lines, ""):
            console.print(printable(line), markup=False, highlight=False)


def _outcome(row: Comparison) -> str:
    if row.same_order_as:
        return f"not counted ({row.why})"
    return f"no verdict ({row.why})" if row.outcome == "no verdict" else row.outcome


def _gained(name: str, row: Comparison) -> str:
    reason = f", {row.why}" if row.why and not row.same_order_as else ""
    if row.outcome == "no verdict":
        return name
    each = f" (replicates {' '.join(row.differences)})" if row.unit == "replicate" and row.n <= FEW else ""
    return f"{name}{'*' * row.holds} {row.text}{each}{reason}"


def print_paired(found: Sequence[Comparison], console: Console) -> None:
    """Print paired differences between methods, other minus first, with intervals and verdicts, by data set."""
    for (protocol, preset, dataset, ensemble, _), rows in grouped(found, lambda row: row.contender.common).items():
        place = ", ".join(filter(None, (protocol, preset, ensemble)))
        over = f"paired {rows[0].contender.unit}s [95 % t-interval]"
        title = f"{printable(f'{dataset} ({place})')}: other - first, mean over {over}"
        shown = [row for row in rows if row.column.brief and (console.width >= NARROW or not row.column.wide)]
        names = distinct_labels([*dict.fromkeys(each for row in rows for each in (row.contender, row.against) if each)])
        left_out = "; ".join(filter(None, dict.fromkeys(str(row.about["left_out"]) for row in rows)))
        notes = ["verdict on the other, p adjusted by Holm's method; equivalent: inside the region"]
        notes += ["intervals are not adjusted", *([f"left out: {left_out}"] if left_out else [])]
        titles = headings("other", "first", "metric", "difference", "verdict", "seeds", labels=2)
        cells = (_difference(row, names) for row in shown)
        print_table(cells_table(title, titles, cells, notes=tuple(notes)), console)


def _difference(row: Comparison, names: Mapping[Contender, str]) -> list[str]:
    """Cells of a difference; ``names`` tell the contenders of the table apart."""
    sides = (names[each] for each in (row.contender, row.against) if each)
    mean, _, *ends = (row.column.text(each, "+", brief=True) for each in row.raw.values())
    p = f" {'<.001' if row.p_holm < 0.001 else f'{row.p_holm:.3f}'[1:]}" * (row.verdict in ("better", "worse"))
    return [*sides, row.column.title, interval(mean, *ends), row.verdict + p, str(row.n)]
