"""What a page says first: which method and which confidence to use on each data set, and what is not decided."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from markupsafe import Markup

from ...errors import UserError, printable
from ...protocols.rows import OWN
from ...registry import Registry
from ...store.specs import split_pinned
from ..compare import OUTCOMES, Comparison, Use, ask, level
from ..comparison import ComparisonRow
from ..contender import Contender, budget_texts, by_budget, distinct_labels
from ..questions import CONFIDENCE, CONSTANT, DECIDES, IMAGES, PLAIN, RETRIEVAL, SYSTEM, USES
from ..seeds import SeedGroup
from ..splits import MEAN, mean_row
from ..table import GAP, Cell, Table, cells_table, grouped, headings, named_by_reason, percent
from ..write import Judged
from .svg import ADJUSTED, Row, forest, range_of

FAMILIES = {"photographs": "Photographs", "characters": "Characters", "": "Other data", "toy": "Toys"}
"""Kinds of data sets with their headings, those whose results weigh most first."""

SIGNS = {"better": "▷", "worse": "◁", "undecided": "○", "equivalent": "=", "no verdict": "✕"}
SIGNS["depends on tuning"] = "◇"
HOLDS = {"better": "▶", "worse": "◀"}
"""Signs of outcomes; those that hold after the adjustment are filled."""

Place = tuple[Use, str]
"""Use of a confidence and split of images."""

PLACES: tuple[Place, ...] = tuple((use, split) for use in USES for split in IMAGES)
"""What a page shows: both uses of a confidence on clean images and on centre crops."""


@dataclass(frozen=True)
class Part:
    """Comparisons about one data set at its leading budget, over seeds or over class splits.

    ``means`` are MAP@R and Recall@1 of each method; ``against_plain`` compares MAP@R with that of the plain method.
    ``systems`` are judged by AUGRC, ``confidences`` by AUROC under the ranking that validation chose. ``groups`` and
    ``rows`` are results over seeds on the data set's own split, those of the rows at the leading budget.
    """

    name: str
    kind: str
    what: str
    slug: str
    unit: str
    groups: Mapping[Contender, SeedGroup]
    rows: Mapping[Contender, ComparisonRow]
    means: Mapping[Contender, Sequence[Comparison]]
    against_plain: Sequence[Comparison]
    systems: Sequence[Comparison]
    confidences: Sequence[Comparison]

    @property
    def title(self) -> str:
        """Its name, which says so if it is a toy."""
        return f"{self.name} (toy)" if self.kind == "toy" else self.name

    @property
    def over(self) -> str:
        """How many class splits or seeds there are, as text."""
        most = max((row.n for own in self.means.values() for row in own), default=0)
        return f"{most} {'class split' if self.unit == 'split' else self.unit}{'s' * (most != 1)}"

    @property
    def budget(self) -> str:
        """Text of the leading budget, with the networks."""
        texts = list(budget_texts(list(by_budget(self.means))).values())[:1]
        shared, _ = split_pinned([each.pinned for each in self.means])
        return ", ".join(filter(None, dict.fromkeys([*texts, *(each.network for each in self.means), shared])))

    @cached_property
    def labels(self) -> dict[Contender, str]:
        """Names of the contenders that tell them apart, the best MAP@R first."""
        return distinct_labels(sorted(self.means, key=lambda each: -self.level(each)))

    @cached_property
    def names(self) -> dict[Contender, str]:
        """Names for a table of several data sets: without the base, which is that of the data set."""
        short = {each: each._replace(base="").label for each in self.labels}
        several = Counter(short.values())
        return {each: name if several[name] == 1 else self.labels[each] for each, name in short.items()}

    @cached_property
    def ids(self) -> dict[Contender, str]:
        """Ids of the rows of the table of results."""
        return dict(zip(self.labels, (f"result-{self.slug}-{slug}" for slug in slugs(self.labels.values()))))

    def level(self, contender: Contender) -> float:
        """Mean MAP@R of a contender; below all others if it has none."""
        return max((r.mean for r in self.means[contender] if r.column == RETRIEVAL[0] and r.n), default=-1.0)

    @property
    def plain(self) -> Contender | None:
        """The plain method."""
        return next((row.against for row in (*self.systems, *self.against_plain) if row.against in self.means), None)

    @property
    def retrieves(self) -> Contender | None:
        """The plain method, unless some are shown to be better after the adjustment: then the best mean of these."""
        better = [row.contender for row in self.against_plain if won(row)]
        return max(better, key=self.level) if better else self.plain or max(self.means, key=self.level, default=None)

    def at(self, place: Place) -> list[Comparison]:
        """Systems at a place, the largest difference first, those without one last."""
        own = [row for row in self.systems if place_of(row) == place]
        return sorted(own, key=lambda row: -row.mean if row.mean == row.mean else 1e9)

    def wins(self, place: Place) -> list[Comparison]:
        """Systems that are better at a place, also after the adjustment."""
        return [row for row in self.at(place) if won(row)]

    def confidence(self, contender: Contender | None, place: Place, names: str = "") -> Comparison | None:
        """Comparison of a confidence of a contender with the free one: of those of ``names``, the first."""
        own = [row for row in self.confidences if row.contender == contender and place_of(row) == place]
        by_name = {row.confidence: row for row in own}
        return next((by_name[name] for name in names.split(" or ") if name in by_name), next(iter(own), None))

    def advised(self, place: Place) -> tuple[str, str]:
        """Confidence to use at a place, with its network unless it is the plain one, and its AUROC; may be empty."""
        wins = self.wins(place)
        contender = wins[0].contender if wins else self.plain or self.retrieves
        row = self.confidence(contender, place, wins[0].confidence if wins else "")
        if row is None:
            return "", GAP
        own = use_own(row, wins[0] if wins else None)
        name, values = (plainly(row.confidence), row.values) if own else (mostly(row.rival), row.others)
        text = f"{name} of {self.labels[row.contender]}" if own or wins else name
        return text if row.rival or own else "", percent(level(row, values), 0)

    def anchor(self, row: Comparison) -> str:
        """Id of the row of the table of confidences that has a comparison."""
        return "-".join((self.ids[row.contender], *place_of(row))).replace("_", "-")


def place_of(row: Comparison) -> Place:
    """Use and images of a comparison."""
    return row.use, row.column.split


def won(row: Comparison) -> bool:
    """Whether the contender is better, also after the adjustment."""
    return row.counts and row.outcome == "better" and row.holds


def use_own(row: Comparison, system: Comparison | None) -> bool:
    """Whether to use the own confidence of a network: one better than its free one, or of a better system not worse."""
    return won(row) or (system is not None and won(system) and row.outcome != "worse")


def plainly(confidence: str) -> str:
    """Name of a confidence for readers: ``method``, the one that a method learns, is ``own``."""
    return re.sub(rf"\b{OWN}\b", "own", confidence)


def mostly(names: str) -> str:
    """The name that class splits chose most often, which says so if there are others."""
    first, *others = plainly(names).split(" or ")
    first = "no free one (a constant)" if first == CONSTANT else first
    return f"most often {first}" if others else first


def title(place: Place) -> str:
    """Words for a use on a kind of images."""
    return f"{USES[place[0]].capitalize()}, {IMAGES[place[1]]}"


def slugs(names: Iterable[str]) -> list[str]:
    """Names as parts of ids, which differ.

    Example:
        >>> slugs(["dul_reg (arcface)", "dul-reg arcface", "?"])
        ['dul-reg-arcface', 'dul-reg-arcface--1', '--2']
    """
    found: list[str] = []
    for name in names:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        found.append(slug if slug and slug not in found else f"{slug}--{len(found)}")
    return found


def parts_of(judged: Judged) -> list[Part]:
    """Divide the comparisons of a report by data set, those that weigh most first."""
    over_splits = [row for row in judged.splits if row.question == MEAN]
    every = grouped((*judged.comparisons, *over_splits), lambda row: row.contender.dataset)
    declared = {name: _declared(name) for name in sorted(every.keys() | judged.budgets.keys())}
    names = sorted(declared, key=lambda name: list(FAMILIES).index(declared[name][0]))
    found: list[Part] = []
    for name, slug in zip(names, slugs(names)):
        of_splits = name in judged.over_splits or name not in judged.budgets
        own = [row for row in every.get(name, ()) if (row.unit == "split") == of_splits and row.leads]
        asked = grouped(own, lambda row: row.question)
        groups = {group.contender: group for group in judged.groups if group.contender.dataset == name}
        rows = {row.contender: row for row in next(iter(judged.budgets.get(name, {}).values()), ())}
        if not of_splits:
            asked[PLAIN.name] = ask(PLAIN, [groups[each] for each in rows])
            asked[MEAN] = [mean_row(each, column, groups[each].column(column)) for each in rows for column in RETRIEVAL]
        means = grouped(asked.get(MEAN, ()), lambda row: row.contender)
        contenders = dict.fromkeys(row.contender for row in own) if of_splits else rows
        units = {contender.unit for contender in contenders}
        found.append(
            Part(
                name,
                *declared[name],
                slug,
                "split" if of_splits else "replicate" if "replicate" in units else "seed",
                groups,
                {} if of_splits else rows,
                {each: means.get(each, []) for each in contenders},
                [row for row in asked.get(PLAIN.name, ()) if row.column == RETRIEVAL[0]],
                [row for row in asked.get(SYSTEM.name, ()) if row.column.metric == DECIDES],
                [row for row in asked.get(CONFIDENCE.name, ()) if row.about["chosen"]],
            )
        )
    return found


def _declared(name: str) -> tuple[str, str]:
    """Kind of a data set, and what it is, with its licence and source; nothing of one that is not known here."""
    try:
        known = Registry("datasets").dataset(name)
    except UserError:
        return "", "a data set of a plug-in"
    return known.kind if known.kind in FAMILIES else "", f"{known.summary}. {known.licence}. {known.citation}"


def headline(parts: Sequence[Part]) -> Markup:
    """Whose confidence is shown to be better on which data sets of a family, by use; smaller, what all come to."""
    said = []
    for use in USES:
        rows = [(part, row) for split in IMAGES for part in parts for row in part.at((use, split)) if row.counts]
        wins = [(part.names[row.contender], (part.name, row.column.split)) for part, row in rows if won(row)]
        at = {name: tuple(place for _, place in own) for name, own in grouped(wins, lambda win: win[0]).items()}
        names = [", ".join(own) + _where(where, len(parts) > 1) for where, own in grouped(at, at.__getitem__).items()]
        ordered = sorted((row for _, row in rows), key=lambda row: (OUTCOMES.index(row.outcome), not row.holds))
        words = (row.outcome + " only before adjustment" * (row.outcome in HOLDS and not row.holds) for row in ordered)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in Counter(words).items())
        shown = ", ".join(names) or f"none of {len({part.names[row.contender] for part, row in rows})} methods"
        text = Markup("{} {}<small>: {} of {} comparisons</small>").format(USES[use], shown, counts, len(rows))
        said += [text] if rows else []
    return Markup("; ").join(said) or Markup("no comparison")


def _where(places: Sequence[tuple[str, str]], several: bool) -> str:
    """Data sets in brackets, if there are several, each with its images unless they are all."""
    said = []
    for name, own in grouped(places, lambda place: place[0]).items():
        images = IMAGES[own[0][1]] * (len(own) < len(IMAGES))
        said += [" on ".join(filter(None, [name * several, images]))]
    return f" ({', '.join(said)})" if any(said) else ""


def crops_differ(parts: Sequence[Part]) -> bool:
    """Whether somebody wins on crops who does not on clean images, so that their picture has to be seen."""
    wins = {split: {r.contender for u in USES for p in parts for r in p.wins((u, split))} for split in IMAGES}
    return not wins["test_crop"] <= wins["test"]


def answers(parts: Sequence[Part]) -> Iterator[tuple[str, Markup]]:
    """What to use on data sets of a family, and what is not decided: topics with texts."""
    levels = [(part, part.retrieves, part.level(part.retrieves)) for part in parts if part.retrieves]
    name = "{} {}" if len(parts) > 1 else "{1}"
    chosen = [(part.labels[each], name.format(part.name, percent(level, 1))) for part, each, level in levels]
    yield "To retrieve (MAP@R in %)", _listed(chosen)
    networks = [("frozen " * each.pinned.frozen_backbone + each.network, part.name) for part, each, _ in levels]
    yield "Network and dimension", _listed(networks)
    for use in USES:
        found = _listed(_spread(parts, use, lambda part, place: [part.advised(place)]))
        yield f"Confidence {USES[use]} (AUROC in %, clean / crops)", found
    for use in USES:
        wins = _spread(parts, use, lambda part, place: [(part.names[row.contender], "") for row in part.wins(place)])
        if found := _listed(wins):
            yield f"Systems with a learned confidence shown to be better {USES[use]}", found
    rows = [(part, row) for place in PLACES for part in parts for row in part.at(place)]
    said = []
    for use, own in grouped((row for _, row in rows if row.counts), lambda row: row.use).items():
        undecided = [row.high for row in own if row.outcome == "undecided"]
        count = f"{len(undecided)} of {len(own)} comparisons {USES[use]}" if len(own) > len(IMAGES) else USES[use]
        if undecided:
            said.append(f"{count}: intervals reach {percent(max(undecided), 1, '+')} points")
    yield "Not decided", Markup("{}").format("; ".join(said) or "nothing")
    turned = [
        (part.names[row.contender], f"{part.name} " * (len(parts) > 1) + f"{USES[row.use]}, {IMAGES[row.column.split]}")
        for part, row in rows
        if row.outcome == "depends on tuning"
    ]
    if turned:
        yield "Depends on tuning", _listed(turned)
    lost = ((part, row) for part, row in rows if row.outcome == "no verdict")
    reasons = named_by_reason(sorted({(f"{part.names[row.contender]} on {part.name}", row.why) for part, row in lost}))
    if reasons:
        yield "No verdict", Markup("{}").format(printable(reasons))


def _spread(parts: Sequence[Part], use: Use, found: Callable[..., list[tuple[str, str]]]) -> Iterator[tuple[str, str]]:
    """Names with the data set, the images if they are not alike on all, and the details of each."""
    for part in parts:
        every = [(name, split, detail) for split in IMAGES for name, detail in found(part, (use, split)) if name]
        tested = {split for split in IMAGES if part.at((use, split))} or {split for _, split, _ in every}
        for name, own in grouped(every, lambda each: each[0]).items():
            where = [part.name] if len(parts) > 1 else []
            where += [f"on {IMAGES[own[0][1]]}"] if len(own) < len(tested) else []
            where += [" / ".join(filter(None, (detail for *_, detail in own)))]
            yield name, " ".join(where).strip()


def _listed(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Names in bold, each with its places."""
    texts = []
    for name, own in grouped(pairs, lambda pair: pair[0]).items():
        places = ", ".join(place for _, place in own)
        texts.append(Markup("<b>{}</b>{}").format(printable(name), printable(f" ({places})" if places else "")))
    return Markup("; ").join(texts)


def outcomes(part: Part) -> Iterator[str]:
    """For each method with a confidence of its own, what its comparisons with the plain method come to."""
    for contender, rows in grouped(part.systems, lambda row: row.contender).items():
        own = [("retrieval", row) for row in part.against_plain if row.contender == contender]
        own += [(f"confidence {title(place_of(row))}".lower(), row) for row in rows if row.column.split in IMAGES]
        said = [part.labels[contender] + (f" against {part.labels[part.plain]}, in points" if part.plain else "")]
        for verdict, found in grouped(own, lambda each: each[1].verdict).items():
            topics = [f"{topic} {percent(row.mean, 1, '+')}".removesuffix(f" {GAP}") for topic, row in found]
            said.append(f"{verdict.capitalize()}: {'; '.join(topics)}")
        yield f"{'. '.join(said)}."


def pictures(parts: Sequence[Part], split: str) -> list[tuple[str, Markup]]:
    """Forest plots of systems on data sets of a family, without those that order images as a free confidence does."""
    shown = {(use, split): [(part.title, _drawn(part, (use, split))) for part in parts] for use in USES}
    limits = range_of(row for panels in shown.values() for _, rows in panels for row in rows)
    drawn = partial(forest, x_label="AUGRC, plain minus method, points", limits=limits, region=0.5)
    return [(title(place), Markup(drawn(panels, label=title(place)))) for place, panels in shown.items()]


def _drawn(part: Part, place: Place) -> list[Row]:
    ends = {row: (100 * row.mean, 100 * row.low, 100 * row.high) for row in part.at(place) if not row.same_order_as}
    return [(part.names[r.contender], *ends[r], r.outcome + ADJUSTED * r.holds, f"#{part.anchor(r)}") for r in ends]


def matrix(parts: Sequence[Part], place: Place) -> Table:
    """Methods by data sets: sign of the outcome and difference, which lead to the numbers."""
    cells = {(part.names[row.contender], part.slug): _cell(part, row) for part in parts for row in part.at(place)}
    names = sorted({name for name, _ in cells})
    rows = [[name, *(cells.get((name, part.slug), GAP) for part in parts)] for name in names]
    return cells_table(title(place), headings("method", *(part.name for part in parts)), rows, small="small")


def _cell(part: Part, row: Comparison) -> Cell:
    sign = (HOLDS if row.holds else SIGNS).get(row.outcome, SIGNS[row.outcome])
    digits = 1 if abs(row.mean) >= 5e-4 else 2
    text = f"{sign} {percent(row.mean, digits, '+')}".removesuffix(f" {GAP}")
    note, href = f"{row.verdict}: {row.text} points", part.anchor(row)
    if row.same_order_as:
        return Cell(f"({text})", row.mean, note=f"not counted, {row.why}", href=href)
    return Cell(text, row.mean, mark=row.outcome, note=note, href=href)
