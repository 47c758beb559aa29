"""Verdicts on systems: a method with a confidence of its own against the plain method with a free confidence.

A user chooses a network together with a confidence. A learned confidence that is better than the free ones of its own
network does not help if the network answers more queries wrongly than a plain one. So the whole systems are compared:
the answers that each accepts, the most confident first, and how many of these are wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import stats

from ..protocols.rows import FREE_IMAGE_CONFIDENCES, MARGIN, OWN, kind_of
from ..protocols.statistics import Outcome, Summary, holm, p_different, paired_difference
from ..registry import Registry
from .contender import CONTENDER, LABELS, Contender, by_budget
from .frame import tested_splits
from .seeds import NO_DIFFERENCE, SeedGroup, SeedStatistics, defined_values, difference_fields, divided
from .table import GAP, Cell, Column, Document, frame_of, grouped, interval, label, number, percent, table_of
from .verdicts import CHALLENGERS, METRIC, QUESTIONS, Question, images_of, outcome_of, same_order_as


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

CONSTANT = "constant"
"""Name of the rival that is as confident of every answer, which a free confidence has to beat on validation images."""

DEFAULTS: Mapping[Question, str] = {"before_gallery": FREE_IMAGE_CONFIDENCES[0], "at_query_time": MARGIN}
"""Free confidence of a network with too few wrong validation answers to choose one by."""

FEW_ERRORS = 100
"""Wrong validation answers below which no confidence is chosen by them."""


class Choice(NamedTuple):
    """Confidence of a network that its validation images chose, and why it is the default or why there is none."""

    name: str
    remark: str = ""


@dataclass(frozen=True)
class System:
    """Comparison of a method and its own confidence with the plain method and a free confidence, on one split.

    ``differences`` are plain minus method over paired seeds by title of :data:`MEASURES`, so above 0 if the method is
    better; ``against_best`` is that of AUGRC against the free confidence that is best on the test images, which chooses
    nothing. P-values are of AUGRC, adjusted over the methods that are counted at one place. A method whose own
    confidence orders images as a free one does (``same_order_as``) cannot win by it, and is not counted.
    """

    contender: Contender
    plain: Contender | None
    split: str
    question: Question
    leads: bool
    own: Choice
    rival: Choice
    values: Mapping[str, tuple[SeedStatistics, SeedStatistics]]
    differences: Mapping[str, Summary]
    against_best: Summary
    above_chance: Summary
    same_order_as: str
    outcome: Outcome | None = None
    reason: str = ""
    p: float = float("nan")
    p_holm: float = float("nan")
    p_bh: float = float("nan")

    @property
    def counts(self) -> bool:
        """True if it is a case that can be won or lost."""
        return self.outcome is not None and not self.same_order_as

    @property
    def holds(self) -> bool:
        """True if the outcome is still decided when it is adjusted over all methods that are counted."""
        return self.p_holm <= 0.05

    @property
    def survives(self) -> bool:
        """True if the method is better than the plain one with any free confidence, the best on test included."""
        return outcome_of(self.against_best) == "better"


def systems(groups: Iterable[SeedGroup]) -> list[System]:
    """Compare every method that has a confidence of its own with the plain method of its budget."""
    found: list[System] = []
    for own in divided(groups, ["dataset"]).values():
        held = {group.contender: group for group in own}
        for place, contenders in enumerate(by_budget(held).values()):
            here = [held[contender] for contender in contenders if not contender.ensemble]
            judged = [group for group in here if OWN in group.confidences(METRIC)]
            plain = plain_of(here) if judged else None
            rivals = {question: choose(plain, question) if plain else Choice("") for question in QUESTIONS}
            for group in judged:
                found += _of_group(group, plain, rivals, leads=not place)
    return _adjusted(found)


def plain_of(groups: Sequence[SeedGroup]) -> SeedGroup | None:
    """The plain method: the base of most heads or of the recipe, or else the only deterministic method there is."""
    bases = Counter(group.contender.base for group in groups if group.contender.base)
    name = max(bases, key=lambda base: bases[base]) if bases else _base_of_recipe(groups[0].contender.dataset)
    plain = [group for group in groups if not group.probabilistic and OWN not in group.confidences(METRIC)]
    named = [group for group in plain if group.contender.method == name]
    return next(iter(named or (plain if len(plain) == 1 else [])), None)


def _base_of_recipe(dataset: str) -> str:
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


def free_confidences(group: SeedGroup, question: Question) -> tuple[str, ...]:
    """Free confidences that a question allows: of images before the gallery, also of the ranking and both later on."""
    kinds = ("image",) if question == "before_gallery" else ("retrieval", "combined")
    names = sorted(group.confidences(METRIC))
    return tuple(name for name in names if kind_of(name) in kinds and name.partition("+")[0] != OWN)


def choose(group: SeedGroup, question: Question, names: Sequence[str] = ()) -> Choice:
    """Choose a confidence of a network by its mean AUROC over clean and corrupted validation images.

    Of its free confidences, unless there are names of its own ones; a constant (0.5) competes with free ones. The
    default is taken if fewer than :data:`FEW_ERRORS` validation answers are wrong, in the mean over seeds.
    """
    splits = sorted(split for split in group.splits(METRIC) if split == "val" or split.startswith("val_"))
    free = not names
    names = names or free_confidences(group, question)
    if not splits:
        return Choice("", "no validation images") if free or len(names) > 1 else Choice(names[0])
    default = DEFAULTS[question] if free else names[0]
    errors = sum(_wrong(group, split) for split in splits)
    if errors < FEW_ERRORS:
        return Choice(default, f"default, {errors:.0f} wrong validation answers")
    means = {CONSTANT: 0.5} if free else {}
    for name in names:
        values = [defined_values(group.per_seed(METRIC, split, confidence=name)) for split in splits]
        if all(len(each) == group.seeds for each in values):
            means[name] = float(np.mean([value for each in values for value in each.values()]))
    return Choice(max(means, key=lambda name: means[name])) if means else Choice("", "no AUROC on validation")


def _wrong(group: SeedGroup, split: str) -> float:
    """Number of wrong answers, mean over seeds, from the AUROC u of any confidence and its AUGRC g.

    The share r of wrong answers solves g = (1 - u) r (1 - r) + r^2 / 2 (Traub et al. 2024).
    """
    rows = group.rows[(group.rows["metric"] == METRIC) & (group.rows["split"] == split)]
    name, queries = str(rows["confidence"].iloc[0]), float(rows["n_queries"].mean())
    aurocs = group.per_seed(METRIC, split, confidence=name)
    areas = group.per_seed("augrc", split, "recall_at_1", name)
    both = np.array([(aurocs[seed], areas[seed]) for seed in set(aurocs) & set(areas)]).reshape(-1, 2)
    u, g = both[~np.isnan(both).any(1)].T
    shares = 2 * g / (1 - u + np.sqrt((1 - u) ** 2 + 4 * (u - 0.5) * g))
    return queries * float(shares.mean()) if len(shares) else 0.0


def _risks(group: SeedGroup | None, measure: Measure, split: str, name: str) -> dict[int, float]:
    """Values of a measure by seed, if there is such a confidence."""
    if group is None or not name:
        return {}
    if name == CONSTANT:
        return {seed: measure.constant * (1 - value) for seed, value in group.per_seed("recall_at_1", split).items()}
    return defined_values(group.per_seed(measure.metric, split, measure.variant, name))


def _difference(first: Mapping[int, float], second: Mapping[int, float]) -> Summary:
    return paired_difference(first, second) if set(first) & set(second) else NO_DIFFERENCE


def _system(
    group: SeedGroup, plain: SeedGroup | None, split: str, question: Question, own: Choice, rival: Choice, leads: bool
) -> System:
    ours = {measure.title: _risks(group, measure, split, own.name) for measure in MEASURES}
    theirs = {measure.title: _risks(plain, measure, split, rival.name) for measure in MEASURES}
    decides = MEASURES[0]
    free = (*free_confidences(plain, question), CONSTANT) if plain else ()
    every = [values for name in free if (values := _risks(plain, decides, split, name))]
    best = min(every, key=lambda values: SeedStatistics.of(values).mean, default={})
    aurocs = defined_values(group.per_seed(METRIC, split, confidence=own.name))
    found = System(
        contender=group.contender,
        plain=plain.contender if plain else None,
        split=split,
        question=question,
        leads=leads,
        own=own,
        rival=rival,
        values={title: (SeedStatistics.of(ours[title]), SeedStatistics.of(theirs[title])) for title in ours},
        differences={title: _difference(theirs[title], ours[title]) for title in ours},
        against_best=_difference(best, ours[decides.title]),
        above_chance=_difference(aurocs, dict.fromkeys(aurocs, 0.5)),
        same_order_as=same_order_as(group, split),
    )
    both = sorted(set(first := theirs[decides.title]) & set(second := ours[decides.title]))
    p = float(p_different(np.array([first[seed] - second[seed] for seed in both]))) if len(both) > 1 else float("nan")
    outcome, reason = _decide(found)
    return replace(found, outcome=outcome, reason=reason, p=p)


def _decide(found: System) -> tuple[Outcome | None, str]:
    """Outcome by the interval of AUGRC, and the reason if there is none or it is not what the interval says."""
    if found.plain is None:
        return None, "no result of the plain method at this budget"
    for choice in (found.own, found.rival):
        if not choice.name:
            return None, choice.remark
    difference = found.differences[MEASURES[0].title]
    if difference.n < 2:
        return None, "one seed" if difference.n else "no common seed"
    outcome = outcome_of(difference)
    if outcome == "better" and not found.above_chance.ci_low > 0:
        return "undecided", "the confidence is not above chance"
    return outcome, f"its confidence is {found.same_order_as}" if found.same_order_as else ""


def _adjusted(found: Sequence[System]) -> list[System]:
    """Adjust p-values over the methods that are counted, of all leading budgets or of one other budget."""
    families = grouped(
        (place for place, each in enumerate(found) if each.counts),
        lambda place: (found[place].question, found[place].split, found[place].leads or found[place].plain),
    )
    adjusted = list(found)
    for places in families.values():
        p = np.array([found[place].p for place in places])
        for place, p_holm, p_bh in zip(places, holm(p), stats.false_discovery_control(p)):
            adjusted[place] = replace(found[place], p_holm=float(p_holm), p_bh=float(p_bh))
    return adjusted


ABOUT = (
    "A method with a confidence of its own, against the plain method at the same budget with the free confidence that"
    " validation chose. AUGRC: share of queries that are answered wrongly and accepted, mean over coverages; risk at"
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


def difference_text(found: Summary) -> str:
    """Text of a difference in points with its interval."""
    return interval(*(percent(value, 1, "+") for value in (found.mean, found.ci_low, found.ci_high)))


JUDGED: tuple[Column[System], ...] = (
    label("plain", lambda each: each.plain.label if each.plain else GAP, note="plain method that it is compared with"),
    _of_choice("confidence", lambda each: each.own),
    _of_choice("free", lambda each: each.rival),
    *(column for measure in MEASURES for column in _values(measure)),
    Column("seeds", fields=lambda each: {"seeds": each.differences[MEASURES[0].title].n}, note="paired seeds"),
    Column(
        "verdict",
        lambda each: Cell(": ".join(filter(None, (each.outcome, each.reason))), mark=each.outcome or ""),
        lambda each: {"verdict": each.outcome or "", "reason": each.reason, "same_order_as": each.same_order_as},
        number=False,
        note="of AUGRC, plain minus method: better if the interval lies above 0, worse if below",
    ),
    Column(
        "p, Holm",
        lambda each: number(each.p_holm, 3),
        lambda each: {"p": each.p, "p_holm": each.p_holm},
        note="p-value of the difference of AUGRC, adjusted over all methods that are counted",
    ),
    Column(
        "p, BH",
        lambda each: number(each.p_bh, 3),
        lambda each: {"p_bh": each.p_bh},
        note="adjusted by Benjamini and Hochberg's method: the expected share of false ones among those below it",
    ),
    Column(
        "best on test",
        lambda each: GAP if each.outcome != "better" else "yes" if each.survives else "no",
        lambda each: {"best_on_test": each.survives},
        note="whether it is better than the plain method with every free confidence, the best on test included",
    ),
)
"""Columns of what is judged, in the tables of every format."""

COLUMNS: tuple[Column[System], ...] = (
    CONTENDER,
    *LABELS,
    Column("", fields=lambda each: {"split": each.split, "question": each.question}),
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
