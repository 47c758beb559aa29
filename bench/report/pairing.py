"""Paired differences between contenders, seed by seed.

Seeds pair up because initialisation and order of the data depend on (data set, replicate), not on the method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import TypedDict

import numpy as np
import pandas as pd

from ..protocols.metrics import declared_metric
from ..protocols.statistics import (
    Summary,
    Superiority,
    holm,
    p_different,
    p_equivalent,
    paired_difference,
    probability_of_superiority,
    seeds_needed,
    verdict,
)
from .contender import COMMON, Contender
from .seeds import COMPARED, ComparedColumn, SeedGroup, defined_values, divided

SIDE = ("", "_tuning", "_network", "_pinned")
"""Endings of the columns that name a side of a difference: the method itself, and what tells its settings apart."""

SIDES = tuple(f"{side}{ending}" for side in ("first", "other") for ending in SIDE)
"""Columns that name the two sides of a difference."""


class PairedDifference(TypedDict):
    """Mean difference of a metric, one method minus another, over the seeds that both have, and the verdict on it.

    Without a common seed, or with one only, what cannot be computed is nan. ``superiority`` is the share of paired
    seeds at which the one is better than the other, ties counted half, with its exact 95 % interval; ``region`` is the
    largest difference without practical meaning, or 0; p-values are before Holm's adjustment. ``seeds_needed`` are
    paired seeds, in all, at which a true difference of the observed size, but at least of the region's, would be found
    in 80 % of cases.
    """

    metric: str
    split: str
    variant: str
    difference_mean: float
    difference_sd: float
    ci95_low: float
    ci95_high: float
    seeds: int
    left_out: str
    superiority: float
    superiority_ci95_low: float
    superiority_ci95_high: float
    region: float
    p: float
    p_equivalence: float
    seeds_needed: float


def differences(
    minuend: SeedGroup, subtrahend: SeedGroup, columns: Sequence[ComparedColumn] = COMPARED
) -> Iterator[PairedDifference]:
    """Differences ``minuend - subtrahend`` over paired seeds, each side with its own scorer and confidence."""
    for column in columns:
        left, right = (defined_values(group.column(column)) for group in (minuend, subtrahend))
        if left or right:
            gaps = (
                (group.contender.label, group.gaps(column, set(left) | set(right))) for group in (minuend, subtrahend)
            )
            left_out = "; ".join(f"{label}: {gap}" for label, gap in gaps if gap)
            yield _difference(column, minuend.variant(column), left, right, left_out)


def _difference(
    column: ComparedColumn, variant: str, left: dict[int, float], right: dict[int, float], left_out: str
) -> PairedDifference:
    nan = float("nan")
    seeds = sorted(set(left) & set(right))
    values = np.array([left[seed] - right[seed] for seed in seeds])
    region, several = column.declared.equivalence, len(seeds) > 1
    difference = paired_difference(left, right) if seeds else Summary(nan, nan, nan, nan, 0)
    better = probability_of_superiority(column.sign * values) if seeds else Superiority(nan, nan, nan, 0)
    return {
        "metric": column.metric,
        "split": column.split,
        "variant": variant,
        "difference_mean": difference.mean,
        "difference_sd": difference.sd,
        "ci95_low": difference.ci_low,
        "ci95_high": difference.ci_high,
        "seeds": len(seeds),
        "left_out": left_out,
        "superiority": better.probability,
        "superiority_ci95_low": better.ci_low,
        "superiority_ci95_high": better.ci_high,
        "region": region,
        "p": float(p_different(values)) if several else nan,
        "p_equivalence": float(p_equivalent(values, region)) if several and region else nan,
        "seeds_needed": pairs_needed(difference, region) if several else nan,
    }


def pairs_needed(difference: Summary, region: float) -> float:
    """Paired seeds, in all, at which a difference of the observed size would be found in 80 % of cases.

    A difference smaller than the region counts as the region; without either there is no number (nan).
    """
    effect = max(abs(difference.mean), region)
    return seeds_needed(difference.sd, effect) if effect else float("nan")


def judged(lines: list[dict[str, object]]) -> pd.DataFrame:
    """Table of differences with p-values adjusted over the pairs of a data set and metric, and their verdicts."""
    table = pd.DataFrame(lines)
    if table.empty:
        return table
    family = table.groupby([*COMMON, "metric", "split"], sort=False)
    for name in ("p", "p_equivalence"):
        table[f"{name}_holm"] = family[name].transform(lambda p: holm(p.to_numpy()))
    sign = {metric: declared_metric(metric).sign for metric in table["metric"].unique()}
    keys = ("metric", "seeds", "difference_mean", "p_holm", "p_equivalence_holm")
    table["verdict"] = [
        verdict(sign[metric] * mean, p, equivalence) if seeds > 1 else "one seed" if seeds else "no pairs"
        for metric, seeds, mean, p, equivalence in zip(*(table[key] for key in keys))
    ]
    # Whole numbers, and an empty cell where there is none.
    table["seeds_needed"] = pd.Series([None if n != n else int(n) for n in table["seeds_needed"]], dtype=object)
    return table


def paired_methods(groups: Iterable[SeedGroup], names: Sequence[str] = ()) -> pd.DataFrame:
    """Table of paired differences over seeds between two contenders that share ``COMMON``, other minus first.

    ``names[0]`` is the first of every pair, any later contender is the other. Without names, every two contenders are
    compared, and the first is the one that comes first in sorted order. P-values are adjusted over the pairs of the
    table with the same data set, metric and split; the verdict is on the other, or the reason for having none.
    """
    lines: list[dict[str, object]] = []
    for own in divided(groups, COMMON).values():
        for first, other in _pairs(own, names):
            line: dict[str, object] = {key: getattr(first.contender, key) for key in COMMON}
            line |= dict(zip(SIDES, (*side(first.contender), *side(other.contender))))
            lines += [{**line, **difference} for difference in differences(other, first)]
    return judged(lines)


def side(contender: Contender) -> tuple[str, ...]:
    """Texts of a contender in the columns of a side: name, tuning, network, fixed settings."""
    return contender.label, contender.tuning, contender.network, contender.pinned.text


def _pairs(groups: list[SeedGroup], names: Sequence[str]) -> Iterator[tuple[SeedGroup, SeedGroup]]:
    if not names:
        yield from combinations(groups, 2)
        return
    # A name that is given twice must not enlarge the family that p-values are adjusted over.
    chosen = [group for name in dict.fromkeys(names) for group in groups if group.contender.method == name]
    for first, other in combinations(chosen, 2):
        if first.contender.method == names[0]:
            yield first, other


def paired_with_base(groups: Sequence[SeedGroup]) -> pd.DataFrame:
    """Table of paired differences over seeds: two-stage method minus the base models that its heads were trained on."""
    held = {group.contender: group for group in groups}
    lines: list[dict[str, object]] = []
    for head in groups:
        # The very networks that the heads were trained on: budgets and pinned values of head and base may differ.
        trained_on = set(head.rows["base_train"]) if head.contender.base else set()
        parts = [rows for group in groups if len(rows := group.rows[group.rows["train"].isin(trained_on)])]
        if not parts:
            continue
        # Its networks at seeds that have no head, so that these are named.
        alike = held[Contender.of(parts[0])].rows
        base = pd.concat([*parts, alike[~alike["seed"].isin(head.rows["seed"])]])
        lines += [{**head.contender._asdict(), **line} for line in differences(head, SeedGroup.of(base))]
    return judged(lines)
