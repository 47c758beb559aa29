"""Verdicts on systems: a method with a confidence of its own against the plain method with a free confidence.

A user chooses a network together with a confidence. A learned confidence that is better than the free ones of its own
network does not help if the network answers more queries wrongly than a plain one. So the whole systems are compared:
the answers that each accepts, the most confident first, and how many of these are wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..protocols.rows import FITTED, OWN
from ..protocols.statistics import Outcome, Summary
from ..registry import Registry
from .contender import CONTENDER, LABELS, Contender, by_budget
from .frame import tested_splits
from .seeds import SeedGroup, SeedStatistics, defined_values, difference_fields, difference_text, divided
from .table import GAP, Cell, Column, Document, frame_of, grouped, held, label, percent, table_of
from .verdicts import (
    CHALLENGERS,
    CONSTANT,
    METRIC,
    QUESTIONS,
    SURE,
    Case,
    Choice,
    Question,
    adjusted,
    aurocs,
    choose,
    difference_of,
    free_confidences,
    images_of,
    no_ranking,
    outcome_of,
    p_of,
    p_of_win,
    ranking_of,
    same_order_as,
    survives,
)


class Measure(NamedTuple):
    """Risk of a system over coverages, lower is better, and its value for a confidence that is constant."""

    title: str
    metric: str
    variant: str
    constant: float


MEASURES = (
    Measure("AUGRC", "augrc", "recall_at_1", 0.5),
    Measure("risk at 80 %", "risk_at_coverage", "recall_at_1,coverage=0.8", 1.0),
    Measure("AURC", "aurc", "recall_at_1", 1.0),
)
"""What systems are compared by; the first decides. ``constant`` is a factor of the share of wrong answers."""


@dataclass(frozen=True, kw_only=True)
class System(Case):
    """Comparison of a method and its own confidence with the plain method and a free confidence, on one split.

    ``differences`` are plain minus method over paired seeds by title of :data:`MEASURES`, so above 0 if the method is
    better; the first decides. Each system has the ranking of :func:`~bench.report.verdicts.ranking_of`.
    ``with_agreement`` is whether the own confidence could be combined with the agreement, as the free ones can.
    """

    plain: Contender | None
    own: Choice
    rival: Choice
    values: Mapping[str, tuple[SeedStatistics, SeedStatistics]]
    differences: Mapping[str, Summary]
    above_chance: Summary
    with_agreement: bool

    @property
    def difference(self) -> Summary:
        """Difference of the measure that decides, the first of :data:`MEASURES`."""
        return self.differences[MEASURES[0].title]


def systems(groups: Iterable[SeedGroup], apart: Collection[str] = ()) -> list[System]:
    """Compare every method that has a confidence of its own with the plain method of its budget.

    P-values are adjusted over the cases of all data sets together, but for those ``apart``, each for itself.
    """
    found: list[System] = []
    for own in divided(groups, ["dataset"]).values():
        held = {group.contender: group.under(ranking_of(group)) for group in own}
        for place, contenders in enumerate(by_budget(held).values()):
            here = [held[contender] for contender in contenders if contender.ensemble in ("", "separated")]
            judged = [group for group in here if OWN in group.confidences(METRIC)]
            plain = plain_of(here) if judged else None
            rivals = {question: choose(plain, question) if plain else Choice("") for question in QUESTIONS}
            for group in judged:
                found += _of_group(group, plain, rivals, leads=not place)
    return adjusted(found, lambda each: (each.question, each.split, each.leads or each.plain, each.place(apart)))


def plain_of(groups: Sequence[SeedGroup]) -> SeedGroup | None:
    """The plain method: the base of most heads or of the recipe, or else the only deterministic method there is."""
    bases = Counter(group.contender.base for group in groups if group.contender.base)
    name = max(bases, key=lambda base: bases[base]) if bases else base_of_recipe(groups[0].contender.dataset)
    plain = [group for group in groups if not group.probabilistic and OWN not in group.confidences(METRIC)]
    named = [group for group in plain if group.contender.method == name]
    return next(iter(named or (plain if len(plain) == 1 else [])), None)


def base_of_recipe(dataset: str) -> str:
    """Base that the recipe of a data set names; empty for data sets of plug-ins, which are not here."""
    from ..protocols.recipes import recipe_of  # late: data sets import torch

    registry = Registry("datasets")
    return recipe_of(registry.dataset(dataset)).base if dataset in registry.names else ""


def _of_group(
    group: SeedGroup, plain: SeedGroup | None, rivals: Mapping[Question, Choice], leads: bool
) -> Iterator[System]:
    for question, rival in rivals.items():
        own = choose(group, question, CHALLENGERS[question])
        for split in tested_splits(group.splits(METRIC)):
            yield _system(group, plain, split, question, own, rival, leads)


def _risks(group: SeedGroup | None, measure: Measure, split: str, name: str) -> dict[int, float]:
    """Values of a measure by seed, if there is such a confidence."""
    if group is None or not name:
        return {}
    if name == CONSTANT:
        return {seed: measure.constant * (1 - value) for seed, value in group.per_seed("recall_at_1", split).items()}
    return defined_values(group.per_seed(measure.metric, split, measure.variant, name))


def _system(
    group: SeedGroup, plain: SeedGroup | None, split: str, question: Question, own: Choice, rival: Choice, leads: bool
) -> System:
    ours = {measure.title: _risks(group, measure, split, own.name) for measure in MEASURES}
    theirs = {measure.title: _risks(plain, measure, split, rival.name) for measure in MEASURES}
    decides = MEASURES[0]
    free = (*free_confidences(plain, question), CONSTANT) if plain else ()
    every = [_risks(plain, decides, split, name) for name in free]
    detected = aurocs(group, split, own.name)
    found = System(
        contender=group.contender,
        plain=plain.contender if plain else None,
        split=split,
        question=question,
        leads=leads,
        own=own,
        rival=rival,
        values={title: (SeedStatistics.of(ours[title]), SeedStatistics.of(theirs[title])) for title in ours},
        differences={title: difference_of(theirs[title], ours[title]) for title in ours},
        survives=survives(_turned(ours[decides.title]), map(_turned, every)),
        above_chance=difference_of(detected, dict.fromkeys(detected, 0.5)),
        with_agreement=f"{OWN}{FITTED}" in group.confidences(METRIC),
        ranking=group.scorer,
        same_order_as=same_order_as(group, split),
    )
    difference = found.difference
    p = p_of_win(difference, p_of(theirs[decides.title], ours[decides.title]), detected)
    outcome, reason = _decide(found)
    if constant := group.constant(own.name):
        outcome, reason, p = None, f"its confidence is {constant}", float("nan")
    elif outcome and (unknown := no_ranking(group)):
        outcome, reason = None, unknown
    return replace(found, outcome=outcome, reason=reason, p=p)


def _turned(values: Mapping[int, float]) -> dict[int, float]:
    """Risks as values of which the higher is better."""
    return {seed: -value for seed, value in values.items()}


def _decide(found: System) -> tuple[Outcome | None, str]:
    """Outcome by the interval of AUGRC, and the reason if there is none or it is not what the interval says."""
    if found.plain is None:
        return None, "no result of the plain method at this budget"
    for choice in (found.own, found.rival):
        if not choice.name:
            return None, choice.remark
    difference = found.difference
    if difference.n < 2:
        return None, "one seed" if difference.n else "no common seed"
    outcome = outcome_of(difference)
    if outcome == "better" and not found.above_chance.ci_low > 0:
        return "undecided", "the confidence is not above chance"
    return outcome, f"its confidence is {found.same_order_as}" if found.same_order_as else ""


ABOUT = (
    "A method with a confidence of its own, against the plain method at the same budget with the free confidence that"
    " validation chose, each ranking by the scorer that validation chose. AUGRC: share of queries that are answered"
    " wrongly and accepted, mean over coverages; risk at"
    " 80 %: share of wrong answers among the 80 % most confident; both of Recall@1, in percent, lower is better."
    " Differences are plain minus method, mean over paired seeds [95 % t-interval]; the verdict is that of AUGRC."
    " Holm: p-value adjusted over all methods that are counted. Best on test: whether the method is better than the"
    " plain one with every free confidence."
)


def _of_choice(side: str, of: Callable[[System], Choice]) -> Column[System]:
    return label(
        side,
        lambda each: of(each).name or GAP,
        fields=lambda each: {side: of(each).name, f"{side}_remark": of(each).remark},
    )


def _values(measure: Measure) -> Iterator[Column[System]]:
    key, title = measure.metric, measure.title

    def ends(each: System) -> dict[str, object]:
        ours, theirs = each.values[title]
        fields = difference_fields(each.differences[title])
        return {f"{key}_method": ours.mean, f"{key}_plain": theirs.mean} | {f"{key}_{k}": v for k, v in fields.items()}

    for side, name in enumerate(("method", "plain")):
        yield Column(
            f"{title}, {name}",
            lambda each, side=side: Cell(percent(mean := each.values[title][side].mean, 1), mean),  # type: ignore[misc]
        )
    yield Column(
        f"{title}, plain - method",
        lambda each: Cell(difference_text(each.differences[title]), each.differences[title].mean),
        ends,
    )


JUDGED: tuple[Column[System], ...] = (
    label("plain", lambda each: each.plain.label if each.plain else GAP, note="plain method that it is compared with"),
    _of_choice("confidence", lambda each: each.own),
    _of_choice("free", lambda each: each.rival),
    *(column for measure in MEASURES for column in _values(measure)),
    Column("seeds", fields=lambda each: {"seeds": each.difference.n}, note="paired seeds"),
    Column(
        "verdict",
        lambda each: Cell(": ".join(filter(None, (each.outcome, each.reason))), mark=each.outcome or ""),
        lambda each: {"verdict": each.outcome or "", "reason": each.reason},
        number=False,
        note="of AUGRC, plain minus method: better if the interval lies above 0, worse if below",
    ),
    *SURE,
)
"""Columns of what is judged, in the tables of every format."""

COLUMNS: tuple[Column[System], ...] = (
    CONTENDER,
    *LABELS,
    Column("", fields=lambda each: {"split": each.split, "question": each.question}),
    label("ranking", lambda each: each.ranking, "scorer that ranks", fields=held("ranking")),
    *JUDGED,
)
"""Columns of the tables of systems."""


def system_document(found: Sequence[System]) -> Document:
    """Tables of systems, one per data set, split and question."""
    places = grouped(found, lambda each: (each.contender.dataset, each.split, each.question))
    tables = tuple(
        table_of(COLUMNS, rows, f"{dataset}, {images_of(split)}, {QUESTIONS[question]}", caption=ABOUT)
        for (dataset, split, question), rows in places.items()
    )
    return Document("systems", "Systems", ABOUT, tables, frame_of(COLUMNS, found), always=("method",))
