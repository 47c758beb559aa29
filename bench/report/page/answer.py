"""The first screen of the page: methods compared as systems, and the confidences alone, on all data sets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from ...protocols.rows import AGREEMENT, COMBINED, FITTED, FITTED_TO_MARGIN, OWN
from ..comparison import ComparisonRow
from ..contender import distinct_labels
from ..reference import sentences
from ..remarks import lines
from ..seeds import difference_text
from ..splits import OverSplits
from ..systems import COLUMNS, JUDGED, System
from ..table import GAP, Cell, Column, Table, cells_table, frame_of, grouped, headings, label, table_of
from ..verdicts import IMAGES, QUESTIONS, Question, Verdict, adjusted
from .words import RETRIEVAL, Anchors, Words, points_text, state_of, statistics_of

USES: tuple[tuple[Question, str, tuple[str, ...]], ...] = (
    ("before_gallery", "", (OWN,)),
    ("at_query_time", "by itself", (OWN,)),
    ("at_query_time", "combined with free ones", (f"{OWN}{COMBINED}", f"{OWN}{FITTED_TO_MARGIN}", f"{OWN}{FITTED}")),
)
"""Uses of a learned confidence: the question, in which form, and the confidences of which one suffices."""

WHEN: dict[Question, str] = {"before_gallery": "before there is a gallery", "at_query_time": "at query time"}
"""Words for the two questions."""

CASE = "A case is one method with a confidence of its own on one data set, tested at 95 % confidence over its seeds."

RIVAL: dict[Question, str] = {
    "before_gallery": "the free one of the same network that validation chose",
    "at_query_time": "the free one of the ranking that validation chose",
}
"""Words for what a learned confidence has to beat."""


@dataclass(frozen=True)
class Cases:
    """Numbers of cases, each a method on a data set, by their verdict on one use of a learned confidence.

    Of those that are better, ``adjusted`` still are by Holm's method over all cases of the use, ``false_discovery`` by
    that of Benjamini and Hochberg, and ``survive`` against every free confidence, the best on test images included.
    ``same`` are not counted: their confidence orders the images as a free one does.
    """

    question: Question
    form: str
    images: str
    better: int
    undecided: int
    equivalent: int
    worse: int
    adjusted: int
    false_discovery: int
    survive: int
    same: int

    @property
    def use(self) -> str:
        """Words for the question and the form."""
        return ", ".join(filter(None, (WHEN[self.question], self.form)))

    @property
    def judged(self) -> int:
        """Number of cases that are counted."""
        return self.better + self.undecided + self.equivalent + self.worse

    @property
    def text(self) -> str:
        """Number of cases in which it is better, of all."""
        return f"{self.better} of {self.judged}" + (f" ({self.remark})" if self.remark else "")

    @property
    def remark(self) -> str:
        """In how many of the cases in which it is better this is sure; empty if there are none."""
        return f"{self.adjusted} adjusted, {self.survive} over any" if self.better else ""

    @property
    def place(self) -> str:
        """Words for the use and the images."""
        return f"{self.use}, on {self.images}"


class Point(NamedTuple):
    """Part of an answer: its topic, and sentences about it."""

    topic: str
    text: str


@dataclass(frozen=True)
class Answer:
    """Answer to the title of the page: one sentence, points about the questions, what counts, and what is missing.

    ``warnings`` are about heads that are not shown to be better than the network as it is, ``remarks`` about what went
    wrong.
    """

    warnings: list[str]
    remarks: list[str]
    lead: str
    points: tuple[Point, ...]
    notes: tuple[str, ...]
    missing: tuple[str, ...]
    cases: tuple[Cases, ...]


def answer_of(data_sets: Sequence[Words]) -> Answer:
    """Answer whether a probabilistic method is worth it, from the verdicts on some data sets."""
    found = [_cases(data_sets, images, *use) for use in USES for images in IMAGES.values()]
    cases = tuple(each for each in found if each.judged)
    retrieval, how = _about_retrieval(data_sets)
    points = (*_about_confidences(data_sets, cases), Point("Retrieval", retrieval))
    notes = filter(None, (CASE if cases else "", how, *_about_settings(data_sets)))
    warnings = [each for words in data_sets for each in _warnings(words)]
    marked = [each for words in data_sets for each in _remarks(words)]
    return Answer(warnings, marked, _lead(cases), points, tuple(notes), tuple(_missing(data_sets, cases)), cases)


def _warnings(words: Words) -> list[str]:
    facts = words.facts
    return sentences(facts.title, ((facts.labels[row.contender], row.against) for row in facts.rows))


def _remarks(words: Words) -> list[str]:
    facts = words.facts
    return [
        f"On {facts.title}: {each}" for each in lines((facts.labels[row.contender], row.remarks) for row in facts.rows)
    ]


def _cases(data_sets: Sequence[Words], images: str, question: Question, form: str, names: tuple[str, ...]) -> Cases:
    by_method: dict[object, list[Verdict]] = {}
    for words in data_sets:
        for each in words.facts.verdicts:
            asked = (each.question, IMAGES.get(each.split)) == (question, images) and each.challenger in names
            # A single value, as of an ensemble of all seeds, cannot be tested.
            if asked and each.outcome and each.difference is not None and each.difference.n > 1:
                by_method.setdefault(each.contender, []).append(each)
    # Of several forms, validation chooses.
    chosen = [
        max(own, key=lambda each: (each.validation_mean == each.validation_mean, each.validation_mean))
        for own in by_method.values()
    ]
    counted = [each for each in adjusted(chosen, lambda each: True) if each.counts]
    states = Counter(state_of(each) for each in counted)
    better = [each for each in counted if each.outcome == "better"]
    return Cases(
        question,
        form,
        images,
        better=states["better"],
        undecided=states["undecided"],
        equivalent=states["equivalent"],
        worse=states["worse"],
        adjusted=sum(each.holds for each in better),
        false_discovery=sum(each.p_bh <= 0.05 for each in better),
        survive=sum(each.survives for each in better),
        same=len(chosen) - len(counted),
    )


def _lead(cases: Sequence[Cases]) -> str:
    if not cases:
        return "These records cannot tell."
    if not any(each.better for each in cases):
        return "In none of the cases that these records decide."
    shares = [each.better / each.judged for each in cases]
    best = [each for each, share in zip(cases, shares) if share == max(shares)]
    if len(best) == len(cases) > 1:
        return "Equally often in every use that these records test."
    where = " and ".join(f"{each.place} ({each.better} of {each.judged} cases)" for each in best)
    return f"Most often {where}." if max(shares) >= 0.5 else f"In a minority of cases, most often {where}."


def _about_confidences(data_sets: Sequence[Words], cases: Sequence[Cases]) -> Iterator[Point]:
    if not cases:
        yield Point("Confidence", "No record here has a verdict on a learned confidence.")
    for question in dict.fromkeys(each.question for each in cases):
        asked = [each for each in cases if each.question == question]
        parts = [
            " ".join(filter(None, (form, "in", _shares([each for each in asked if each.form == form]))))
            for form in dict.fromkeys(each.form for each in asked)
        ]
        start = f"A learned confidence is shown to beat {RIVAL[question]}"
        text = f"{start} {', and '.join(parts)}.{_about_highest(data_sets, question)}"
        yield Point(WHEN[question].capitalize(), text)


def _shares(cases: Sequence[Cases]) -> str:
    first, *others = cases
    texts = [f"{first.better} of {first.judged} cases on {first.images}"]
    texts += [f"{each.better} of {each.judged} on {each.images}" for each in others]
    return " and ".join(f"{text} ({each.remark})" if each.remark else text for text, each in zip(texts, cases))


def _about_highest(data_sets: Sequence[Words], question: Question) -> str:
    """Sentence, after a space, about the highest AUROC over all methods of a data set; empty without any."""
    highest = [tally.highest for words in data_sets for tally in words.tallies[question] if tally.highest]
    if not highest:
        return ""
    own = [each for each in highest if each.advice.is_own]
    settled = sum(each.others == 0 and each.seeds > 1 for each in own)
    of = f"{len(highest)} pair{'s' * (len(highest) > 1)} of data set and kind of images"
    shown = f" ({settled} shown in a joint comparison)" if own else ""
    return f" Over all methods, the highest AUROC is that of a learned confidence for {len(own)} of {of}{shown}."


def _about_retrieval(data_sets: Sequence[Words]) -> tuple[str, str]:
    """Sentences about retrieval, and one that says what is counted, which is empty if nothing was tested."""
    better, worse, tested = [], [], []
    for words in data_sets:
        leagues = _leagues(words)
        if not leagues:
            continue
        tested.append(words.facts.name)
        compared = [_against_best_point(words, league) for league in leagues]
        above = {name for names, _ in compared for name in names}
        if above:
            better.append(f"{words.facts.name} ({', '.join(sorted(above))})")
        elif all(ahead for _, ahead in compared):
            worse.append(words.facts.name)
    if not tested:
        return "Whether a probabilistic method is better than a deterministic one was not tested.", ""
    start = f"A probabilistic method is shown to be better than every deterministic one on {' and '.join(better)}"
    if not better:
        on = tested[0] if len(tested) == 1 else f"any of the {len(tested)} data sets"
        start = f"No probabilistic method is shown to be better than the best deterministic one on {on}"
    end = (
        f"; on {' and '.join(worse)} the best deterministic one is better than all probabilistic ones" if worse else ""
    )
    how = (
        f"For retrieval, better means by more than {points_text(RETRIEVAL)} of MAP@R and at 95 % confidence,"
        " with all ranked methods of a data set compared jointly."
    )
    return f"{start}{end}.{_above(data_sets)}", how


def _above(data_sets: Sequence[Words]) -> str:
    """Sentence, after a space, about methods without a rank that have a higher mean than all others; may be empty."""
    on: dict[str, list[str]] = {}
    for words in data_sets:
        for row in words.above:
            ahead = 100 * (statistics_of(row, RETRIEVAL).mean - words.top)
            models = words.facts.models[row.contender]
            price = f" ({models} times the trainings)" if models > 1 else ""
            place = f"{ahead:.1f} points on {words.facts.name}"
            on.setdefault(f"{words.facts.labels[row.contender]}{price}", []).append(place)
    named = [f"{name} by {' and '.join(places)}" for name, places in on.items()]
    return f" Higher than all ranked methods, but not ranked itself: {'; '.join(named)}." if named else ""


def _about_settings(data_sets: Sequence[Words]) -> Iterator[str]:
    """Sentences about the budgets of the verdicts, and about data sets of which only a part was used."""
    by_budget: dict[str, list[str]] = {}
    for words in data_sets:
        facts = words.facts
        text = f"{facts.budget_text}{'' if facts.budget.trials else ', nothing tuned'}"
        by_budget.setdefault(text, []).append(facts.name)
    settings = [f"{text} ({', '.join(names)})" for text, names in by_budget.items()]
    yield f"Settings: {'; '.join(settings)}."
    partial = [words.facts.name for words in data_sets if words.facts.budget.pinned.partial]
    if partial:
        yield f"Only a part of the images: {', '.join(partial)}."


def _leagues(words: Words) -> list[list[ComparisonRow]]:
    """Ranked rows of one data set by combination of models, of those that have methods of both kinds."""
    every = words.facts.leagues.values()
    return [league for league in every if len({words.facts.is_probabilistic(row) for row in league}) == 2]


def _against_best_point(words: Words, league: Sequence[ComparisonRow]) -> tuple[list[str], bool]:
    """Probabilistic methods that are better than the best deterministic one, and whether that is better than all."""
    facts = words.facts
    best = next(place for place, row in enumerate(league) if not facts.is_probabilistic(row))
    better = [facts.labels[row.contender] for row in league[:best] if _differ(row, league[best])]
    behind = (row for row in league if facts.is_probabilistic(row))
    return better, best == 0 and all(_differ(row, league[0]) for row in behind)


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
        judged = {each.contender for each in verdicts if each.outcome}
        unjudged = {each.contender for each in verdicts if each.challenger} - judged
        if unjudged:
            reasons = {each.reason for each in verdicts if each.contender in unjudged and each.reason}
            names = ", ".join(sorted(facts.labels[each] for each in unjudged))
            found.append(f"On {facts.name} there is no verdict on {names} ({'; '.join(sorted(reasons))}).")
        untested = [images for split, images in IMAGES.items() if split not in {each.split for each in verdicts}]
        if verdicts and untested:
            found.append(f"{facts.name} has no tests on {' and '.join(untested)}.")
    return found if cases or found else ["No method here has a confidence of its own."]


class Headline(NamedTuple):
    """Sentences about systems, one for each question, their counts, and a matrix of methods for each kind of images."""

    sentences: tuple[str, ...]
    counts: Table | None
    compared: str
    matrices: tuple[Table, ...]
    tables: tuple[Table, ...]


SHOWN = re.compile("plain$|confidence|free|AUGRC|verdict|p, Holm|best on test")
"""Columns of the tables of systems that the page shows; the others are in their file."""


def headline_of(found: Sequence[System], anchors: Anchors, titles: Mapping[str, str]) -> Headline | None:
    """First screen about the systems of the leading budgets, with titles of data sets; None if there are none."""
    leading = [each for each in found if each.leads and each.split in IMAGES and each.outcome]
    if not any(each.counts for each in leading):
        return None
    places = grouped(leading, lambda each: (each.question, each.split))
    tables, ids = [], {}
    for dataset, own in grouped(leading, lambda each: each.contender.dataset).items():
        names = distinct_labels(list(dict.fromkeys(each.contender for each in own)))
        for each in own:
            ids[id(each)] = anchors.of("system", dataset, names[each.contender], each.split, each.question)
        tables.append(_table(own, [ids[id(each)] for each in own], anchors.of("systems", dataset), titles[dataset]))
    toys = {name for name, title in titles.items() if title != name}
    sentences = [_sentence(question, leading) for question in QUESTIONS]
    matrices = [
        _matrix(f"{WHEN[question].capitalize()}, {IMAGES[split]}", own, ids, titles)
        for (question, split), own in sorted(places.items(), key=lambda item: list(QUESTIONS).index(item[0][0]))
    ]
    return Headline(
        (*filter(None, sentences), *_holding(leading)),
        _counts(leading, toys),
        _what_is_compared(leading),
        tuple(matrices),
        tuple(tables),
    )


def split_sentences(found: Sequence[OverSplits]) -> list[str]:
    """How often a method is the better and the worse system over class splits, a sentence for each question."""
    texts = []
    for question in QUESTIONS:
        better, worse, splits = [], [], set()
        for split, images in IMAGES.items():
            if cases := _asked(found, question, split):
                numbers = _numbers(cases)
                better.append(f"{_adjusted(*numbers[:2])} of {len(cases)} cases on {images}")
                worse.append(_adjusted(*numbers[2:]))
                splits |= {len(each.values) for each in cases}
        if better:
            count = f"{min(splits)} to {max(splits)}" if len(splits) > 1 else f"{min(splits)}"
            texts.append(
                f"Over {count} class splits, {WHEN[question]}, a method with its own confidence{FORM[question]} is"
                f" better than the plain method with a free one in {' and '.join(better)}; it is worse in"
                f" {' and in '.join(worse)}."
            )
    return texts


def split_counts(found: Sequence[OverSplits]) -> Table | None:
    """How many methods are better and worse systems over class splits, by question, images and data set."""
    rows = [
        [WHEN[question], images, dataset, str(len(cases)), *map(str, _numbers(cases))]
        for question, (split, images) in product(QUESTIONS, IMAGES.items())
        for dataset, cases in grouped(_asked(found, question, split), lambda each: each.contender.dataset).items()
    ]
    titles = ("when", "images", "data", "of", "better", "adjusted", "worse", "adjusted")
    title = "How many methods are better or worse systems than the plain one, over class splits"
    return cells_table(title, headings(*titles, labels=3), rows, small="small fit") if rows else None


def _asked(found: Sequence[OverSplits], question: Question, split: str) -> list[OverSplits]:
    return [each for each in found if (each.question, each.column.split) == (question, split)]


def _numbers(cases: Sequence[OverSplits]) -> tuple[int, int, int, int]:
    """How many are better, also after adjustment, and how many worse."""
    better = [each for each in cases if each.summary.ci_low > 0]
    worse = [each for each in cases if each.summary.ci_high < 0]
    after = [sum(each.p_holm <= 0.05 for each in those) for those in (better, worse)]
    return len(better), after[0], len(worse), after[1]


def _adjusted(count: int, after: int) -> str:
    """A number of cases, and of how many it holds if the p-values are adjusted."""
    return f"{count} ({after} adjusted)" if count else "0"


def _sentence(question: Question, found: Sequence[System]) -> str:
    """How often a method is better and worse than the plain one, by kind of images; empty if none is counted.

    Of few methods on one data set, what each is.
    """
    counted = [each for each in found if each.question == question and each.counts]
    if not counted:
        return ""
    if _are_few(counted):
        return _named_sentence(question, counted)
    better, worse = [], []
    for split, cases in grouped(counted, lambda each: each.split).items():
        outcomes = Counter(each.outcome for each in cases)
        better.append(f"{outcomes['better']} of {len(cases)} cases on {IMAGES[split]}")
        worse.append(str(outcomes["worse"]))
    return (
        f"{WHEN[question].capitalize()}, a method with its own confidence{FORM[question]} is better than the plain"
        f" method with a free one in {' and '.join(better)}; it is worse in {' and in '.join(worse)}."
    )


FORM: dict[Question, str] = {"before_gallery": "", "at_query_time": ", alone or combined with free ones,"}
"""How a method's own confidence is used."""


def _counts(found: Sequence[System], toys: Collection[str]) -> Table | None:
    """How many cases are better and worse, of all, of heads on the plain method's networks, and without the toys."""
    kinds: dict[str, Callable[[System], object]] = {
        "all": lambda each: True,
        "heads on the plain networks": lambda each: each.plain and each.contender.base == each.plain.method,
        "without the toys": lambda each: each.contender.dataset not in toys,
    }
    rows = []
    counted = [each for each in found if each.counts]
    for (kind, belongs), question, (split, images) in product(kinds.items(), QUESTIONS, IMAGES.items()):
        every = [each for each in counted if (each.question, each.split) == (question, split)]
        cases = list(filter(belongs, every))
        if cases and (kind == "all" or len(cases) < len(every)):
            better = [each for each in cases if each.outcome == "better"]
            worse = [each for each in cases if each.outcome == "worse"]
            numbers = [len(cases), len(better), sum(each.holds for each in better)]
            numbers += [sum(each.survives for each in better), len(worse), sum(each.holds for each in worse)]
            rows.append([kind, WHEN[question], images, *map(str, numbers)])
    titles = ("cases", "when", "images", "of", "better", "adjusted", "over any", "worse", "adjusted")
    title = "In how many cases a method is better or worse than the plain one"
    return None if _are_few(counted) else cells_table(title, headings(*titles, labels=3), rows, small="small fit")


def _are_few(counted: Sequence[System]) -> bool:
    """True if these are so few methods, of one data set, that each is named."""
    return len({each.contender for each in counted}) <= NAMED and len({each.contender.dataset for each in counted}) == 1


NAMED = 3
"""Most methods of a single data set that are named one by one, not counted."""


def _named_sentence(question: Question, found: Sequence[System]) -> str:
    """What each of a few methods of one data set is, by kind of images, with the difference of the systems."""
    texts = []
    for name, own in grouped(found, _name).items():
        said = [
            f"{each.outcome}{' (not if adjusted)' * (each.outcome in ('better', 'worse') and not each.holds)} on"
            f" {IMAGES[each.split]}, {difference_text(each.difference)} points"
            for each in own
        ]
        texts.append(f"{name} is {'; '.join(said)}")
    plain = next((each.plain.label for each in found if each.plain), "the plain method")
    start = f"{WHEN[question].capitalize()}, with its own confidence{FORM[question]} against {plain} with a free one"
    return f"{start}: {'. '.join(texts)}."


def _what_is_compared(found: Sequence[System]) -> str:
    """Which method is the plain one on which data sets, and how many seeds there are."""
    plain = grouped((each for each in found if each.plain), lambda each: each.plain and each.plain.method)
    named = [
        f"{name} on {', '.join(dict.fromkeys(each.contender.dataset for each in own))}" for name, own in plain.items()
    ]
    seeds = sorted({each.difference.n for each in found})
    count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    unequal = dict.fromkeys(
        each.contender.dataset for each in found if AGREEMENT in each.rival.name and not each.with_agreement
    )
    alone = (
        " At query time the plain method may use the agreement of its neighbours; own confidences are not combined with"
        f" it in older records, here of {', '.join(unequal)}."
    )
    return (
        f"A case is one method on one data set, with {count} paired seeds. The plain method is {'; '.join(named)}: the"
        f" base of the heads, or else of the recipe.{alone * bool(unequal)}"
    )


def _holding(found: Sequence[System]) -> tuple[str, ...]:
    """Sentence that names the methods that are better after the adjustment and over the best free confidence."""
    wins = [each for each in found if each.counts and each.outcome == "better" and each.holds and each.survives]
    if not wins:
        return ("Adjusted and over any free confidence, no method is better on any data set.",)
    texts = []
    for (question, split), own in grouped(wins, lambda each: (each.question, each.split)).items():
        named = [
            f"{method} ({', '.join(dict.fromkeys(each.contender.dataset for each in of_method))})"
            for method, of_method in grouped(own, _name).items()
        ]
        texts.append(f"{WHEN[question]} on {IMAGES[split]}: {', '.join(named)}")
    return (f"Adjusted and over any free confidence, better only {'; '.join(texts)}.",)


def _matrix(title: str, found: Sequence[System], ids: Mapping[int, str], titles: Mapping[str, str]) -> Table:
    counts = Counter(each.contender.dataset for each in found)
    datasets = [name for name, _ in counts.most_common()]  # a narrow screen shows the first ones
    rows = []
    for name, own in sorted(grouped(found, _name).items()):
        by_dataset = {each.contender.dataset: each for each in own}
        cells = [_cell(by_dataset[dataset], ids) if dataset in by_dataset else Cell(GAP) for dataset in datasets]
        rows.append([Cell(name), *cells])
    return cells_table(title, headings("method", *(titles[dataset] for dataset in datasets)), rows, small="small fit")


def _name(each: System) -> str:
    """Method and form; its base is that of the data set."""
    return each.contender._replace(base="").label


def _cell(each: System, ids: Mapping[int, str]) -> Cell:
    difference = each.difference
    text = f"{each.outcome}{'*' * (each.counts and each.holds)} {round(100 * difference.mean, 1) + 0.0:+.1f}"
    if each.same_order_as:
        text = f"({each.same_order_as}) {text}"
    return Cell(
        text,
        difference.mean,
        mark=each.outcome if each.counts and each.outcome else "",
        note=f"AUGRC, plain minus method: {difference_text(difference)} points",
        href=ids[id(each)],
    )


def _table(found: Sequence[System], names: Sequence[str], anchor: str, dataset: str) -> Table:
    labels = distinct_labels(list(dict.fromkeys(each.contender for each in found)))
    columns: tuple[Column[System], ...] = (
        label("method", lambda each: labels[each.contender]),
        label("question", lambda each: QUESTIONS[each.question]),
        label("images", lambda each: IMAGES[each.split]),
        *(column for column in JUDGED if SHOWN.match(column.title)),
    )
    title = f"{dataset}: systems, each method with its own confidence against the plain method with a free one"
    return table_of(columns, found, title, place="page", anchors=names, anchor=anchor, csv=frame_of(COLUMNS, found))
