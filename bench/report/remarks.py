"""Lines below a table on what went wrong: heads without a gain, useless confidences, networks at chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..protocols.rows import OWN
from ..protocols.statistics.paired import ROUNDING
from .compare import OUTCOMES, Comparison, compare
from .questions import IMAGES, aurocs
from .seeds import SeedGroup, SeedStatistics, defined_values
from .table import grouped, interval, percent

CHANCE = 0.6
"""Verification AUC below which a network is said to be near chance, which is 0.5: a mark for readers, no test.

Networks at random weights reach more: 0.67 at least on the digits of ``ndigit``."""

GONE = float("nan")

Remark = tuple[str, str]
"""What is wrong with a contender, in words that others may share, and a detail of its own, which may be empty."""


def remarks(group: SeedGroup) -> tuple[Remark, ...]:
    """Find what is wrong with the results of a contender."""
    return tuple(_remarks(group))


def _remarks(group: SeedGroup) -> Iterator[Remark]:
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
    rows = group.rows[group.rows["metric"].isin(["operating_coverage", "operating_risk"])]
    wish = next((text for text in rows["variant"] if text.startswith("risk=")), "").partition(",")[0]
    means = rows.groupby(["split", "variant", "metric"], observed=True)["value"].mean()
    said = []
    for split, end, where in _GIVEN if wish else ():
        answered, wrong = (means.get((split, wish + end, f"operating_{each}"), GONE) for each in ("coverage", "risk"))
        said += [f"{percent(wrong, 1)} % wrong, {percent(answered, 0)} % answered {where}"] if wrong == wrong else []
    asked = percent(float(wish.removeprefix("risk=") or GONE), 0)
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
            level = column.text(SeedStatistics.of(own[0][1].others).mean)
            said = [f"{each}: {', '.join(name for name, _ in outcomes[each])}" for each in OUTCOMES if each in outcomes]
            network = f"{own[0][1].against.label}, the network as it is ({level})"
            found.append(f"{column.title} of heads against {network}: {'; '.join(said)}.")
    return found
