"""Variance by source: how much of the variance between runs vanishes when one source of randomness is frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..protocols.statistics import VarianceShare, variance_by_source
from .contender import Contender, by_contender, distinct_labels
from .frame import Results
from .seeds import COMPARED, ComparedColumn, SeedGroup, defined_values, seeds_text
from .text_table import TextTable, page_texts

ABOUT = (
    "Share of the variance between runs that vanishes when all runs have the same draw of a source [95 % interval]; SD:"
    " between runs in which everything varies. Shares add up to less than 1 if sources interact, and a share below 0"
    " says that the frozen runs happened to vary more. With few runs the intervals are wide."
)
"""Legend of the tables."""

NOTHING = "nothing"


@dataclass(frozen=True)
class SourceShare:
    """Share of one source of randomness in the variance of one metric of a contender (method at one setting).

    Attributes:
        contender: The contender, as its normal runs are.
        tuned_anew: Whether every run has a tuning study of its own, so that tuning is among the sources that vary.
        column: Column of the comparison table.
        source: The source that is frozen.
        varied: Values of the runs in which everything varies, by seed.
        frozen: Values of the runs in which the source is frozen, by seed.
        part: Its share; None if there is none.
        reason: Reason for having no share, or the seeds without a value; empty if there is nothing to say.
    """

    contender: Contender
    tuned_anew: bool
    column: ComparedColumn
    source: str
    varied: Mapping[int, float]
    frozen: Mapping[int, float]
    part: VarianceShare | None
    reason: str

    @property
    def sd(self) -> float:
        """Standard deviation of the runs in which everything varies; nan for fewer than two."""
        return float(np.std(list(self.varied.values()), ddof=1)) if len(self.varied) > 1 else float("nan")


def shares_of_variance(results: Results) -> list[SourceShare]:
    """Shares of all sources of randomness that were frozen, for every contender and column of the comparison.

    Args:
        results: Finished tests, those with a frozen source among them.

    Returns:
        Shares by contender, column and source. Empty without runs that freeze anything.
    """
    if not results.frozen:
        return []
    with_frozen = Results.of(results.frozen)
    merged = with_frozen.frame.merge(with_frozen.roles, on="unit")
    groups: dict[tuple[Contender, bool], dict[str, SeedGroup]] = {}
    for rows in by_contender(merged):
        group = SeedGroup.of(rows)
        pinned = group.contender.pinned
        contender = group.contender._replace(pinned=pinned.unfrozen)
        groups.setdefault((contender, pinned.tuned_anew), {})[pinned.frozen_source] = group
    normal = results.frame.merge(results.roles, on="unit")
    every = {group.contender: group for group in map(SeedGroup.of, by_contender(normal))} if len(normal) else {}
    return [
        share
        for (contender, anew), by_source in groups.items()
        for share in _of_contender(contender, anew, by_source, every.get(contender))
    ]


def _of_contender(
    contender: Contender, anew: bool, by_source: Mapping[str, SeedGroup], normal: SeedGroup | None
) -> Iterator[SourceShare]:
    # Normal runs share one tuning study: they are the runs in which tuning is frozen.
    varied = by_source.get(NOTHING) if anew else normal
    frozen = {source: group for source, group in by_source.items() if source != NOTHING}
    if anew and normal is not None:
        frozen["tuning"] = normal
    for column in COMPARED:
        values = {} if varied is None else defined_values(varied.column(column))
        for source, group in frozen.items():
            own = defined_values(group.column(column))
            if own or values:
                yield _share(contender, anew, column, source, values, own)


def _share(
    contender: Contender,
    anew: bool,
    column: ComparedColumn,
    source: str,
    varied: Mapping[int, float],
    frozen: Mapping[int, float],
) -> SourceShare:
    seeds = set(varied) | set(frozen)
    missing = {"nothing": seeds - set(varied), source: seeds - set(frozen)}
    gaps = [f"frozen {name}: no {seeds_text(those)}" for name, those in missing.items() if those]
    part = None
    if len(varied) < 2 or len(frozen) < 2:
        gaps.insert(0, "fewer than two runs")
    elif len(set(varied.values())) == 1:
        gaps.insert(0, "runs do not vary")
    else:
        part = variance_by_source(np.array(list(varied.values())), {source: [np.array(list(frozen.values()))]})[source]
    return SourceShare(contender, anew, column, source, varied, frozen, part, "; ".join(gaps))


def variance_frame(found: Sequence[SourceShare]) -> pd.DataFrame:
    """Table of shares as numbers, one row per contender (method at one setting), metric and source.

    Args:
        found: Shares, as :func:`shares_of_variance` makes them.

    Returns:
        Columns of a :class:`~bench.report.contender.Contender`; ``tuned_anew``; ``metric`` and ``split``; ``source``;
        ``sd`` of the runs in which everything varies, and their number ``runs``; ``variance``, ``share``,
        ``share_ci95_low``, ``share_ci95_high`` and ``frozen_runs``; ``reason``.
    """
    nan = float("nan")
    lines = []
    for each in found:
        part = each.part or VarianceShare(nan, nan, nan, nan, len(each.frozen))
        lines.append(
            {
                **each.contender._asdict(),
                "tuned_anew": each.tuned_anew,
                "metric": each.column.metric,
                "split": each.column.split,
                "source": each.source,
                "sd": each.sd,
                "runs": len(each.varied),
                "variance": part.variance,
                "share": part.share,
                "share_ci95_low": part.ci_low,
                "share_ci95_high": part.ci_high,
                "frozen_runs": part.n,
                "reason": each.reason,
            }
        )
    return pd.DataFrame(lines)


def variance_tables(found: Sequence[SourceShare]) -> list[TextTable]:
    """Shares as texts, one table per data set and column.

    Args:
        found: Shares, as :func:`shares_of_variance` makes them.
    """
    tables: dict[tuple[str, ComparedColumn, bool], list[SourceShare]] = {}
    for each in found:
        tables.setdefault((each.contender.dataset, each.column, each.tuned_anew), []).append(each)
    return [_text_table(dataset, column, anew, rows) for (dataset, column, anew), rows in tables.items()]


def _text_table(dataset: str, column: ComparedColumn, anew: bool, rows: Sequence[SourceShare]) -> TextTable:
    names = distinct_labels(list(dict.fromkeys(row.contender for row in rows)))
    sources = tuple(dict.fromkeys(row.source for row in rows))
    cells: dict[str, dict[str, str]] = {}
    notes = []
    for row in rows:
        own = cells.setdefault(names[row.contender], {})
        factor, digits = (100, 2) if column.percent else (1, 3)
        own["SD"] = f"{factor * row.sd:.{digits}f}" if row.sd == row.sd else "-"
        own["runs"] = str(len(row.varied))
        part = row.part
        own[row.source] = "-" if part is None else f"{part.share:.2f} [{part.ci_low:.2f}, {part.ci_high:.2f}]"
        notes += [f"{names[row.contender]}, {row.source}: {row.reason}."] if row.reason else []
    columns = ("method", "SD", "runs", *sources)
    tuned = ", every run tuned anew" if anew else ""
    return TextTable(
        title=f"{dataset}, {column.title}{tuned}",
        columns=columns,
        rows=tuple((name, *(own.get(heading, "-") for heading in columns[1:])) for name, own in cells.items()),
        notes=tuple(notes),
        caption=ABOUT,
    )


def variance_texts(found: Sequence[SourceShare]) -> dict[str, str]:
    """Shares of variance as Markdown and LaTeX, by ending of the file.

    Args:
        found: Shares, as :func:`shares_of_variance` makes them.
    """
    return page_texts("Variance by source", ABOUT, variance_tables(found))
