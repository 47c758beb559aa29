"""Heads on frozen features against the network as it is, which they have to beat.

The reference is a method that trains nothing and is planned wherever heads are trained on frozen features
(:attr:`bench.methods.Method.reference_for_frozen`). P-values are adjusted over the heads of one budget of a data set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .contender import COMMON, Contender
from .pairing import Line, differences, judged
from .seeds import COMPARED, SeedGroup, SeedStatistics
from .table import grouped, interval

MARK = "\N{DAGGER}"
"""Mark of a head that is not shown to be better."""

_RETRIEVAL = next(column for column in COMPARED if column.metric == "map_at_r")

_ORDER = ("worse", "equivalent", "undecided", "better")


class Against(NamedTuple):
    """A head minus the reference by MAP@R over paired seeds: the line of the difference with its verdict."""

    reference: Contender
    level: str
    line: Line

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, ``equivalent`` or ``undecided``, as without a second pair."""
        return self.line["verdict"] if self.line["verdict"] in _ORDER else "undecided"

    @property
    def text(self) -> str:
        """Mean difference with its 95 % t-interval, in points."""
        ends = ("difference_mean", "ci95_low", "ci95_high")
        return interval(*(_RETRIEVAL.text(self.line[name], "+") for name in ends))


def against_reference(groups: Sequence[SeedGroup]) -> list[Against | None]:
    """Compare every contender of one budget with the reference; None for the reference, and without one."""
    found: dict[Contender, Against] = {}
    for own in grouped(groups, lambda group: group.contender.common).values():
        means = {group.contender: SeedStatistics.of(group.column(_RETRIEVAL)) for group in own if group.reference}
        if means:
            best = max(means, key=lambda each: means[each].mean)
            reference = next(group for group in own if group.contender == best)
            heads = [group for group in own if not group.reference]
            lines = [
                {**dict(zip(COMMON, best.common)), **line}
                for head in heads
                for line in differences(head, reference, [_RETRIEVAL])
            ]
            level = _RETRIEVAL.text(means[best].mean)
            for head, line in zip(heads, judged(lines).to_dict("records")):
                found[head.contender] = Against(best, level, line)
    return [found.get(group.contender) for group in groups]


def sentence(dataset: str, found: Iterable[tuple[str, Against | None]]) -> str:
    """Sentence about the heads of a data set, by name, that are not shown to be better; empty if all are.

    Example:
        >>> from bench.store.specs import Pinned
        >>> raw = Contender("p", "s", "d", "raw", "", "corrected", "default", 0, Pinned(), "net", 64, "")
        >>> found = {"a": "worse", "b": "better", "c": "worse"}
        >>> sentence("d", [(name, Against(raw, "30.10", {"verdict": verdict})) for name, verdict in found.items()])
        'On d, 2 of 3 heads retrieve worse than raw, the network as it is (MAP@R 30.10): a, c; better: b.'
    """
    heads = [(name, each) for name, each in found if each is not None]
    by_verdict: Mapping[str, list[tuple[str, Against]]] = grouped(heads, lambda head: head[1].verdict)
    behind = [name for verdict in _ORDER[:-1] for name, _ in by_verdict.get(verdict, ())]
    if not behind:
        return ""
    worse = by_verdict.get("worse", [])
    count = len(worse) or len(behind)
    what = f"retrieve{'s' * (count == 1)} worse" if worse else "is" if count == 1 else "are"
    what += "" if worse else " not shown to retrieve better"
    of = heads[0][1]
    texts = [", ".join(name for name, _ in worse)] if worse else []
    texts += [
        f"{verdict}: {', '.join(name for name, _ in by_verdict[verdict])}"
        for verdict in _ORDER[1:]
        if verdict in by_verdict
    ]
    start = f"On {dataset}, {count} of {len(heads)} heads {what} than {of.reference.label}, the network as it is"
    return f"{start} (MAP@R {of.level}): {'; '.join(texts)}."
