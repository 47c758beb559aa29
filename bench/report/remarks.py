"""Remarks on what went wrong, a line for each kind: constant or reversed confidences, networks at chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..protocols.rows import OWN
from .seeds import SeedGroup, defined_values
from .table import grouped, interval, percent
from .verdicts import IMAGES, aurocs, difference_of, outcome_of

CHANCE = 0.6
"""Verification AUC below which a network is said to be near chance, which is 0.5: a mark for readers, no test.

Networks at random weights reach more: 0.67 at least on the digits of ``ndigit``."""


class Remark(NamedTuple):
    """What is wrong with a contender, in words that others may share, and a detail of its own, which may be empty."""

    kind: str
    detail: str = ""


def remarks(group: SeedGroup) -> tuple[Remark, ...]:
    """Find what is wrong with the results of a contender."""
    return tuple(_remarks(group))


def _remarks(group: SeedGroup) -> Iterator[Remark]:
    separated = defined_values(group.per_seed("verification_auc"))
    if separated and max(separated.values()) < CHANCE:
        mean = sum(separated.values()) / len(separated)
        yield Remark("Near chance, pairs are hardly told apart (verification AUC below 60)", percent(mean, 1))
    if constant := group.constant(OWN):
        yield Remark(f"Own confidence {constant}, so there is no verdict on it")
    for split, images in IMAGES.items():
        values = aurocs(group, split, OWN)
        found = difference_of(values, dict.fromkeys(values, 0.5))
        if found.n > 1 and outcome_of(found) == "worse":
            ends = (percent(0.5 + end, 1) for end in (found.mean, found.ci_low, found.ci_high))
            yield Remark(f"Own confidence reversed on {images} (AUROC below 50)", interval(*ends))


def lines(named: Iterable[tuple[str, Sequence[Remark]]]) -> list[str]:
    """One line for each kind of remark on contenders, by name.

    Example:
        >>> lines([("a", [Remark("At chance", "50.1")]), ("b", []), ("c", [Remark("At chance", "49.8")])])
        ['At chance: a (50.1), c (49.8).']
    """
    every = [(name, each) for name, own in named for each in own]
    return [
        f"{kind}: {', '.join(f'{name} ({each.detail})' if each.detail else name for name, each in own)}."
        for kind, own in grouped(every, lambda item: item[1].kind).items()
    ]
