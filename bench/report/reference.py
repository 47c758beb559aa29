"""Heads on frozen features against the network as it is, which they have to beat.

The reference is a method that trains nothing and is planned wherever heads are trained on frozen features
(:attr:`bench.methods.Method.reference_for_frozen`). P-values are adjusted over the heads of one budget of a data set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .contender import COMMON, Contender
from .pairing import Line, differences, judged
from .seeds import COMPARED, ComparedColumn, SeedGroup, SeedStatistics
from .table import grouped, interval

MARK = "\N{DAGGER}"
"""Mark of a head that is not shown to be better."""

_RETRIEVAL = tuple(column for column in COMPARED if column.metric in ("recall_at_1", "map_at_r"))

_ORDER = ("worse", "equivalent", "undecided", "better")


class Against(NamedTuple):
    """A head minus the reference by one metric over paired seeds; ``level`` is the reference's mean as text."""

    reference: Contender
    column: ComparedColumn
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
        return interval(*(self.column.text(self.line[name], "+") for name in ends))


def against_reference(groups: Sequence[SeedGroup]) -> list[tuple[Against, ...]]:
    """Compare every contender of one budget with the reference; nothing for the reference, and without one."""
    found: dict[Contender, list[Against]] = {}
    for own in grouped(groups, lambda group: group.contender.common).values():
        references = [group for group in own if group.reference]
        heads = [group for group in own if not group.reference]
        for column in _RETRIEVAL if references and heads else ():
            means = [SeedStatistics.of(group.column(column)).mean for group in references]
            best = references[means.index(max(means))]
            common = dict(zip(COMMON, best.contender.common))
            lines = [{**common, **line} for head in heads for line in differences(head, best, [column])]
            for head, line in zip(heads, judged(lines).to_dict("records")):
                against = Against(best.contender, column, column.text(max(means)), line)
                found.setdefault(head.contender, []).append(against)
    return [tuple(found.get(group.contender, ())) for group in groups]


def sentences(dataset: str, heads: Iterable[tuple[str, Sequence[Against]]]) -> list[str]:
    """Sentences about the heads of a data set, by name, that are not shown to be better: one for each such metric.

    Example:
        >>> from bench.store.specs import Pinned
        >>> raw = Contender("p", "s", "d", "raw", "", "corrected", "default", 0, Pinned(), "net", 64, "")
        >>> found = {"a": "worse", "b": "better", "c": "worse"}
        >>> heads = {name: [Against(raw, COMPARED[1], "30.10", {"verdict": each})] for name, each in found.items()}
        >>> sentences("d", heads.items())
        ['On d, 2 of 3 heads have a worse MAP@R than raw, the network as it is (30.10): a, c; better: b.']
    """
    every = [(name, each) for name, own in heads for each in own]
    by_column = grouped(every, lambda head: head[1].column)
    return [_sentence(dataset, own) for own in by_column.values() if any(each.verdict != "better" for _, each in own)]


def _sentence(dataset: str, heads: Sequence[tuple[str, Against]]) -> str:
    names = {
        verdict: ", ".join(name for name, _ in own)
        for verdict, own in grouped(heads, lambda head: head[1].verdict).items()
    }
    of, column = heads[0][1], heads[0][1].column.title
    verdicts = [each.verdict for _, each in heads]
    worse = verdicts.count("worse")
    count = worse or len(verdicts) - verdicts.count("better")
    plural = count != 1
    if worse:
        what = f"{'have' if plural else 'has'} a worse {column}"
    else:
        what = f"{'are' if plural else 'is'} not shown to have a better {column}"
    texts = [
        f"{verdict}: {names[verdict]}" if verdict != "worse" else names[verdict]
        for verdict in _ORDER
        if verdict in names
    ]
    start = f"On {dataset}, {count} of {len(heads)} heads {what} than {of.reference.label}, the network as it is"
    return f"{start} ({of.level}): {'; '.join(texts)}."
