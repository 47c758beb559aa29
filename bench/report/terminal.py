"""Tables on the terminal: the comparison, the verdicts, the scorers, paired differences."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import printable
from ..protocols.confidence_kinds import COMBINED, RETRIEVAL_CONFIDENCES
from ..protocols.rows import RERANKED
from ..store.pinned import split_pinned
from .ambiguity import REGRET_COLUMNS, Regrets, regrets
from .budgets import unequal_text
from .comparison import ALONE, HEAD, Comparison, ComparisonRow, Part, comparison, parts
from .contender import COMMON, Contender, by_contender, distinct_labels
from .pairing import SIDES
from .ranks import unranked_text
from .seeds import COMPARED, ComparedColumn, SeedStatistics, seed_groups
from .verdicts import ABOUT_VERDICTS, IMAGES, ON_TEST, QUESTIONS, Verdict, verdicts

NARROW = 100
"""Width of a terminal, in columns, below which wide columns are left out."""


def plain(text: str) -> Text:
    """A text of a user as it is: brackets in it are no markup, control characters are shown as escapes."""
    return Text(printable(text))


def new_table(title: str | Text) -> Table:
    """Make an empty table for the terminal in the style that all tables share.

    Args:
        title: Title of the table; one of several lines is a :class:`~rich.text.Text`.
    """
    shown = plain(title) if isinstance(title, str) else title
    return Table(title=shown, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def print_tables(frame: pd.DataFrame, roles: pd.DataFrame, console: Console) -> None:
    """Print the comparison of methods, the verdicts about their confidences, and MAP@R by scorer.

    Args:
        frame: Tidy table of results (``metrics.csv``), one row per measured value: method, setting, metric, value and
            so on.
        roles: Table with one row per test: its id (``unit``) and its :class:`~bench.store.records.Role` (the method's
            own scorer, default confidence and so on).
        console: Where to print.
    """
    print_comparison(comparison(frame, roles), console)
    print_confidences(frame, roles, console)
    print_verdicts(verdicts(frame, roles), console)
    print_regrets(regrets(frame, roles), console)
    print_scorers(frame, roles, console)


def print_comparison(rows: Comparison, console: Console) -> None:
    """Print the main columns of the comparison of methods, a table per data set and budget.

    Args:
        rows: Rows by data set, as :func:`~bench.report.comparison.comparison` makes them.
        console: Where to print.
    """
    columns = [column for column in COMPARED if column.brief and (console.width >= NARROW or not column.wide)]
    for part in parts(rows):
        table = _comparison_table(part, columns)
        fits = _made_to_fit(table, console)
        if not fits:
            table = _comparison_table(part, columns, with_rank=False)
        _print_with_notes(table, _rank_notes(part.rows, fits), console)


def _print(table: Table, console: Console) -> None:
    """Print a table; if it is too wide even with narrow gaps, names are folded, since their columns may wrap."""
    _made_to_fit(table, console)
    console.print(table)


def _print_with_notes(table: Table, notes: Sequence[str], console: Console) -> None:
    _print(table, console)
    if notes:
        console.print(Text("\n".join(notes)))
        console.print()


def _made_to_fit(table: Table, console: Console) -> bool:
    """Narrow the gaps of a table that is too wide; True if it then fits without folding names."""
    wide = console.options.update(max_width=1000)
    if console.measure(table, options=wide).maximum > console.width:
        table.padding = 0
    return console.measure(table, options=wide).maximum <= console.width


def _comparison_table(part: Part, columns: Sequence[ComparedColumn], with_rank: bool = True) -> Table:
    rows = part.rows
    # What all rows share is said once, in the title: the table has to fit 80 columns.
    common = {name: texts[0] for name, *texts in zip(HEAD, *(row.labels for row in rows)) if len(set(texts)) == 1}
    shared, own = split_pinned([row.contender.pinned for row in rows])
    optional = ("network", "tuning", "pinned", "seeds", "confidence")
    ranked = any(row.rank.interval is not None for row in rows)
    shown = ["method", *(name for name in optional if name not in common), *["rank"] * (ranked and with_rank)]
    backbone = _shared_backbone(rows) if "network" in shown else ""
    table = new_table(_comparison_title(part, common | {"backbone": backbone}, shared))
    for name in shown:
        heading = "dim" if name == "network" and backbone else name
        table.add_column(heading, overflow="fold", no_wrap=name in ("seeds", "rank"))
    for column in columns:
        arrow = "" if column.sign > 0 else " \N{DOWNWARDS ARROW}"
        table.add_column(column.title + arrow, justify="right", no_wrap=True)
    for row, pinned in zip(rows, own):
        labels = dict(zip(HEAD, row.labels)) | {"pinned": pinned}
        labels["network"] = labels["network"].removeprefix(f"{backbone}/")
        # Rich would take "[released]" for markup.
        table.add_row(*(plain(labels[name]) for name in shown), *_marked_values(row, columns))
    return table


def _shared_backbone(rows: Sequence[ComparisonRow]) -> str:
    """Backbone of all rows; empty if they have several."""
    backbones = {row.contender.backbone for row in rows}
    return backbones.pop() if len(backbones) == 1 else ""


def _rank_notes(rows: Sequence[ComparisonRow], shown: bool) -> list[str]:
    if len(rows) < 2:
        return []
    meaning = "by MAP@R, 95 % interval over paired seeds" if shown else "in comparison.md, this terminal is too narrow"
    ranked = any(row.rank.interval is not None for row in rows)
    unranked = unranked_text((row.label, row.rank) for row in rows)
    unequal = unequal_text([row.label for row in rows], [row.unequal for row in rows])
    notes = {"rank": meaning if ranked else "", "no rank": unranked, "unequal budget": unequal}
    return [f"{name}: {printable(text)}" for name, text in notes.items() if text]


def _comparison_title(part: Part, common: dict[str, str], pinned: str) -> Text:
    seeds = "seeds" if "seeds" not in common else f"{common['seeds']} seed{'s' * (common['seeds'] != '1')}"
    title = f"{printable(part.title)}: mean ± SD over {seeds}"
    title += f", {common['tuning']}" if "tuning" in common and part.budget in ("", ALONE) else ""
    title += f", {printable(common['backbone'])}" if common["backbone"] else ""
    title += f"\n{printable(pinned)}" if pinned else ""
    return Text(title)


def _marked_values(row: ComparisonRow, columns: Sequence[ComparedColumn]) -> Iterable[Text]:
    for column, value, mark in zip(COMPARED, row.values, row.marks):
        if column in columns:
            style = " ".join(["bold"] * mark.best + ["underline"] * mark.beats_deterministic)
            yield Text(value.text(column.percent, brief=True), style=style)


def print_confidences(frame: pd.DataFrame, roles: pd.DataFrame, console: Console) -> None:
    """Print the AUROC of the confidences of every method, those of images apart from those of rankings, by data set.

    The AUROC is that of telling right from wrong answers (Recall@1) on centre crops, or on clean images if there are no
    crops. Data sets without a value for retrieval confidences, such as those of old records, are skipped.

    Args:
        frame: Tidy table of results (``metrics.csv``), one row per measured value: method, setting, metric, value and
            so on.
        roles: Table with one row per test: its id (``unit``) and its :class:`~bench.store.records.Role` (the method's
            own scorer, default confidence and so on).
        console: Where to print.
    """
    judged = frame[frame["metric"] == "confidence_auroc"].merge(roles, on="unit")
    for dataset, rows in judged.groupby("dataset", sort=True):
        split = "test_crop" if "test_crop" in set(rows["split"]) else "test"
        rows = rows[rows["split"] == split]
        if not rows["confidence"].isin(RETRIEVAL_CONFIDENCES).any():
            continue
        images = "centre crops" if split == "test_crop" else "clean images"
        title = f"{printable(str(dataset))}: AUROC of Recall@1 being right, {images}, mean over seeds"
        table = new_table(Text(f"{title}\n(image: known before any gallery; retrieval: needs ranking and labels)"))
        table.add_column("method", overflow="fold")
        default = ("image", ("default",)), ("combined", ("default\n+margin",))
        for kind, names in (default[0], ("retrieval", RETRIEVAL_CONFIDENCES), default[1]):
            for name in names:
                table.add_column(f"{kind}\n{name.replace('_', ' ')}", justify="right", no_wrap=True)
        groups = seed_groups(rows)
        labels = distinct_labels([group.contender for group in groups])
        for group in groups:
            shown = (group.confidence, *RETRIEVAL_CONFIDENCES, f"{group.confidence}{COMBINED}")
            means = [SeedStatistics.of(group.per_seed("confidence_auroc", split, confidence=name)) for name in shown]
            texts = [f"{100 * value.mean:.1f}" if value.defined else "-" for value in means]
            table.add_row(plain(labels[group.contender]), *texts)
        _print(table, console)


def print_verdicts(answers: Sequence[Verdict], console: Console) -> None:
    """Print the verdicts about learned confidences, a table per data set for clean images and one for centre crops.

    Args:
        answers: Verdicts, as :func:`~bench.report.verdicts.verdicts` makes them.
        console: Where to print.
    """
    tables: dict[tuple[str, str], list[Verdict]] = {}
    for each in answers:
        if each.split in IMAGES:
            tables.setdefault((each.contender.dataset, IMAGES[each.split]), []).append(each)
    for (dataset, images), rows in tables.items():
        console.print(_verdict_table(dataset, images, rows))


def _verdict_table(dataset: str, images: str, rows: Sequence[Verdict]) -> Table:
    names = distinct_labels(list(dict.fromkeys(row.contender for row in rows)))
    title = f"{printable(dataset)}, {images}: is the own confidence worth it?\n{ABOUT_VERDICTS}"
    title += f"\n{ON_TEST}" if any(row.on_test for row in rows) else ""
    table = new_table(Text(title))
    table.padding = 0  # for 80 columns
    # Only names are wrapped: the rest is made to fit.
    table.add_column("method", overflow="fold")
    for heading in ("own", "best free", "own - free"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    width = 12 if any(row.difference and row.difference.n > 1 for row in rows) else 24  # intervals take room
    for question, heading in QUESTIONS.items():
        table.add_section()
        table.add_row(Text(heading, style="italic"))
        for row in rows:
            if row.question == question:
                table.add_row(*_verdict_cells(row, names[row.contender], width))
    return table


def _verdict_cells(row: Verdict, name: str, width: int) -> Iterable[Text]:
    texts = row.texts
    yield plain(f"  {texts.ending}" if texts.ending else name)
    yield from map(plain, (texts.own, texts.free, texts.difference))
    # A method without a confidence has "-" for it, which says enough.
    verdict = textwrap.fill(texts.verdict, width) if row.challenger else "-"
    yield Text(verdict, style="bold" if row.verdict == "worth it" else "")


def print_regrets(by_dataset: Regrets, console: Console) -> None:
    """Print how much worse the confidences of every method are than an observer who knows how ambiguous images are.

    Args:
        by_dataset: Rows by data set, as :func:`~bench.report.ambiguity.regrets` makes them.
        console: Where to print.
    """
    for dataset, rows in by_dataset.items():
        title = f"{printable(dataset)}: regret in %, AUGRC minus the observer's, clean images, mean over seeds"
        table = new_table(Text(f"{title}\n(the observer knows P(answer is right): expected regrets are 0 or more)"))
        table.add_column("method", overflow="fold")
        for heading in REGRET_COLUMNS:
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*map(Text, row))
        _print(table, console)


def print_scorers(frame: pd.DataFrame, roles: pd.DataFrame, console: Console) -> None:
    """Print the mean MAP@R of every method by scorer (similarity to rank by), a table per data set.

    Data sets are skipped if no scorer but the methods' own and the cosine was tested.

    Args:
        frame: Tidy table of results (``metrics.csv``), one row per measured value: method, setting, metric, value and
            so on.
        roles: Table with one row per test: its id (``unit``) and its :class:`~bench.store.records.Role` (the method's
            own scorer, default confidence and so on).
        console: Where to print.
    """
    rows = frame[
        (frame["metric"] == "map_at_r")
        & (frame["split"] == "test")
        & frame["variant"].isin(["", RERANKED])
        & frame["fraction"].isna()
    ]
    for dataset, tested in rows.merge(roles, on="unit").groupby("dataset", sort=True):
        names = sorted(set(tested["scorer"]))
        if not set(names) - {"cosine", *tested["primary_scorer"]}:
            continue
        table = new_table(f"{dataset}: mean MAP@R by scorer (own scorer in bold)")
        table.add_column("method", overflow="fold")
        for name in names:
            table.add_column(Text(printable(name).replace("_", "\n")), justify="right", no_wrap=True)
        groups = [(Contender.of(group), group) for group in by_contender(tested)]
        labels = distinct_labels([contender for contender, _ in groups])
        for contender, group in groups:
            table.add_row(plain(labels[contender]), *(_scorer_mean(group, name) for name in names))
        _print(table, console)


def _scorer_mean(rows: pd.DataFrame, scorer: str) -> Text:
    """Mean without the SD, which scorers.csv has: all scorers have to fit 80 columns."""
    own = rows[rows["scorer"] == scorer]
    own = own[own["variant"] == max(own["variant"], default="")]  # re-ranked where tests have that
    values = SeedStatistics.of(dict(zip(own["seed"], own["value"])))
    style = "bold" if scorer == rows["primary_scorer"].iloc[0] else ""
    return Text(f"{100 * values.mean:.1f}" if values.defined else "-", style=style)


def print_paired(differences: pd.DataFrame, console: Console) -> None:
    """Print paired differences between methods over seeds, other minus first, by data set.

    Each has its 95 % t-interval and a verdict on the other method.

    Args:
        differences: Rows of :func:`~bench.report.pairing.paired_methods`.
        console: Where to print.
    """
    columns = [column for column in COMPARED if column.brief and not column.wide]
    for (protocol, preset, dataset, ensemble), rows in differences.groupby(list(COMMON), sort=False):
        place = ", ".join(str(name) for name in (protocol, preset, ensemble) if name)
        where = printable(f"{dataset} ({place})")
        title = Text(f"{where}: other - first\nmean over paired seeds [95 % t-interval]")
        table = _paired_table(title, rows, columns, between=" ")
        if not _made_to_fit(table, console):
            table = _paired_table(title, rows, columns, between="\n")
        _print_with_notes(table, _paired_notes(rows), console)


def _paired_table(title: Text, rows: pd.DataFrame, columns: Sequence[ComparedColumn], between: str) -> Table:
    """Table of differences, with some space or a new line between the ends of an interval."""
    table = new_table(title)
    # One above the other, so that both names fit next to the numbers.
    table.add_column("other\n- first", overflow="fold")
    for heading in (*(column.title for column in columns), "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for _, pair in rows.groupby(list(SIDES), sort=False):
        names = [_side(pair, rows, side) for side in ("other", "first")]
        values = [_difference(pair, column, between) for column in columns]
        table.add_row(Text("\n- ").join(names), *values, str(int(pair["seeds"].max())))
    return table


def _paired_notes(rows: pd.DataFrame) -> list[str]:
    notes = ["verdict on the other, p adjusted by Holm's method; equivalent: inside the region"]
    left_out = "; ".join(text for text in rows["left_out"].unique() if text)
    return [*notes, *([f"left out: {printable(left_out)}"] if left_out else [])]


def _side(pair: pd.DataFrame, rows: pd.DataFrame, side: str) -> Text:
    """Name of a side, with its tuning if the table has the method at several."""
    name, tuning = pair[side].iloc[0], pair[f"{side}_tuning"].iloc[0]
    several = rows[rows[side] == name][f"{side}_tuning"].nunique() > 1
    return plain(f"{name}, {tuning}" if several else str(name))


def _difference(pair: pd.DataFrame, column: ComparedColumn, between: str) -> str:
    variants = [column.variant, *([RERANKED] if column.reranked else [])]
    chosen = pair[(pair["metric"] == column.metric) & (pair["split"] == column.split) & pair["variant"].isin(variants)]
    if chosen.empty:
        return "-"
    factor, digits = (100.0, 1) if column.percent else (1.0, 2)
    line = chosen.iloc[0]
    mean, low, high = (float(line[key]) * factor for key in ("difference_mean", "ci95_low", "ci95_high"))
    interval = f"\n[{low:+.{digits}f},{between}{high:+.{digits}f}]" if low == low else ""
    mean_text = f"{mean:+.{digits}f}" if mean == mean else "-"
    return f"{mean_text}{interval}\n{_verdict(str(line['verdict']), float(line['p_holm']))}"


def _verdict(text: str, p: float) -> str:
    """The verdict, with its p-value if one method is better."""
    if text not in ("better", "worse"):
        return text
    return f"{text} {'<.001' if p < 0.001 else f'{p:.3f}'[1:]}"
