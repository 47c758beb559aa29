"""The verdict on a data set: the facts that a page is made of, and what follows for retrieval and confidences."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from ...protocols.rows import COMBINED, FITTED, FITTED_TO_MARGIN, OWN
from ...protocols.statistics import Outcome, Summary, may_be_best, paired_difference
from ..comparison import ComparisonRow
from ..contender import Budget, Contender, budget_texts, distinct_labels, is_untuned, method_names
from ..pairing import pairs_needed
from ..seeds import COMPARED, ComparedColumn, SeedGroup, SeedStatistics, defined_values, difference_text
from ..table import named_by_reason, percent
from ..verdicts import CONSTANT, IMAGES, METRIC, QUESTIONS, Question, Verdict, aurocs, images_of, outcome_of
from ..write import Judged

RETRIEVAL = next(column for column in COMPARED if column.metric == "map_at_r")
"""Column of the comparison by which methods are ranked."""

CONFIDENCE = ComparedColumn(METRIC)
"""Column that the verdicts about confidences are about."""

NEAR_CHANCE = 55.0
"""AUROC in percent below which the page calls a confidence near chance, which is 50: a mark for readers, no test.

With normal confidences of equal spread, leaving out the less confident half of the answers then leaves nine tenths of
the share of errors, so that there is little to gain, whatever the interval says.
"""

ENDINGS = {
    FITTED: " + margin + agreement (fitted)",
    FITTED_TO_MARGIN: " + margin (fitted)",
    COMBINED: " + margin (ranks)",
}
"""Words for the ways in which an image confidence is combined with free ones of the ranking."""


@dataclass
class Anchors:
    """Ids of the parts of a page, which links lead to: each is unique and a function of the names it is made of."""

    taken: set[str] = field(default_factory=set)

    def of(self, *names: str) -> str:
        """Make an id of names, in lower-case letters, digits and hyphens; equal ones get a number.

        Example:
            >>> anchors = Anchors()
            >>> anchors.of("verdict", "a <b>"), anchors.of("verdict", "A_B")
            ('verdict-a-b', 'verdict-a-b-2')
        """
        slug = re.sub(r"[^a-z0-9]+", "-", " ".join(names).lower())[:80].strip("-") or "part"
        anchor, number = slug, 1
        while anchor in self.taken:
            number += 1
            anchor = f"{slug}-{number}"
        self.taken.add(anchor)
        return anchor


@dataclass(frozen=True)
class DatasetFacts:
    """Everything that the page says about the methods of one data set at one budget, which words compare.

    Rows of the comparison are by mean MAP@R, the highest first. ``models`` are the trained networks behind one result
    of each contender: those of an ensemble or of all folds. ``methods`` are those with results at any budget. Anchors
    are ids of rows, and of this part of the verdict; ``settings`` are those of its trainings that matter most, as text.
    The title is the name, which says so if the data set is a toy.
    """

    name: str
    budget: Budget
    budget_text: str
    rows: tuple[ComparisonRow, ...]
    groups: Mapping[Contender, SeedGroup]
    verdicts: tuple[Verdict, ...]
    labels: Mapping[Contender, str]
    anchors: Mapping[Contender, str]
    anchor: str
    models: Mapping[Contender, int]
    methods: tuple[str, ...]
    settings: str = ""
    title: str = ""

    @property
    def leagues(self) -> dict[str, list[ComparisonRow]]:
        """Rows with a rank by the kind of ensemble that they are compared within, highest mean first."""
        found: dict[str, list[ComparisonRow]] = {}
        for row in self.rows:
            if row.rank.interval is not None:
                found.setdefault(row.contender.ensemble, []).append(row)
        return found

    def is_probabilistic(self, row: ComparisonRow) -> bool:
        """True if the embedding of a method is a distribution."""
        return self.groups[row.contender].probabilistic

    @property
    def own(self) -> list[str]:
        """Names of the methods that have results at this budget, sorted."""
        return method_names(row.contender for row in self.rows)

    @property
    def absent(self) -> list[str]:
        """Names of the methods that the data set has results of, but none at this budget."""
        return sorted(set(self.methods) - set(self.own))

    @property
    def untuned(self) -> list[str]:
        """Names of methods with one trial among others with more, since they have nothing to tune."""
        if self.budget.trials < 2:
            return []
        return [self.labels[row.contender] for row in self.rows if is_untuned(row.contender)]


def dataset_facts(judged: Judged, anchors: Anchors) -> list[DatasetFacts]:
    """What the records say, divided by data set and budget, the leading one first; adds ids of rows to anchors."""
    answers: dict[Contender, list[Verdict]] = {}
    for each in judged.verdicts:
        answers.setdefault(each.contender, []).append(each)
    # Of several tests of a contender, the largest number of networks.
    models: dict[Contender, int] = {}
    for test in judged.results.tests:
        contender = Contender.of_columns(test.columns)
        models[contender] = max(len(test.spec.train), models.get(contender, 1))
    found = []
    for name, budgets in judged.budgets.items():
        groups = {group.contender: group for group in judged.by_dataset[name]}
        texts = budget_texts(list(budgets))
        methods = tuple(method_names(groups))
        for place, (budget, rows) in enumerate(budgets.items()):
            contenders = [contender for contender in groups if contender in {row.contender for row in rows}]
            labels = distinct_labels(contenders)
            # The short ids are those of the leading budget.
            which = [texts[budget]] if place else []
            found.append(
                DatasetFacts(
                    name,
                    budget,
                    texts[budget],
                    tuple(rows),
                    {contender: groups[contender] for contender in contenders},
                    tuple(each for contender in contenders for each in answers.get(contender, ())),
                    labels,
                    {row.contender: anchors.of("result", name, labels[row.contender], *which) for row in rows},
                    anchors.of("verdict", name, *which),
                    models,
                    methods,
                    title=name,
                )
            )
    return found


def statistics_of(row: ComparisonRow, column: ComparedColumn) -> SeedStatistics:
    """Mean and SD over seeds in one column of a row of the comparison."""
    return row.values[COMPARED.index(column)]


@dataclass(frozen=True)
class Difference:
    """A paired difference as the page shows it: its mean with its 95 % t-interval in points, and what it decides.

    The decision is the outcome in words, with the paired seeds that it needs in all if undecided; nan if none are.
    """

    text: str
    outcome: Outcome
    decision: str
    needed: float
    mean: float

    @property
    def is_equal(self) -> bool:
        """True if the whole interval is too small to matter."""
        return self.outcome == "equivalent"

    @property
    def is_told_apart(self) -> bool:
        """True if the interval does not contain 0, and is not of a size that does not matter."""
        return self.outcome in ("better", "worse")


def difference_of(summary: Summary, column: ComparedColumn) -> Difference:
    """Describe a paired difference over seeds of a column of shares."""
    region, needed = column.declared.equivalence, float("nan")
    text = difference_text(summary)
    if summary.n < 2:
        return Difference(text, "undecided", "undecided: one seed", needed, summary.mean)
    outcome = outcome_of(summary, region)
    words = f"equivalent within {points_text(column)}" if outcome == "equivalent" else f"{outcome} as a pair"
    if outcome == "undecided":
        # An estimate: if it comes out at those that have decided nothing, one more is the least.
        needed = max(pairs_needed(summary, region), summary.n + 1)
        words = f"undecided: needs about {needed:,.0f} seeds in all"
    return Difference(text, outcome, words, needed, summary.mean)


def state_of(each: Verdict) -> Outcome | Literal[""]:
    """Outcome of a verdict, ``equivalent`` if it is no better and the whole interval is too small to matter."""
    if each.outcome and each.outcome != "better" and each.difference is not None:
        return "equivalent" if difference_of(each.difference, CONFIDENCE).is_equal else each.outcome
    return each.outcome or ""


def points_text(column: ComparedColumn) -> str:
    """Smallest difference that matters in a column of shares, as text."""
    region = column.declared.equivalence
    return f"{100 * region:g} point{'s' * (region != 0.01)}"


@dataclass(frozen=True)
class Candidate:
    """A method that may be the best as well, and how far the leading one is ahead of it."""

    row: ComparisonRow
    ahead: Difference | None


@dataclass(frozen=True)
class Retrieval:
    """Answer to the question which method to use for retrieval, among those that are compared with one another.

    Candidates are other methods that no method is better than at 95 % confidence: their rank intervals begin at 1.
    ``other_kind`` is the highest mean of a deterministic method if the leader is probabilistic, and the other way
    round.
    """

    place: str
    leader: ComparisonRow
    candidates: tuple[Candidate, ...]
    other_kind: Candidate | None
    ranked: int

    @property
    def beaten(self) -> int:
        """Number of methods that another one is better than, at 95 % confidence."""
        return self.ranked - 1 - len(self.candidates)


@dataclass(frozen=True)
class Advice:
    """Confidence to use with one method, on some images, for one question, or the reason for having no answer.

    ``outcome`` is that of the own confidence against the free one, ``alike`` whether it is better and orders the
    images as a free one does; ``own`` is the difference of both, in points, of the own confidence that
    ``best`` describes. ``caveat`` is a clause about the free confidence that may be as good, ``over`` the free one that
    an own one is better than.
    """

    use: str
    outcome: Outcome | Literal[""] = ""
    auroc: str = ""
    own: str = ""
    reason: str = ""
    over: str = ""
    best: str = ""
    caveat: str = ""
    alike: bool = False

    @property
    def is_own(self) -> bool:
        """True if the confidence to use is the method's own, alone or combined."""
        return self.outcome == "better"

    @property
    def near_chance(self) -> bool:
        """True if its AUROC is below :data:`NEAR_CHANCE`."""
        return bool(self.auroc) and float(self.auroc) < NEAR_CHANCE


def advice(answers: Sequence[Verdict]) -> Advice:
    """Derive from the verdicts on one method, split and question which confidence to use.

    An own confidence, alone or combined with free ones as validation chooses, is used if it is better, else the free
    one that validation chose: it costs nothing.
    """
    rivals = answers[0].rivals
    if not rivals.chosen:
        return Advice("", reason=rivals.remark)
    free = percent(answers[0].rival_mean, 1).removesuffix("-")
    judged = [each for each in answers if each.difference is not None]
    if not judged:
        reason = answers[0].reason
        constant = reason.startswith(CONSTANT)
        return Advice(rivals.chosen, "", free, reason=f"a confidence that is {reason}" if constant else reason)
    shown = max(judged, key=lambda each: _known(each.validation_mean, -math.inf))
    state, name, difference = state_of(shown), named(shown.challenger), shown.texts.difference
    if state == "better":
        return Advice(
            shown.challenger,
            "better",
            shown.texts.own,
            difference,
            over=rivals.chosen,
            best=name,
            caveat=_caveat(shown),
            alike=not shown.beats_all_free,
        )
    return Advice(rivals.chosen, state, free, difference, best=name)


def _caveat(chosen: Verdict) -> str:
    """Why a confidence that is better may be no better than what is free; empty if it is better."""
    if not chosen.beats_all_free:
        return f"its own confidence orders images as {chosen.same_order_as} does, which is free"
    rivals = chosen.rivals
    if chosen.survives or not rivals.best_on_test:
        return ""
    free = percent(rivals.best_on_test_mean, 1)
    return f"not over any: the free {named(rivals.best_on_test)} has {free} on these images"


def named(confidence: str) -> str:
    """Words for the name of a confidence of a method: the page has one name for each.

    Example:
        >>> named("method+margin"), named("method+margin+agreement"), named("norm+margin_fitted")
        ('own confidence + margin (ranks)', 'own confidence + margin + agreement (fitted)', 'norm + margin (fitted)')
    """
    ending = next((each for each in ENDINGS if confidence.endswith(each)), "")
    base = confidence.removesuffix(ending)
    return ("own confidence" if base == OWN else base) + ENDINGS.get(ending, "")


def _known(value: float, otherwise: float) -> float:
    return value if value == value else otherwise


@dataclass(frozen=True)
class Highest:
    """The method whose recommended confidence has the highest mean AUROC of all methods.

    ``ahead`` is how far it is ahead of the leading method for retrieval with the confidence recommended for that one.
    ``others`` may be the highest as well, when all that have a value at all of its seeds are compared at once.
    """

    contender: Contender
    advice: Advice
    ahead: Difference | None
    others: int
    compared: int
    seeds: int


@dataclass(frozen=True)
class Tally:
    """Advice on one question for all methods of a data set, and the method with the highest AUROC by it."""

    images: str
    by_method: dict[Contender, Advice]
    highest: Highest | None = None

    def members(self, outcome: Outcome, alike: bool | None = None) -> list[Contender]:
        """Methods whose own confidence has an outcome, and of which something free may or may not be as good."""
        return [
            contender
            for contender, each in self.by_method.items()
            if each.outcome == outcome and alike in (None, each.alike)
        ]

    @property
    def judged(self) -> int:
        """Number of methods whose own confidence was judged."""
        return sum(bool(each.outcome) for each in self.by_method.values())

    @property
    def free(self) -> list[tuple[str, int]]:
        """Free confidences that are advised, with the number of methods, most frequent first."""
        found = Counter(each.use for each in self.by_method.values() if each.use and not each.is_own)
        return sorted(found.items(), key=lambda each: (-each[1], each[0]))


@dataclass(frozen=True)
class Open:
    """Something about a contender that the seeds at hand do not decide: two methods, or an answer to a question."""

    contender: Contender
    what: str
    difference: Difference
    question: Question | None = None
    images: str = ""


@dataclass(frozen=True)
class Words:
    """The verdict on one data set at one budget."""

    facts: DatasetFacts

    @cached_property
    def retrieval(self) -> list[Retrieval]:
        """Answers about retrieval, one for each group of methods that are compared with one another."""
        return list(_retrieval(self.facts))

    @property
    def unranked(self) -> list[ComparisonRow]:
        """Methods without a rank."""
        return [row for row in self.facts.rows if row.rank.interval is None]

    @cached_property
    def tallies(self) -> dict[Question, list[Tally]]:
        """A tally per kind of images for each question."""
        leader = self.leaders[0].contender
        return {question: list(_tallies(self.facts, question, leader)) for question in QUESTIONS}

    @cached_property
    def open(self) -> list[Open]:
        """Differences that are not decided, those that need the fewest seeds first."""
        found = [*_open_retrieval(self.retrieval), *_open_verdicts(self.facts)]
        return sorted(found, key=lambda each: _known(each.difference.needed, math.inf))

    @property
    def leaders(self) -> list[ComparisonRow]:
        """The leading method of each group; without any ranks, the one with the highest mean."""
        return [answer.leader for answer in self.retrieval] or [self.facts.rows[0]]

    def advice(self, contender: Contender, question: Question, images: str) -> Advice:
        """Advice on one method; without an answer if the records have no verdict on it."""
        found = (tally.by_method.get(contender) for tally in self.tallies[question] if tally.images == images)
        return next(filter(None, found), Advice("", reason="no verdict"))

    @property
    def unequal(self) -> str:
        """Methods whose numbers of seeds are not those of most others, and how, but not those with nothing to tune."""
        rows = [row for row in self.facts.rows if not is_untuned(row.contender)]
        return named_by_reason((self.facts.labels[row.contender], row.unequal) for row in rows)

    @property
    def above(self) -> list[ComparisonRow]:
        """Methods without a rank that have a higher mean than every leading one."""
        return [row for row in self.unranked if statistics_of(row, RETRIEVAL).mean > self.top]

    @property
    def top(self) -> float:
        """Highest mean of the leading methods."""
        return max(statistics_of(row, RETRIEVAL).mean for row in self.leaders)

    @property
    def foremost(self) -> list[Open]:
        """Undecided differences that the answers on the leading methods depend on.

        They are those between methods, and those of a leading method's own confidences unless one of these is better.
        """
        asked = {
            (row.contender, question, tally.images)
            for question, tallies in self.tallies.items()
            for tally in tallies
            for row in self.leaders
            if row.contender not in tally.members("better")
        }
        return [
            each
            for each in self.open
            if not each.difference.is_equal
            and (each.question is None or (each.contender, each.question, each.images) in asked)
        ]

    @property
    def equal(self) -> int:
        """Number of undecided differences that are too small to matter, so that more seeds change nothing."""
        return sum(each.difference.is_equal for each in self.open)

    @property
    def needed(self) -> list[float]:
        """Seeds that the other undecided differences need, in ascending order."""
        return sorted(each.difference.needed for each in self.open if each.difference.needed == each.difference.needed)

    @property
    def single(self) -> int:
        """Number of undecided differences of a single seed."""
        return len(self.open) - self.equal - len(self.needed)


def _retrieval(facts: DatasetFacts) -> Iterator[Retrieval]:
    for ensemble, rows in facts.leagues.items():
        leader, *others = rows
        candidates = [row for row in others if row.rank.may_be_best]
        place = (ensemble or "single models") if len(facts.leagues) > 1 else ""
        unlike = [row for row in others if facts.is_probabilistic(row) != facts.is_probabilistic(leader)]
        yield Retrieval(
            place,
            leader,
            tuple(_candidate(facts, leader, row) for row in candidates),
            _candidate(facts, leader, unlike[0]) if unlike else None,
            len(rows),
        )


def _candidate(facts: DatasetFacts, leader: ComparisonRow, row: ComparisonRow) -> Candidate:
    first, second = (defined_values(facts.groups[each.contender].column(RETRIEVAL)) for each in (leader, row))
    paired = set(first) & set(second)
    return Candidate(row, difference_of(paired_difference(first, second), RETRIEVAL) if paired else None)


def _tallies(facts: DatasetFacts, question: Question, leader: Contender) -> Iterator[Tally]:
    for split, images in IMAGES.items():
        found: dict[Contender, list[Verdict]] = {row.contender: [] for row in facts.rows}
        for each in facts.verdicts:
            if (each.split, each.question) == (split, question):
                found[each.contender].append(each)
        by_method = {contender: advice(answers) for contender, answers in found.items() if answers}
        if by_method:
            rankings = {contender: answers[0].ranking for contender, answers in found.items() if answers}
            yield Tally(images, by_method, _highest(facts, split, by_method, leader, rankings))


def _highest(
    facts: DatasetFacts,
    split: str,
    by_method: Mapping[Contender, Advice],
    leader: Contender,
    rankings: Mapping[Contender, str],
) -> Highest | None:
    """The method with the highest AUROC among those that are ranked together; None if there is no other."""
    values = {
        contender: aurocs(facts.groups[contender].under(rankings[contender]), split, each.use)
        for contender, each in by_method.items()
        if each.use and contender.ensemble == leader.ensemble
    }
    # A single value competes only if there is nothing else.
    most = min(2, max(map(len, values.values()), default=0))
    values = {contender: own for contender, own in values.items() if own and len(own) >= most}
    if not values:
        return None
    best = max(values, key=lambda contender: sum(values[contender].values()) / len(values[contender]))
    seeds = sorted(values[best])
    able = [contender for contender in values if set(seeds) <= set(values[contender])]
    if len(able) < 2:
        return None
    others = len(able) - 1
    if len(seeds) > 1:
        others = int(may_be_best(np.array([[values[each][seed] for each in able] for seed in seeds])).sum()) - 1
    own = values.get(leader, {})
    shared = best != leader and set(own) & set(values[best])
    ahead = difference_of(paired_difference(values[best], own), CONFIDENCE) if shared else None
    return Highest(best, by_method[best], ahead, others, len(able), len(seeds))


def _open_retrieval(answers: Sequence[Retrieval]) -> Iterator[Open]:
    for answer in answers:
        for each in answer.candidates:
            if each.ahead is not None and not each.ahead.is_told_apart:
                what = f"{RETRIEVAL.title}: {answer.leader.label} minus this method"
                yield Open(each.row.contender, what, each.ahead)


def _open_verdicts(facts: DatasetFacts) -> Iterator[Open]:
    for each in facts.verdicts:
        if each.outcome == "undecided" and each.difference is not None:
            images = images_of(each.split)
            versus = f"{named(each.challenger)} minus {each.rivals.chosen}"
            what = f"AUROC {QUESTIONS[each.question]}, {images}: {versus}"
            yield Open(each.contender, what, difference_of(each.difference, CONFIDENCE), each.question, images)


def mean_text(row: ComparisonRow) -> str:
    """Mean and SD of MAP@R of a row, in percent."""
    return statistics_of(row, RETRIEVAL).text(percent=True)
