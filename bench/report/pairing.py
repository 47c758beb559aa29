"""Paired differences between contenders (methods at one setting), seed by seed.

Seeds pair up because initialisation and order of the data depend on (data set, replicate), not on the method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TypedDict

import pandas as pd

from ..protocols.statistics import paired_difference
from .contender import by_contender
from .seeds import COMPARED, SeedGroup, defined_values, seed_groups

COMMON = ("protocol", "preset", "dataset", "ensemble")
"""Columns in which two contenders agree if they are compared."""
SIDES = ("first", "first_tuning", "other", "other_tuning")
"""Columns that name the two sides of a difference."""


class PairedDifference(TypedDict):
    """Mean difference of a metric, one method minus another, over the seeds that both have, with its 95 % t-interval.

    In the table of :func:`paired_methods` it is other minus first, in the table of :func:`paired_with_base` two-stage
    method minus its base.

    Attributes:
        metric: Name of the metric.
        split: Test images that it is measured on, such as ``test`` or ``test_crop``.
        variant: Variant of the metric, such as the source of a threshold; mostly empty.
        difference_mean: Mean over seeds of the difference at one seed.
        difference_sd: Standard deviation of the difference over seeds.
        ci95_low: Lower end of the interval of the mean difference.
        ci95_high: Upper end of the interval of the mean difference.
        seeds: Number of seeds for which both methods have a value.
    """

    metric: str
    split: str
    variant: str
    difference_mean: float
    difference_sd: float
    ci95_low: float
    ci95_high: float
    seeds: int


def _differences(minuend: SeedGroup, subtrahend: SeedGroup) -> Iterator[PairedDifference]:
    """``minuend - subtrahend`` in every column of the comparison, each with its own scorer and confidence."""
    for column in COMPARED:
        left, right = (defined_values(group.column(column)) for group in (minuend, subtrahend))
        if not set(left) & set(right):
            continue
        difference = paired_difference(left, right)
        yield {
            "metric": column.metric,
            "split": column.split,
            "variant": minuend.variant(column),
            "difference_mean": difference.mean,
            "difference_sd": difference.sd,
            "ci95_low": difference.ci_low,
            "ci95_high": difference.ci_high,
            "seeds": difference.n,
        }


def paired_methods(frame: pd.DataFrame, roles: pd.DataFrame, names: Sequence[str] = ()) -> pd.DataFrame:
    """Table of paired differences over seeds between two contenders (methods at one setting), other minus first.

    Contenders are compared if they share protocol, preset (a bundle of the protocol's settings), data set and
    combination of models (:class:`~bench.report.contender.Contender`).

    Args:
        frame: Tidy table of results (``metrics.csv``), one row per measured value: method, setting, metric, value and
            so on.
        roles: Table with one row per test: its id (``unit``) and its :class:`~bench.store.records.Role` (the method's
            own scorer, default confidence and so on).
        names: Methods to compare: ``names[0]`` is the first of every pair, any later contender is the other. If empty,
            every two contenders are compared, and the first is the one that comes first in sorted order.

    Returns:
        One row per pair and metric: protocol, preset, data set and ensemble; ``first`` and ``other`` with
        ``first_tuning`` and ``other_tuning`` (sources of their hyper-parameters); and the keys of
        :class:`PairedDifference`.
    """
    lines: list[dict[str, object]] = []
    for _, rows in frame.merge(roles, on="unit").groupby(list(COMMON), sort=True):
        for first, other in _pairs(seed_groups(rows), names):
            line: dict[str, object] = {key: getattr(first.contender, key) for key in COMMON}
            sides = (first.contender.label, first.contender.tuning, other.contender.label, other.contender.tuning)
            line |= dict(zip(SIDES, sides))
            lines += [{**line, **difference} for difference in _differences(other, first)]
    return pd.DataFrame(lines)


def _pairs(groups: list[SeedGroup], names: Sequence[str]) -> Iterator[tuple[SeedGroup, SeedGroup]]:
    if not names:
        yield from combinations(groups, 2)
        return
    chosen = [group for name in names for group in groups if group.contender.method == name]
    for first, other in combinations(chosen, 2):
        if first.contender.method == names[0]:
            yield first, other


def paired_with_base(frame: pd.DataFrame, roles: pd.DataFrame) -> pd.DataFrame:
    """Table of paired differences over seeds: two-stage method minus the base models that its heads were trained on.

    Args:
        frame: Tidy table of results (``metrics.csv``), one row per measured value: method, setting, metric, value and
            so on.
        roles: Table with one row per test: its id (``unit``) and its :class:`~bench.store.records.Role` (the method's
            own scorer, default confidence and so on).

    Returns:
        One row per two-stage contender (method at one setting) and metric: the columns of a
        :class:`~bench.report.contender.Contender` and the keys of :class:`PairedDifference`.
    """
    merged = frame.merge(roles, on="unit")
    lines: list[dict[str, object]] = []
    for rows in by_contender(merged[merged["base"] != ""]):
        # The very networks that the heads were trained on: budgets and pinned values of head and base may differ.
        base = merged[merged["train"].isin(set(rows["base_train"]))]
        if base.empty:
            continue
        head = SeedGroup.of(rows)
        lines += [{**head.contender._asdict(), **line} for line in _differences(head, SeedGroup.of(base))]
    return pd.DataFrame(lines)
