"""Ranks of contenders by a metric, over paired seeds, and why a row has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..protocols.statistics import RankInterval, rank_intervals
from .contender import COMMON
from .seeds import ComparedColumn, SeedGroup, defined_values, seeds_text


@dataclass(frozen=True)
class Rank:
    """Rank of a contender among those that it is compared with, over some seeds, or the reason for having none."""

    interval: RankInterval | None = None
    seeds: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """Interval such as ``1-3``, or a dash."""
        return self.interval.text if self.interval else "-"

    @property
    def ties(self) -> str:
        """Letters of the tie groups, or a dash."""
        return self.interval.ties if self.interval else "-"


def ranks(groups: Sequence[SeedGroup], column: ComparedColumn) -> list[Rank]:
    """Rank contenders by a column of the comparison table; each has a rank, or the reason for having none.

    Contenders that share :data:`COMMON` compete. They are ranked over the seeds that most of them have; one that lacks
    a value at any of these seeds has no rank, because differences are paired and a smaller number of seeds for one
    method is a smaller number for all.
    """
    found = [Rank()] * len(groups)
    rivals: dict[tuple[object, ...], list[int]] = {}
    for index, group in enumerate(groups):
        rivals.setdefault(tuple(getattr(group.contender, key) for key in COMMON), []).append(index)
    for places in rivals.values():
        for place, rank in zip(places, _ranks([groups[place] for place in places], column)):
            found[place] = rank
    return found


@dataclass(frozen=True)
class Competition:
    """Contenders of a data set that have a value at the same seeds, those that most have, and why others have not.

    ``able`` are their places, ``values`` are ``[S, K]`` with the sign that makes higher better.
    """

    seeds: tuple[int, ...]
    able: tuple[int, ...]
    values: np.ndarray
    reasons: tuple[str, ...]


def competition(groups: Sequence[SeedGroup], column: ComparedColumn) -> Competition:
    """Find the seeds that most contenders have a value at, and who has a value at all of them."""
    values = [defined_values(group.column(column)) for group in groups]
    seeds = _most_common([frozenset(value) for value in values])
    able = tuple(index for index, value in enumerate(values) if seeds and seeds <= set(value))
    table = column.sign * np.array([[values[index][seed] for index in able] for seed in sorted(seeds)])
    return Competition(tuple(sorted(seeds)), able, table, tuple(_reason(group, column, seeds) for group in groups))


def _ranks(groups: list[SeedGroup], column: ComparedColumn) -> list[Rank]:
    if len(groups) < 2:
        return [Rank(reason="nothing to compare with")]
    found = competition(groups, column)
    seeds = seeds_text(found.seeds) if found.seeds else ""
    if len(found.able) < 2:
        return [Rank(reason=reason or f"no other method with {seeds}") for reason in found.reasons]
    ranked = [Rank(reason=reason) for reason in found.reasons]
    for index, interval in zip(found.able, rank_intervals(found.values)):
        ranked[index] = Rank(interval, seeds)
    return ranked


def _most_common(seeds: Iterable[frozenset[int]]) -> frozenset[int]:
    """Set of two seeds or more that most contenders have; of equally common ones, that which ranks most of them."""
    counts = Counter(own for own in seeds if len(own) > 1)

    def worth(own: frozenset[int]) -> tuple[int, int, int, list[int]]:
        return counts[own], sum(counts[other] for other in counts if own <= other), len(own), sorted(own)

    return max(counts, key=worth, default=frozenset())


def _reason(group: SeedGroup, column: ComparedColumn, seeds: frozenset[int]) -> str:
    count = len(defined_values(group.column(column)))
    if count < 2:
        return "one seed" if count else "no value"
    return group.gaps(column, seeds)


def unranked_text(labels: Iterable[tuple[str, Rank]]) -> str:
    """Contenders without a rank and the reasons, as text; empty if all have one, the reason alone if it is that of all.

    Example:
        >>> alone = Rank(reason="one seed")
        >>> unranked_text([("a", alone), ("b", Rank(reason="no seed 3")), ("c", alone)])
        'a, c (one seed); b (no seed 3)'
    """
    reasons: dict[str, list[str]] = {}
    for label, rank in labels:
        reasons.setdefault(rank.reason, []).append(label)
    if len(reasons) == 1:
        return next(iter(reasons))
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items() if reason)
