"""The main table of a report: one row per contender, the best values marked."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from ..protocols.rows import OWN, kind_of
from ..protocols.statistics.paired import ROUNDING
from .compare import NAN, OUTCOMES, Comparison, ask, compare
from .contender import PINNED, TUNING, Budget, Contender, budget_texts, distinct_labels, method_names, unequal_budgets
from .questions import HEAD, IMAGES, aurocs
from .ranks import Rank, ranks, unranked_text
from .seeds import COMPARED, ComparedColumn, SeedGroup, SeedStatistics, compared, defined_values, mean_of
from .table import (
    EVERYWHERE,
    Cell,
    Column,
    Document,
    frame_of,
    grouped,
    held,
    interval,
    label,
    named_by_reason,
    percent,
    table_of,
)

CHANCE = 0.6
"""Verification AUC below which a network is said to be near chance, which is 0.5: a mark for readers, no test.

Networks at random weights reach more: 0.67 at least on the digits of ``ndigit``."""

Remark = tuple[str, str]
"""What is wrong with a contender, in words that others may share, and a detail of its own, which may be empty."""


def remarks(group: SeedGroup) -> Iterator[Remark]:
    """Find what is wrong with the results of a contender."""
    separated = defined_values(group.per_seed("verification_auc"))
    if separated and max(separated.values()) < CHANCE:
        mean = sum(separated.values()) / len(separated)
        yield "Near chance, pairs are hardly told apart (verification AUC below 60)", percent(mean, 1)
    if constant := group.constant(OWN):
        yield f"Own confidence {constant}, so there is no verdict on it", ""
    for split, images in IMAGES.items():
        values = aurocs(group, split, OWN)
        found = compare([values], [dict.fromkeys(values, 0.0)])
        if found.high[0] < 0.5 - ROUNDING:
            ends = (percent(float(end[0]), 1) for end in (found.mean, found.low, found.high))
            yield f"Own confidence reversed on {images} (AUROC below 50)", interval(*ends)


_GIVEN = (
    ("test", "", "on clean images"),
    ("test_crop", "", "on centre crops"),
    ("test", ",gallery=half", "where half of the other classes left"),
)
"""Images and gallery of which a line says what thresholds give, with the end of the variant."""


def thresholds(group: SeedGroup) -> str:
    """What the threshold for a share of wrong answers, which validation images set, gives; empty in old records."""
    metrics = ("operating_coverage", "operating_risk")
    wishes = (variant for _, _, _, variant, metric, *_ in group.keys if metric in metrics)
    wish = next((text for text in wishes if text.startswith("risk=")), "").partition(",")[0]

    def mean(metric: str, split: str, variant: str) -> float:
        names = sorted(group.confidences(metric, split))
        found = [value for name in names for *_, value in group.values(metric, split, variant, name) if value == value]
        return fmean(found) if found else NAN

    said = []
    for split, end, where in _GIVEN if wish else ():
        answered, wrong = (mean(metric, split, wish + end) for metric in metrics)
        said += [f"{percent(wrong, 1)} % wrong, {percent(answered, 0)} % answered {where}"] if wrong == wrong else []
    asked = percent(float(wish.removeprefix("risk=") or NAN), 0)
    return f"a threshold set on validation images for {asked} % wrong answers gives {'; '.join(said)}" if said else ""


def lines(named: Iterable[tuple[str, Sequence[Remark]]]) -> list[str]:
    """One line for each kind of remark on contenders, by name.

    Example:
        >>> lines([("a", [("At chance", "50.1")]), ("b", []), ("c", [("At chance", "49.8")])])
        ['At chance: a (50.1), c (49.8).']
    """
    every = [(name, *each) for name, own in named for each in own]
    return [
        f"{kind}: {', '.join(f'{name} ({detail})' if detail else name for name, _, detail in own)}."
        for kind, own in grouped(every, lambda item: item[1]).items()
    ]


def about_heads(named: Iterable[tuple[str, Sequence[Comparison]]]) -> list[str]:
    """A line for each metric by which heads, by name, are not all shown to beat the network as it is."""
    every = [(name, row) for name, own in named for row in own]
    found = []
    for column, own in grouped(every, lambda each: each[1].column).items():
        outcomes = grouped(own, lambda each: each[1].outcome)
        if set(outcomes) != {"better"} and own[0][1].against:
            level = column.text(mean_of(own[0][1].others))
            said = [f"{each}: {', '.join(name for name, _ in outcomes[each])}" for each in OUTCOMES if each in outcomes]
            network = f"{own[0][1].against.label}, the network as it is ({level})"
            found.append(f"{column.title} of heads against {network}: {'; '.join(said)}.")
    return found


MARK = "\N{DAGGER}"
"""Mark of a head on frozen features that is not shown to be better than the network as it is."""

_MAP_AT_R = [column.metric for column in COMPARED].index("map_at_r")


@dataclass(frozen=True)
class ComparisonRow:
    """A row of the comparison table: one contender with its marked values by column of :func:`compared`.

    ``rank`` is by MAP@R over paired seeds, ``unequal`` how its budget differs from that of most of its rivals.
    ``against`` compares a head on frozen features with the network as it is, by each metric of retrieval. ``remarks``
    are what is wrong with it, ``thresholds`` what those give that validation images set.
    """

    group: SeedGroup
    values: tuple[SeedStatistics, ...]
    rank: Rank
    unequal: str
    against: Sequence[Comparison]
    remarks: Sequence[Remark]
    thresholds: str

    @property
    def contender(self) -> Contender:
        """The contender."""
        return self.group.contender

    @property
    def marked(self) -> str:
        """Name of the method with its base, marked if the head is not shown to be better than the network as it is."""
        return self.contender.label + f" {MARK}" * any(each.outcome != "better" for each in self.against)


def compare_within(groups: Sequence[SeedGroup]) -> list[ComparisonRow]:
    """Rows of the contenders of one budget of a data set, that of the highest mean MAP@R first.

    Ranks and marks are among them. The best mean of each metric is marked. The mean of a probabilistic method is also
    marked if it beats that of every deterministic method; in metrics that judge a confidence, it has to beat every
    image confidence of every deterministic method.
    """
    values = zip(*(_marked(column, groups) for column in compared()))
    ranked = ranks(groups, COMPARED[_MAP_AT_R])
    heads = grouped(ask(HEAD, groups), lambda row: row.contender)
    unequal = unequal_budgets([group.contender for group in groups], [group.seeds for group in groups])
    against = [heads.get(group.contender, ()) for group in groups]
    said = [tuple(remarks(group)) for group in groups]
    rows = map(ComparisonRow, groups, values, ranked, unequal, against, said, map(thresholds, groups))
    return sorted(rows, key=_order)


FEW = 3
"""Most rows of a table of which it is said what thresholds give."""

ALONE = "budgets of one method each"
"""Words for the table of the rows that have nothing to compare with."""


class Part(NamedTuple):
    """Rows of a data set that are one table: those of one budget, or those of all budgets of a single method."""

    dataset: str
    budget: str
    rows: Sequence[ComparisonRow]

    @property
    def title(self) -> str:
        """Name of the data set, with the budget if there is one."""
        return f"{self.dataset}, {self.budget}" if self.budget else self.dataset

    @property
    def named(self) -> Iterator[tuple[str, ComparisonRow]]:
        """The rows with names that tell them apart."""
        names = distinct_labels([row.contender for row in self.rows])
        return ((names[row.contender], row) for row in self.rows)

    @property
    def unranked(self) -> str:
        """Rows without a rank and the reasons, as text; nothing for a single row."""
        return unranked_text([(name, row.rank.reason) for name, row in self.named]) if len(self.rows) > 1 else ""

    @property
    def against(self) -> list[str]:
        """Sentences about the heads that are not shown to be better than the network as it is."""
        return [f"{MARK} {each}" for each in about_heads((name, row.against) for name, row in self.named)]

    @property
    def remarks(self) -> list[str]:
        """Lines on what is wrong with its rows."""
        return lines((name, row.remarks) for name, row in self.named)

    @property
    def thresholds(self) -> list[str]:
        """Sentences on thresholds of the rows, if they are few."""
        shown = [(name, row) for name, row in self.named if row.thresholds and len(self.rows) <= FEW]
        return [f"Thresholds: with {name}, {row.thresholds}." for name, row in shown]

    @property
    def unequal(self) -> str:
        """Rows with unequal budgets, as text."""
        return named_by_reason((name, row.unequal) for name, row in self.named)


def parts(dataset: str, budgets: Mapping[Budget, Sequence[ComparisonRow]]) -> Iterator[Part]:
    """Tables of a data set: one for each budget of several methods, one for all other rows.

    If there is one budget only, or one method only, as in a sweep over its settings, all rows are compared with each
    other (:func:`~bench.report.contender.ranked_together`).
    """
    every = [row for rows in budgets.values() for row in rows]
    several = [budget for budget, rows in budgets.items() if len(method_names(row.contender for row in rows)) > 1]
    if len(budgets) == 1:
        yield Part(dataset, "", every)
    elif len(method_names(row.contender for row in every)) == 1:
        yield Part(dataset, "", compare_within(sorted((row.group for row in every), key=lambda group: group.contender)))
    else:
        texts = budget_texts(list(budgets))
        yield from (Part(dataset, texts[budget], budgets[budget]) for budget in several)
        if alone := [row for budget, rows in budgets.items() if budget not in several for row in rows]:
            yield Part(dataset, ALONE if several else "", alone)


def _rival_means(group: SeedGroup, column: ComparedColumn) -> list[float]:
    """Means of a deterministic method that a probabilistic one has to beat."""
    names = {group.confidence}
    if column.of_confidence:
        names |= {name for name in {key[2] for key in group.keys} - {""} if kind_of(name) == "image"}
    means = [mean_of(group.column(column, name)) for name in sorted(names)]
    return [mean for mean in means if mean == mean]


def _marked(column: ComparedColumn, groups: Sequence[SeedGroup]) -> list[SeedStatistics]:
    """Values of one column with their marks."""
    values = [SeedStatistics.of(group.column(column)) for group in groups]
    # A mean over the seeds that happen to have a value is shown, but it does not compete.
    means = [column.sign * value.mean for value in values if value.complete]
    # A single row is not the best of anything.
    top = max(means) if means and len(values) > 1 else None
    rivals = [mean for group in groups if not group.role.probabilistic for mean in _rival_means(group, column)]
    bar = max((column.sign * rival for rival in rivals), default=math.inf)
    return [
        replace(
            value,
            best=value.complete and column.sign * value.mean == top,
            beats=value.complete and group.role.probabilistic and column.sign * value.mean > bar,
        )
        for value, group in zip(values, groups)
    ]


def _order(row: ComparisonRow) -> tuple[float, str]:
    mean = row.values[_MAP_AT_R].mean
    return -mean if mean == mean else 0.0, row.contender.label


def _ranked(row: ComparisonRow) -> dict[str, object]:
    interval = row.rank.interval
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {"rank": row.rank.text, "rank_low": low, "rank_high": high}


def _rank(row: ComparisonRow) -> Cell:
    interval = row.rank.interval
    # By the lowest rank; of equal ones, by the highest.
    place = interval.low + interval.high / 1000 if interval else float("nan")
    return Cell(row.rank.text, place, note=row.rank.reason or row.rank.seeds)


def metric_column(place: int, brief: bool = False) -> Column[ComparisonRow]:
    """Column of a metric."""
    column = compared()[place]
    name = "_".join(filter(None, [column.split, column.metric, column.variant]))

    def cell(row: ComparisonRow) -> Cell:
        return row.values[place].cell(column.percent, brief)

    arrow = " \N{DOWNWARDS ARROW}" if brief and column.sign < 0 else ""
    on_page = column.metric in ON_PAGE or place >= len(COMPARED)
    places = EVERYWHERE if brief else ("text", "page") if on_page else ("text",)
    return Column(
        (textwrap.fill(column.title, 14) if brief else column.title) + arrow,
        cell,
        lambda row: row.values[place].fields(name),
        note="mean ± SD over seeds",
        places=places,
    )


ON_PAGE = ("recall_at_1", "map_at_r", "spearman_crop")
"""Metrics of every report that a page shows; its CSV has all."""

COLUMNS: tuple[Column[ComparisonRow], ...] = (
    Column("", fields=lambda row: {"dataset": row.contender.dataset, **row.contender._asdict()}),
    # The name of a row with an unequal budget has a star.
    label("method", lambda row: f"{row.marked} *" if row.unequal else row.marked, places=("text",)),
    label("network", lambda row: row.contender.network, places=("text", "terminal")),
    replace(TUNING, places=("text", "terminal")),
    replace(PINNED, places=("text", "terminal")),
    Column(
        "trainings",
        fields=held("trainings", lambda row: row.group.role.trainings),
        label=True,
        note="trainings spent on tuning, those of the base included",
    ),
    Column(
        "seeds",
        fields=held("seeds", lambda row: row.group.seeds),
        label=True,
        note="number of seeds",
        places=EVERYWHERE,
    ),
    label("confidence", fields=held("confidence", lambda row: row.group.confidence), places=("text", "terminal")),
    Column(
        "rank",
        _rank,
        _ranked,
        label=True,
        note="ranks by MAP@R that the paired seeds leave possible, all methods of a budget at once",
        places=EVERYWHERE,
    ),
    label(
        "ties",
        lambda row: Cell(row.rank.ties, note=row.rank.reason),
        fields=lambda row: {"ties": row.rank.ties},
        note="methods that share a letter are not told apart",
        places=("text",),
    ),
    Column("", fields=lambda row: {"not_ranked": row.rank.reason, "unequal_budget": row.unequal}),
    *(metric_column(place) for place in range(len(COMPARED))),
)
"""Columns of the comparison in every format; a terminal shows those whose ``places`` say so and that are labels."""


def columns() -> tuple[Column[ComparisonRow], ...]:
    """Columns of the comparison with the metrics of plug-ins."""
    return (*COLUMNS, *map(metric_column, range(len(COMPARED), len(compared()))))


NOTE = (
    "Mean ± SD over seeds (ddof 1). Every method ranks by its own score. Percent, except the rank correlation"
    " `Crop rho` between confidence and crop size. "
    "AURC (on crops): lower is better. `trainings`: tuning trials of the method and of its base. `[4/5]`: one of five "
    "seeds gave every image the same confidence, which has no rank correlation. `sep.`: mean over the models of a "
    "cross-validation; `conc.`: their embeddings side by side; `ens.`: the models of all seeds of a base as one. "
    "`rank`: ranks by MAP@R that the paired seeds leave possible, for all methods at once with 95 % confidence, among "
    "those of one protocol, preset and ensemble; methods that share a letter in `ties` are not told apart."
)

CAPTION = (
    "mean ± SD over seeds, by the method's own score; bold: best; underlined: better than every deterministic method;"
    " rank: 95 % interval by MAP@R"
    " over paired seeds; ties: methods that share a letter are not told apart."
)
"""Caption of the comparison in LaTeX, after the name of the data set."""

SEVERAL_BUDGETS = (
    "A data set with results at several budgets (source of the hyper-parameters, trials, fixed settings, network, form"
    " of the methods) has a table for each, the leading one first: ranks, bold and underlined are within a table."
)
"""Rest of the introduction if a data set has several tables."""


TYPES = {"rank_low": "Int64", "rank_high": "Int64"}
"""Columns of the numbers that are whole or empty."""


def comparison_frame(found: Iterable[Part]) -> pd.DataFrame:
    """Numbers of the comparison, one row per data set and contender."""
    return frame_of(columns(), (row for part in found for row in part.rows), **TYPES)


def comparison_document(
    found: Sequence[Part], untested: Mapping[str, Sequence[str]] | None = None, splits: Sequence[Comparison] = ()
) -> Document:
    """Tables of the comparison, one per data set and budget; what is over class splits is counted below them."""
    introduction = NOTE + " **Bold**: best. <u>Underlined</u>: better than every deterministic method."
    introduction += f" {SEVERAL_BUDGETS}" if any(part.budget for part in found) else ""
    left = dict(untested or {})
    tables = []
    for part in found:
        lost = ", ".join(left.pop(part.dataset, ()))  # below the first table of the data set
        others = {number for each in splits if each.contender.dataset == part.dataset for number in each.values}
        left_to = f"{len(others)}, in table `splits`" if others else ""
        said = {"No rank": part.unranked, "* Unequal budget": part.unequal, "No finished test": lost}
        said["Class splits left out"] = left_to
        notes = (*part.against, *part.remarks, *(f"{name}: {text}." for name, text in said.items() if text))
        tables.append(table_of(columns(), part.rows, part.title, notes=notes, caption=CAPTION))
    always = ("method", "rank", "ties")
    return Document("comparison", "Comparison", introduction, tuple(tables), comparison_frame(found), always)
