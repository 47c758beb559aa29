"""Tables of papers: cells read from our tidy table or computed, next to the published numbers or of any results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import fmean

import pandas as pd
from rich.console import Console

from ..errors import printable
from ..report import render
from ..report.contender import distinct_labels
from ..report.frame import Results
from ..report.render import markdown_text
from ..report.seeds import SeedGroup, SeedStatistics, divided, seed_groups
from ..report.table import GAP, Document, cells_table, headings
from .items import UNPUBLISHED, Column, How, Named, Published, Reads, Row, published_value, quoted_rows
from .run import PlannedItem, what_differs

BySeed = dict[int, float]
"""Values by seed."""

Cells = dict[tuple[str, str], BySeed]
"""Values by title of the row and of the column, in the unit of the paper."""


def measured(planned: PlannedItem, results: Results) -> Cells:
    """Values that our runs measured for the cells of a paper's table; rows that were not tested are absent."""
    groups = {group.contender: group for group in seed_groups(results.measured)}
    cells: Cells = {}
    for each in planned.rows:
        group = groups.get(each.contender)
        columns = [column for column in planned.named.columns(planned.dataset) if each.row.has(column)]
        for place, values in read_row(each.row.title, group, columns, each.row.reads).items() if group else ():
            cells[place] = {seed: value for seed, value in values.items() if seed in each.plan.replicates}
    return cells


def read_row(
    title: str, group: SeedGroup, columns: Iterable[Column], instead: Mapping[str, str] | None = None
) -> Cells:
    """Values of the columns that are measured, read with some entries of their selection replaced."""
    return {
        (title, column.title): {
            seed: column.factor * value for seed, value in read(group, column.reads.model_copy(update=instead)).items()
        }
        for column in columns
        if column.reads is not None
    }


def read(group: SeedGroup, reads: Reads) -> BySeed:
    """Values by seed of one cell of a paper's table, read from the tests of its row; empty if nothing was measured."""
    confidence = group.confidence if reads.confidence == "own" else reads.confidence
    found = {
        variant: [
            (scorer, seed, value)
            for scorer, fraction, seed, value in group.values(reads.metric, reads.split, variant, confidence)
            if (fraction is None) is (reads.fraction is None)
            and abs((fraction or 0.0) - (reads.fraction or 0.0)) < 1e-9
        ]
        for variant in reads.variant
    }
    scored = reads.scorer != "own" or any(scorer != "" for every in found.values() for scorer, *_ in every)
    asked = group.scorer if reads.scorer == "own" else reads.scorer
    for every in found.values():
        if own := {seed: value for scorer, seed, value in every if not scored or scorer == asked}:
            return own
    return {}


def derived(cells: Cells, rows: tuple[Row, ...], columns: tuple[Column, ...]) -> Cells:
    """The cells of a table with those that are computed from other columns, then those computed from other rows."""
    known = dict(cells)
    for column in columns:
        for row in rows if column.of else ():
            places = [(row.title, name) for name in column.of]
            places += [(rows[0].title, column.of[0])] if column.how == "ratio to the first row" else []
            known[row.title, column.title] = _combined(column.how, [known.get(place, {}) for place in places])
    for row in rows:
        for column in columns if row.of else ():
            if row.has(column):
                parts = [known.get((name, column.title), {}) for name in row.of]
                known[row.title, column.title] = _combined(row.how, parts)
    return known


def _combined(how: How, parts: list[BySeed]) -> BySeed:
    """Values that follow from others, seed by seed; the smallest is that of the means."""
    if how == "smallest":
        means = [fmean(part.values()) for part in parts if part]
        return {0: min(means)} if means else {}
    first, second = parts
    return {seed: _paired(how, first[seed], second[seed]) for seed in sorted(set(first) & set(second))}


def _paired(how: How, first: float, second: float) -> float:
    if how == "difference":
        return first - second
    if not second:
        return math.nan
    return 100.0 * (first - second) / abs(second) if how == "relative change" else first / second


def build_table(planned: PlannedItem, cells: Cells) -> Document:
    """Put measured values, by title of the row and of the column, next to the published ones.

    The numbers have one row per cell with a value of ours or a published one: ``differs`` is how our set-up differs
    from the paper's; ``published_note`` is ``no published value`` for a value of ours that the paper has no number for.
    Notes of the table are what to keep in mind when comparing.
    """
    named, dataset, differs = planned.named, planned.dataset, what_differs(planned)
    columns = named.columns(dataset)
    ours, theirs = derived(cells, named.rows, columns), _published(named, dataset)
    runs, computed = {each.row.title: each for each in planned.rows}, {row.title for row in named.rows if row.how}
    lines, numbers, notes = [], list[dict[str, object]](), dict[str, None]()
    for title in dict.fromkeys([*(row.title for row in named.rows), *(title for title, _ in theirs)]):
        run, texts, before = runs.get(title), [title], len(numbers)
        contender = run.contender._asdict() if run else {}
        own = {key: value for key, value in contender.items() if key not in ("dataset", "ensemble")}
        for column in columns:
            value = SeedStatistics.of(ours.get((title, column.title), {}))
            published = theirs.get((title, column.title))
            text = value.text(2 if title in computed else column.decimals)
            both = [text, published.text if published else GAP] if theirs else [text]
            texts.append(GAP if set(both) == {GAP} else " | ".join(both))
            if not value.seeds and published is None:
                continue
            number = {
                "name": named.name,
                "dataset": dataset,
                "row": title,
                "column": column.title,
                "ours_mean": value.mean,
                "ours_sd": value.sd,
                "ours_seeds": value.defined if value.seeds else None,
                "published_mean": published.mean if published else None,
                "published_sd": published.sd if published else None,
            }
            note = published.note if published else UNPUBLISHED
            numbers.append(number | own | {"differs": differs, "published_note": note})
            if run and published and note:
                notes[f"published {title}, {column.title}: {note}"] = None
        if run or len(numbers) > before:
            lines.append(texts)
    legend = "Mean ± SD over seeds. No value was published to put next to ours."
    if theirs:
        legend = f"Ours | published, mean ± SD over seeds; {GAP} is no value of ours, or {UNPUBLISHED}."
    left_out = (f"left out: {title}: {reason}" for title, reason in planned.left_out.items())
    table = cells_table(
        f"{named.item.title} ({dataset})",
        headings("", *(column.title for column in columns)),
        lines,
        notes=(differs, *named.differences, *notes, *left_out),
        caption=legend,
    )
    introduction = f"{markdown_text(f'{named.paper.title}. {named.item.asks}')}\n\n{legend}"
    return Document(dataset, f"{named.name} on {dataset}", introduction, (table,), pd.DataFrame(numbers))


def _published(named: Named, dataset: str) -> dict[tuple[str, str], Published]:
    """Published numbers by title of the row and of the column, with those that the paper quotes from others."""
    columns, found = named.columns(dataset), dict[tuple[str, str], Published]()
    for row in named.rows:
        quoted = row.quoted.get(dataset, {})
        for column in columns:
            value = published_value(named, row, column, dataset)
            if value is None and column.title in quoted:
                value = Published(mean=quoted[column.title], text=str(quoted[column.title]))
            if value is not None:
                found[row.title, column.title] = value
    others = quoted_rows(named, dataset).items()
    return found | {(title, heading): value for title, own in others for heading, value in own.items()}


def print_table(document: Document, console: Console) -> None:
    """Print a reproduced table, and its notes below it."""
    (table,) = document.tables
    # Terminals are narrow: a word of a heading per line.
    columns = tuple(replace(column, title=column.title.replace(" ", "\n")) for column in table.columns)
    title = f"{document.heading}: {table.title}\n{table.caption}"
    render.print_table(replace(table, title=title, columns=columns, notes=()), console)
    for text in table.notes:
        console.print(f"* {printable(text)}", highlight=False, markup=False, soft_wrap=True)


def fill_form(named: Named, results: Results) -> Document:
    """A paper's table filled with the results of a folder, one table per data set; it has none without results."""
    legend, tables, numbers = "Mean ± SD over seeds of our own runs.", [], []
    for (dataset,), groups in divided(seed_groups(results.measured), ["dataset"]).items():
        columns = named.columns(dataset)
        names = distinct_labels([group.contender for group in groups])
        measured: Cells = {}
        for group in groups:
            measured |= read_row(names[group.contender], group, columns)
        # What a paper shows relative to its first row is relative to ours.
        cells = derived(measured, tuple(Row(title=name) for name in names.values()), columns)
        rows = []
        for contender, name in names.items():
            values = [SeedStatistics.of(cells.get((name, column.title), {})) for column in columns]
            rows.append([name, *(value.text(each.decimals) for each, value in zip(columns, values))])
            for column, value in zip(columns, values):
                number = {"mean": value.mean, "sd": value.sd, "seeds": value.defined}
                numbers.append({**contender._asdict(), "name": named.name, "column": column.title, **number})
        titles = headings("method", *(column.title for column in columns))
        caption = f"the columns of {named.item.title}. {legend}"
        tables.append(cells_table(f"{named.name} on {dataset}", titles, rows, caption=caption))
    stem, heading = f"form_{named.name.replace('/', '_')}", f"{named.name}: {named.item.title}"
    return Document(stem, heading, legend, tuple(tables), pd.DataFrame(numbers))
