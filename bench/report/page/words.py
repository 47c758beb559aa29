"""The verdict in words: what to use for retrieval, what to trust before a gallery and at query time, what is open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...protocols.confidence_kinds import COMBINED, FITTED, OWN
from ...protocols.statistics import Outcome, Summary, paired_difference, rank_intervals
from ..budgets import is_untuned, unequal_text
from ..comparison import ComparisonRow
from ..contender import Contender
from ..pairing import pairs_needed
from ..seeds import ComparedColumn, defined_values
from ..table import interval, percent
from ..verdicts import IMAGES, METRIC, QUESTIONS, Question, Verdict, images_of, outcome_of
from .facts import RETRIEVAL, DatasetFacts, statistics_of

CONFIDENCE = ComparedColumn(METRIC)
"""Column that the verdicts about confidences are about."""

NEAR_CHANCE = 55.0
"""AUROC in percent below which the page calls a confidence near chance, which is 50: a mark for readers, no test.

With normal confidences of equal spread, leaving out the less confident half of the answers then leaves nine tenths of
the share of errors, so that there is little to gain, whatever the interval says.
"""

Place = tuple[str, Question]
"""Split of the test images, and the question."""

ENDINGS = {FITTED: " + margin (fitted)", COMBINED: " + margin (ranks)"}
"""Words for the ways in which a confidence is combined with the margin."""


@dataclass(frozen=True)
class Difference:
    """A paired difference as the page shows it: its mean with its 95 % t-interval in points, and what it decides.

    The decision is ``different as a pair``, ``equal within 0.5 points``, or ``not decided`` with the paired seeds that
    it needs in all; nan if none are.
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
    text = interval(*(percent(value, 1, "+") for value in (summary.mean, summary.ci_low, summary.ci_high)))
    if summary.n < 2:
        return Difference(text, "undecided", "not decided: one seed", needed, summary.mean)
    outcome = outcome_of(summary, region)
    words = f"equal within {points_text(column)}" if outcome == "equivalent" else "different as a pair"
    if outcome == "undecided":
        # An estimate: if it comes out at those that have decided nothing, one more is the least.
        needed = max(pairs_needed(summary, region), summary.n + 1)
        words = f"not decided: needs about {needed:,.0f} seeds in all"
    return Difference(text, outcome, words, needed, summary.mean)


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

    ``outcome`` is that of the own confidence against the free one, ``alike`` whether it is better only in combinations
    that something free may do as well in; ``own`` is the difference of both, in points, of the own confidence that
    ``best`` describes. ``caveat`` is a clause about the free confidence that may be as good, ``over`` the free one that
    an own one is better than, ``waiting`` the own one that is undecided.
    """

    use: str
    outcome: Outcome | Literal[""] = ""
    auroc: str = ""
    own: str = ""
    reason: str = ""
    over: str = ""
    waiting: str = ""
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

    An own confidence (alone or combined with the margin) is used if it is worth it, else the free one that validation
    chose: it costs nothing. Among several that are worth it, validation chooses.
    """
    rivals = answers[0].rivals
    free = answers[0].texts.free.removeprefix(rivals.chosen).strip() if rivals.chosen else ""
    judged = [each for each in answers if each.difference is not None]
    if not rivals.chosen:
        return Advice("", reason=rivals.reason)
    if not judged:
        return Advice(rivals.chosen, "", free, reason=answers[0].reason)
    best = max(judged, key=lambda each: each.difference.mean if each.difference else 0.0)
    worth = [each for each in judged if each.outcome == "better"]
    if worth:
        chosen = max(worth, key=lambda each: _first_if_nan(each.validation_mean))
        return Advice(
            chosen.challenger,
            "better",
            chosen.texts.own,
            chosen.texts.difference,
            over=rivals.chosen,
            best=named(chosen.challenger),
            caveat=_caveat(chosen),
            alike=not any(each.beats_all_free for each in worth),
        )
    undecided = [each for each in judged if each.outcome == "undecided"]
    if not undecided:
        return Advice(rivals.chosen, "worse", free, best.texts.difference, best=named(best.challenger))
    waiting = max(undecided, key=lambda each: _first_if_nan(each.validation_mean))
    name = named(waiting.challenger)
    return Advice(rivals.chosen, "undecided", free, waiting.texts.difference, waiting=name, best=name)


def _caveat(chosen: Verdict) -> str:
    """Why a confidence that is worth it may be no better than what is free; empty if it is better."""
    if chosen.beats_all_free:
        return ""
    if chosen.alike and chosen.alike.suffices:
        return f"{named(chosen.alike.name)}, which is free, may be as good"
    return f"its own confidence orders images as {chosen.same_order_as} does, which is free"


def named(confidence: str) -> str:
    """Words for the name of a confidence of a method: the page has one name for each.

    Example:
        >>> named("method"), named("method+margin"), named("norm"), named("norm+margin_fitted")
        ('own confidence', 'own confidence + margin (ranks)', 'norm', 'norm + margin (fitted)')
    """
    ending = next((each for each in ENDINGS if confidence.endswith(each)), "")
    base = confidence.removesuffix(ending)
    return ("own confidence" if base == OWN else base) + ENDINGS.get(ending, "")


def _first_if_nan(value: float) -> float:
    return value if value == value else -float("inf")


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
        names = [each.use for each in self.by_method.values() if each.use and not each.is_own]
        return sorted(((name, names.count(name)) for name in set(names)), key=lambda each: (-each[1], each[0]))


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
    """The verdict on one data set at one budget.

    There is an answer about retrieval for each group of methods that are compared with one another, and for each
    question a tally per kind of images. ``open`` are differences that are not decided, those that need the fewest seeds
    first.
    """

    facts: DatasetFacts
    retrieval: tuple[Retrieval, ...]
    unranked: tuple[ComparisonRow, ...]
    tallies: dict[Question, list[Tally]]
    open: tuple[Open, ...]

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
        return unequal_text([self.facts.labels[row.contender] for row in rows], [row.unequal for row in rows])

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

        They are those between methods, and those of a leading method's own confidences unless one of these is worth it.
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


def words_of(facts: DatasetFacts) -> Words:
    """Answer the questions of a page for one data set."""
    retrieval = tuple(_retrieval(facts))
    leader = (retrieval[0].leader if retrieval else facts.rows[0]).contender
    open_ones = [*_open_retrieval(retrieval), *_open_verdicts(facts)]
    return Words(
        facts,
        retrieval,
        tuple(row for row in facts.rows if row.rank.interval is None),
        {question: list(_tallies(facts, question, leader)) for question in QUESTIONS},
        tuple(sorted(open_ones, key=lambda each: _last_if_nan(each.difference.needed))),
    )


def _last_if_nan(value: float) -> float:
    return value if value == value else float("inf")


def _retrieval(facts: DatasetFacts) -> Iterator[Retrieval]:
    leagues: dict[str, list[ComparisonRow]] = {}
    for row in facts.rows:
        if row.rank.interval is not None:
            leagues.setdefault(row.contender.ensemble, []).append(row)
    for ensemble, rows in leagues.items():
        leader, *others = rows  # highest mean first
        candidates = [row for row in others if row.rank.interval is not None and row.rank.interval.low == 1]
        place = (ensemble or "single models") if len(leagues) > 1 else ""
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
            yield Tally(images, by_method, _highest(facts, split, by_method, leader))


def _highest(
    facts: DatasetFacts, split: str, by_method: Mapping[Contender, Advice], leader: Contender
) -> Highest | None:
    """The method with the highest AUROC among those that are ranked together; None if there is no other."""
    values = {
        contender: defined_values(facts.groups[contender].per_seed(METRIC, split, confidence=each.use))
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
        intervals = rank_intervals(np.array([[values[contender][seed] for contender in able] for seed in seeds]))
        others = sum(each.low == 1 and contender != best for contender, each in zip(able, intervals))
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
