"""Tables on the terminal: the comparison, the confidences and their verdicts, the scorers, paired differences."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console

from ..errors import printable
from ..protocols.rows import COMBINED, OBSERVER, RERANKED, RETRIEVAL_CONFIDENCES, kind_of
from ..store.specs import split_pinned
from .comparison import ALONE, COLUMNS, Comparison, ComparisonRow, Part, metric_column, parts
from .contender import COMMON, TUNING, Contender, distinct_labels
from .pairing import SIDES
from .render import fits, print_table
from .seeds import COMPARED, ComparedColumn, SeedGroup, SeedStatistics
from .splits import ABOUT, BRIEF, OverSplits, split_document
from .table import GAP, Cell, Column, Table, cells_table, grouped, headings, label, percent, table_of
from .verdicts import ABOUT_VERDICTS, IMAGES, JUDGED, METRIC, ON_TEST, QUESTIONS, Verdict

if TYPE_CHECKING:
    from .write import Judged

NARROW = 100
"""Width of a terminal, in columns, below which wide columns are left out."""

ByDataset = Mapping[str, Sequence[SeedGroup]]
"""Values over seeds of every contender, by data set."""


def print_tables(judged: Judged, console: Console) -> None:
    """Print the comparison of methods, the verdicts about their confidences, and MAP@R by scorer."""
    print_comparison(judged.comparison, console)
    print_splits(judged.splits, console)
    print_confidences(judged.by_dataset, console)
    print_verdicts(judged.verdicts, console)
    print_regrets(judged.by_dataset, console)
    print_scorers(judged.by_dataset, console)


def print_comparison(rows: Comparison, console: Console) -> None:
    """Print the main columns of the comparison of methods, a table per data set and budget."""
    for part in parts(rows):
        table = _comparison_table(part, console)
        fit = fits(table, console)
        shown = table if fit else table.only(lambda column: column.title != "rank")
        print_table(replace(shown, notes=tuple(_notes(part, fit))), console)


def print_splits(found: Sequence[OverSplits], console: Console) -> None:
    """Print means over class splits; a narrow terminal has no differences, which are in files."""
    for table in split_document(found).tables:
        shown = table if fits(table, console) else table.only(lambda column: column.title in BRIEF)
        print_table(shown.with_notes([*table.notes, ABOUT]), console)


def _comparison_table(part: Part, console: Console) -> Table:
    rows = part.rows
    values = [
        metric_column(place, brief=True)
        for place, column in enumerate(COMPARED)
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


def _print_rows(
    title: str, columns: Iterable[str], rows: Mapping[Contender, Iterable[Cell | str]], console: Console
) -> None:
    """Print a table with a row per contender of a data set."""
    labels = distinct_labels(list(rows))
    lines = [(labels[contender], *cells) for contender, cells in rows.items()]
    print_table(cells_table(title, headings("method", *columns), lines), console)


def print_confidences(by_dataset: ByDataset, console: Console) -> None:
    """Print the AUROC of the confidences of every method, those of images apart from those of rankings, by data set.

    The AUROC is that of telling right from wrong answers (Recall@1) on centre crops, or on clean images if there are no
    crops. Data sets without a value for retrieval confidences, such as those of old records, are skipped.
    """
    retrieval = (f"retrieval\n{name.replace('_', ' ')}" for name in RETRIEVAL_CONFIDENCES)
    columns = ("image\ndefault", *retrieval, "combined\ndefault\n+margin")
    for dataset, every in by_dataset.items():
        split = "test_crop" if any("test_crop" in group.splits(METRIC) for group in every) else "test"
        groups = [group for group in every if group.confidences(METRIC, split)]
        if not any(group.confidences(METRIC, split) & set(RETRIEVAL_CONFIDENCES) for group in groups):
            continue
        title = f"{printable(dataset)}: AUROC of Recall@1 being right, {IMAGES[split]}, mean over seeds"
        title += "\n(image: known before any gallery; retrieval: needs ranking and labels)"

        _print_rows(title, columns, {group.contender: _aurocs(group, split) for group in groups}, console)


def _aurocs(group: SeedGroup, split: str) -> list[str]:
    def text(name: str) -> str:
        mean = SeedStatistics.of(group.per_seed(METRIC, split, confidence=name)).mean
        return "constant" if group.constant(name) else percent(mean, 1)

    return [text(name) for name in (group.confidence, *RETRIEVAL_CONFIDENCES, f"{group.confidence}{COMBINED}")]


def print_verdicts(answers: Iterable[Verdict], console: Console) -> None:
    """Print the verdicts about learned confidences, a table per data set for clean images and one for centre crops."""
    shown = (each for each in answers if each.split in IMAGES)
    tables = grouped(shown, lambda each: (each.contender.dataset, IMAGES[each.split]))
    for (dataset, images), rows in tables.items():
        print_table(_verdict_table(dataset, images, rows), console)


def _verdict_table(dataset: str, images: str, rows: Sequence[Verdict]) -> Table:
    names = distinct_labels(list(dict.fromkeys(row.contender for row in rows)))
    title = f"{printable(dataset)}, {images}: is the own confidence worth it?\n{ABOUT_VERDICTS}"
    title += f"\n{ON_TEST}" if any(row.on_test for row in rows) else ""
    width = 12 if any(row.difference and row.difference.n > 1 for row in rows) else 24  # intervals take room

    def verdict(row: Verdict) -> Cell:
        # A method without a confidence has "-" for it, which says enough.
        text = textwrap.fill(row.texts.verdict, width) if row.challenger else GAP
        return Cell(text, bold=row.outcome == "better")

    own, free, difference, _, judged = JUDGED[:5]
    columns: tuple[Column[Verdict], ...] = (
        label("method", lambda row: f"  {row.texts.ending}" if row.texts.ending else names[row.contender]),
        *(own, free, replace(difference, cell=lambda row: row.texts.difference)),
        replace(judged, cell=verdict, whole=True),
    )
    parts = []
    for question, heading in QUESTIONS.items():
        of_question = table_of(columns, [row for row in rows if row.question == question], title)
        parts += [replace(row, heading="" if place else heading) for place, row in enumerate(of_question.rows)]
    return Table(title, columns, tuple(parts), narrow=True)


def print_regrets(by_dataset: ByDataset, console: Console) -> None:
    """Print how much worse the confidences of every method are than an observer who knows how ambiguous images are.

    The AUGRC of the observer and the regrets of the confidences are in percent, means over seeds. Among the image
    confidences other than the default one, the one with the lowest regret on these test images is shown: the most that
    another image confidence would have given. Data sets without a known posterior are skipped.
    """
    retrieval = (name.replace("_", "\n") for name in RETRIEVAL_CONFIDENCES)
    columns = ("observer\nAUGRC", "default", "best other\nimage", *retrieval)
    for dataset, every in by_dataset.items():
        title = f"{printable(dataset)}: regret in %, AUGRC minus the observer's, clean images, mean over seeds"
        title += "\n(the observer knows P(answer is right): expected regrets are 0 or more)"
        groups = [group for group in every if any(map(group.confidences, ("augrc_regret", "observer_augrc")))]
        if groups:
            _print_rows(title, columns, {group.contender: _regrets(group) for group in groups}, console)


def _regrets(group: SeedGroup) -> Iterable[Cell | str]:
    def mean(metric: str, name: str) -> float:
        return SeedStatistics.of(group.per_seed(metric, variant="recall_at_1", confidence=name)).mean

    names = sorted(group.confidences("augrc_regret") - {OBSERVER})
    found = {name: value for name in names if (value := mean("augrc_regret", name)) == value}
    others = {name: value for name, value in found.items() if kind_of(name) == "image" and name != group.confidence}
    lowest = min(others, key=others.__getitem__, default="")
    yield percent(mean("observer_augrc", OBSERVER))
    yield percent(found.get(group.confidence))
    yield Cell(f"{percent(others[lowest])}\n{printable(lowest)}") if lowest else GAP
    yield from (percent(found.get(name)) for name in RETRIEVAL_CONFIDENCES)


def print_scorers(by_dataset: ByDataset, console: Console) -> None:
    """Print the mean MAP@R of every method by scorer, if others than their own and the cosine were tested."""
    for dataset, groups in by_dataset.items():
        tested = [(group, means) for group in groups if (means := _by_scorer(group))]
        names = sorted({name for _, means in tested for name in means})
        if not set(names) - {"cosine", *(group.scorer for group, _ in tested)}:
            continue
        rows = {
            group.contender: [Cell(percent(means.get(name), 1), bold=name == group.scorer) for name in names]
            for group, means in tested
        }
        title = f"{printable(dataset)}: mean MAP@R by scorer (own scorer in bold)"
        _print_rows(title, (printable(name).replace("_", "\n") for name in names), rows, console)


def _by_scorer(group: SeedGroup) -> dict[str, float]:
    """Mean MAP@R by scorer; without the SD, which scorers.csv has: all scorers have to fit 80 columns."""
    rows = group.rows
    rows = rows[(rows["metric"] == "map_at_r") & (rows["split"] == "test") & rows["fraction"].isna()]
    found = {}
    for name, own in rows[rows["variant"].isin(["", RERANKED])].groupby("scorer"):
        own = own[own["variant"] == own["variant"].max()]  # re-ranked where tests have that
        found[str(name)] = SeedStatistics.of(dict(zip(own["seed"], own["value"]))).mean
    return found


def print_paired(differences: pd.DataFrame, console: Console) -> None:
    """Print paired differences between methods, other minus first, with intervals and verdicts, by data set."""
    columns = [column for column in COMPARED if column.brief and not column.wide]
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
    return cells_table(title, headings("other\n- first", *(column.title for column in columns), "seeds"), lines)


def _paired_notes(rows: pd.DataFrame) -> list[str]:
    notes = ["verdict on the other, p adjusted by Holm's method; equivalent: inside the region"]
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
