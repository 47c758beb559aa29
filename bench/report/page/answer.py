"""The answer to the title of the page, from the verdicts on all data sets, each at its leading budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...protocols.confidence_kinds import COMBINED, FITTED, OWN
from ..comparison import ComparisonRow
from ..verdicts import IMAGES, Question, Verdict
from .facts import RETRIEVAL, statistics_of
from .words import CONFIDENCE, Words, points_text

USES: tuple[tuple[str, Question, tuple[str, ...]], ...] = (
    ("before there is a gallery", "before_gallery", (OWN,)),
    ("at query time by itself", "at_query_time", (OWN,)),
    ("at query time combined with the margin", "at_query_time", (f"{OWN}{COMBINED}", f"{OWN}{FITTED}")),
)
"""Uses of a learned confidence: words for it, the question, and the confidences of which one suffices."""

WHEN: dict[Question, str] = {"before_gallery": "before there is a gallery", "at_query_time": "at query time"}
"""Words for the two questions."""

ORDER = ("worth it", "alike", "undecided", "not worth it")
"""States of a case, the first of which counts if its forms are in several."""

COUNTED = ("worth it", "alike", "not worth it", "undecided")
"""States in the order of the numbers of :class:`Cases`."""

CASE = "a case is a method on a data set; 95 % confidence"


@dataclass(frozen=True)
class Cases:
    """Cases, each a method on a data set, by their verdict on one use of a learned confidence.

    Attributes:
        use: Words for the use.
        images: Words for the images.
        worth: Number of cases in which the confidence is worth it and, if it is combined with the margin, better than
            a free image confidence combined alike.
        alike: Number of cases in which it is worth it, but such a free combination may be as good.
        not_worth: Number of cases in which it is not.
        undecided: Number of cases that the seeds do not decide.
        small: Number of cases that are worth it by a mean difference too small to matter.
    """

    use: str
    images: str
    worth: int
    alike: int
    not_worth: int
    undecided: int
    small: int = 0

    @property
    def judged(self) -> int:
        """Number of cases."""
        return self.worth + self.alike + self.not_worth + self.undecided

    @property
    def place(self) -> str:
        """Words for the use and the images."""
        return f"{self.use}, on {self.images}"


@dataclass(frozen=True)
class Answer:
    """Answer to the title of the page.

    Attributes:
        lead: The shortest answer, one sentence.
        sentences: About confidences of the same network, about those of all methods, and about retrieval; without
            records to answer them, what is missing.
        missing: Sentences about what the records lack.
        cases: Numbers of cases, by use and images.
    """

    lead: str
    sentences: tuple[str, ...]
    missing: tuple[str, ...]
    cases: tuple[Cases, ...]


def answer_of(data_sets: Sequence[Words]) -> Answer:
    """Answer whether a probabilistic method is worth it, from the verdicts on some data sets.

    Args:
        data_sets: The verdict on each data set at its leading budget; one at least.
    """
    found = [_cases(data_sets, images, *use) for use in USES for images in IMAGES.values()]
    cases = tuple(each for each in found if each.judged)
    return Answer(
        _lead(cases),
        tuple(filter(None, (_about_confidences(cases), _about_highest(data_sets, cases), _about_retrieval(data_sets)))),
        tuple(_missing(data_sets, cases)),
        cases,
    )


def _cases(data_sets: Sequence[Words], images: str, use: str, question: Question, names: tuple[str, ...]) -> Cases:
    by_method: dict[object, set[str]] = {}
    matters: set[object] = set()
    for words in data_sets:
        for each in words.facts.verdicts:
            asked = (each.question, IMAGES.get(each.split)) == (question, images) and each.challenger in names
            if asked and each.verdict:
                state = "alike" if each.verdict == "worth it" and not each.beats_all_free else each.verdict
                by_method.setdefault(each.contender, set()).add(state)
                if each.difference is not None and each.difference.mean >= CONFIDENCE.declared.equivalence:
                    matters |= {each.contender} if state == "worth it" else set()
    # Of several forms, one that is worth it suffices.
    states = [next((state for state in ORDER if state in found), "") for found in by_method.values()]
    worth, alike, not_worth, undecided = (states.count(state) for state in COUNTED)
    return Cases(use, images, worth, alike, not_worth, undecided, worth - len(matters))


def _lead(cases: Sequence[Cases]) -> str:
    if not cases:
        return "These records do not tell."
    if not any(each.worth for each in cases):
        return "In no case that these records decide."
    shares = [each.worth / each.judged for each in cases]
    best = [each for each, share in zip(cases, shares) if share == max(shares)]
    if len(best) == len(cases) > 1:
        return "Equally often wherever these records ask."
    return f"Most often {' and '.join(f'{each.place} ({each.worth} of {each.judged} cases)' for each in best)}."


def _about_confidences(cases: Sequence[Cases]) -> str:
    if not cases:
        return "No record here has a verdict on a learned confidence."
    by_use = {use: [each for each in cases if each.use == use] for use in dict.fromkeys(each.use for each in cases)}
    first, *others = by_use.values()
    parts = [f"{first[0].use} in {_shares(first)}"]
    for own in others:
        # Numbers alone, if images and cases are those of the first use.
        alike = [(each.images, each.judged) for each in own] == [(each.images, each.judged) for each in first]
        parts.append(f"{own[0].use} in {' and '.join(str(each.worth) for each in own) if alike else _shares(own)}")
    return f"A learned confidence beats the best free one of the same network {'; '.join(parts)} ({CASE})."


def _shares(cases: Sequence[Cases]) -> str:
    return " and ".join(f"{each.worth} of {each.judged} cases on {each.images}" for each in cases)


def _about_highest(data_sets: Sequence[Words], cases: Sequence[Cases]) -> str:
    """Sentence about the confidence with the highest AUROC over all methods of a data set; empty without any case."""
    parts = []
    for question, when in WHEN.items() if cases else ():
        highest = [tally.highest for words in data_sets for tally in words.tallies[question] if tally.highest]
        if highest:
            parts.append(f"{sum(each.advice.is_own for each in highest)} of {len(highest)} times {when}")
    if not parts:
        return ""
    where = f"{' and '.join(parts)}, each a data set and kind of images"
    return f"Over all methods of a data set, the highest AUROC is that of a learned confidence {where}."


def _about_retrieval(data_sets: Sequence[Words]) -> str:
    better, worse, tested = [], [], []
    for words in data_sets:
        leagues = _leagues(words)
        if not leagues:
            continue
        tested.append(words.facts.name)
        above = {name for league in leagues for name in _beyond_chance(words, league)}
        if above:
            better.append(f"{words.facts.name} ({', '.join(sorted(above))})")
        elif all(_all_behind(words, league) for league in leagues):
            worse.append(words.facts.name)
    if not tested:
        return "Whether a probabilistic method retrieves better than a deterministic one was not tested."
    start = (
        f"A probabilistic method retrieves better than every deterministic one beyond chance on {' and '.join(better)}"
    )
    if not better:
        on = tested[0] if len(tested) == 1 else f"any of {len(tested)} data sets"
        start = f"No probabilistic method retrieves better than the best deterministic one beyond chance on {on}"
    end = (
        f"; on {' and '.join(worse)} the best deterministic one is better than all probabilistic ones" if worse else ""
    )
    how = f"by more than {points_text(RETRIEVAL)} of MAP@R, all ranked methods of a data set compared at once"
    return f"{start}{end} ({how}, 95 % confidence).{_above(data_sets)}"


def _above(data_sets: Sequence[Words]) -> str:
    """Sentence, after a space, about methods without a rank that have a higher mean than all others; may be empty."""
    on: dict[str, list[str]] = {}
    for words in data_sets:
        for row in words.above:
            on.setdefault(words.facts.labels[row.contender], []).append(words.facts.name)
    named = [f"{name} on {' and '.join(places)}" for name, places in on.items()]
    return f" Higher, but without a rank: {', '.join(named)}." if named else ""


def _leagues(words: Words) -> list[list[ComparisonRow]]:
    """Ranked rows of one data set by combination of models, of those that have methods of both kinds."""
    ranked = [row for row in words.facts.rows if row.rank.interval is not None]
    leagues = [
        [row for row in ranked if row.contender.ensemble == ensemble]
        for ensemble in dict.fromkeys(row.contender.ensemble for row in ranked)
    ]
    return [league for league in leagues if len({words.facts.is_probabilistic(row) for row in league}) == 2]


def _point(words: Words, league: Sequence[ComparisonRow]) -> int:
    """Place of the best deterministic method of rows in the order of their means."""
    return next(place for place, row in enumerate(league) if not words.facts.is_probabilistic(row))


def _beyond_chance(words: Words, league: Sequence[ComparisonRow]) -> list[str]:
    """Names of the probabilistic methods that are told apart from the best deterministic one, and better."""
    place = _point(words, league)
    return [words.facts.labels[row.contender] for row in league[:place] if _differ(row, league[place])]


def _all_behind(words: Words, league: Sequence[ComparisonRow]) -> bool:
    """True if the best deterministic method is told apart from every probabilistic one, and better."""
    place = _point(words, league)
    behind = [row for row in league[place:] if words.facts.is_probabilistic(row)]
    return place == 0 and all(_differ(row, league[0]) for row in behind)


def _differ(row: ComparisonRow, other: ComparisonRow) -> bool:
    """True if two ranked methods are told apart and their means differ by enough to matter."""
    means = [statistics_of(each, RETRIEVAL).mean for each in (row, other)]
    return _told_apart(row, other) and abs(means[0] - means[1]) > RETRIEVAL.declared.equivalence


def _told_apart(row: ComparisonRow, other: ComparisonRow) -> bool:
    """True if two ranked methods have no tie group in common."""
    # Groups are letters, or numbers with dots between them if there are many.
    first, second = (set(re.findall(r"[a-zA-Z]|\d+", each.rank.ties)) for each in (row, other))
    return not first & second


def _missing(data_sets: Sequence[Words], cases: Sequence[Cases]) -> list[str]:
    """Sentences about what the records lack to answer the questions."""
    found = []
    for words in data_sets:
        facts, verdicts = words.facts, words.facts.verdicts
        kinds = {facts.is_probabilistic(row) for row in facts.rows}
        if kinds != {True, False}:
            lacking = "probabilistic" if kinds == {False} else "deterministic"
            found.append(f"{facts.name} has no result of a {lacking} method at this budget.")
        if max(row.seeds for row in facts.rows) < 2:
            found.append(f"{facts.name} has one seed only, which decides nothing.")
        elif not _leagues(words) and len(kinds) == 2:
            found.append(f"{facts.name} has no two methods of both kinds with the same two seeds.")
        unjudged = {each.contender for each in verdicts if each.challenger} - _judged(verdicts)
        if unjudged:
            reasons = {each.reason for each in verdicts if each.contender in unjudged and each.reason}
            names = ", ".join(sorted(facts.labels[each] for each in unjudged))
            found.append(f"On {facts.name} there is no verdict on {names} ({'; '.join(sorted(reasons))}).")
        untested = [images for split, images in IMAGES.items() if split not in {each.split for each in verdicts}]
        if verdicts and untested:
            found.append(f"{facts.name} has no tests on {' and '.join(untested)}.")
    return found if cases or found else ["No method here has a confidence of its own."]


def _judged(verdicts: Sequence[Verdict]) -> set[object]:
    return {each.contender for each in verdicts if each.verdict}
