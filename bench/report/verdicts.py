"""Verdicts about learned confidences: is one worth it, compared with the best confidence that costs nothing?

There are two questions. Before there is a gallery, a method's own confidence competes with the free image confidences
of the same network. At query time it competes, alone and combined with free ones, with the free confidences of the
ranking and with combinations of free ones. The rival is the best on validation images; a constant is one, too. Values
on test classes never choose it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from scipy import stats

from ..protocols.rows import (
    COMBINED,
    FITTED,
    FITTED_TO_MARGIN,
    FREE_IMAGE_CONFIDENCES,
    MARGIN,
    MARGIN_AND_AGREEMENT,
    OWN,
    RETRIEVAL_CONFIDENCES,
    kind_of,
)
from ..protocols.statistics import ROUNDING, Outcome, Summary, holm, p_different, paired_difference
from .contender import CONTENDER, LABELS, Contender, by_budget
from .frame import tested_splits
from .seeds import NO_DIFFERENCE, SeedGroup, SeedStatistics, defined_values, difference_fields, difference_text, divided
from .table import GAP, Cell, Column, Document, frame_of, grouped, held, label, number, percent, table_of

METRIC = "confidence_auroc"
"""Metric of the verdicts: AUROC of telling right from wrong answers (Recall@1) by the confidence."""

Question = Literal["before_gallery", "at_query_time"]

QUESTIONS: Mapping[Question, str] = {"before_gallery": "before the gallery", "at_query_time": "at query time"}
"""Questions, with their headings in tables."""

WORTH: Mapping[Outcome | Literal[""], str] = {
    "better": "worth it",
    "worse": "not worth it",
    "equivalent": "equivalent",
    "undecided": "undecided",
    "": "",
}
"""Words for the outcomes of a learned confidence against the chosen free one, as tables and files have them."""

IMAGES = {"test": "clean images", "test_crop": "centre crops"}
"""Splits that the terminal shows, with their names in titles; the files have every split."""

ABOUT_VERDICTS = (
    "AUROC of Recall@1 being right; chosen free: by validation; own - free: mean over seeds [95 % t-interval]"
)
"""Legend of the tables of verdicts."""

ON_TEST = "(in brackets: best on test, if validation cannot choose)"
"""Rest of the legend, for tables with rivals in brackets."""

CHALLENGERS: Mapping[Question, tuple[str, ...]] = {
    "before_gallery": (OWN,),
    "at_query_time": (OWN, f"{OWN}{COMBINED}", f"{OWN}{FITTED_TO_MARGIN}", f"{OWN}{FITTED}"),
}
"""Names of the confidences that each question is about; a record has the third or the fourth."""

SAME_ORDER = 5e-4
"""Largest difference of the AUROCs of two confidences, at every seed, that are said to order the images alike.

A norm that is the concentration of a distribution is one: its AUROC differs from that of the norm by rounding only.
"""

CONSTANT = "constant"
"""Name of the rival that is as confident of every answer, which a free confidence has to beat on validation images."""

DEFAULTS: Mapping[Question, str] = {"before_gallery": FREE_IMAGE_CONFIDENCES[0], "at_query_time": MARGIN}
"""Free confidence of a network with too few wrong validation answers to choose one by."""

FEW_ERRORS = 100
"""Wrong validation answers below which no confidence is chosen by them."""


class Texts(NamedTuple):
    """Cells of a verdict in a table, AUROC in percent; a rival is in brackets if no validation classes chose it."""

    own: str
    free: str
    difference: str
    verdict: str


class Choice(NamedTuple):
    """Confidence of a network that its validation images chose, and why it is the default or why there is none."""

    name: str
    remark: str = ""


class Rivals(NamedTuple):
    """Free confidences that a question allows: the chosen one, and the best one on test images, which chooses nothing.

    ``remark`` says why the choice is the default or why there is none.
    """

    chosen: str
    remark: str
    best_on_test: str
    best_on_test_mean: float


@dataclass(frozen=True, kw_only=True)
class Case:
    """Comparison of a method's own confidence with a rival, on one split.

    The outcome is ``better`` if the 95 % t-interval of the difference lies above 0, ``worse`` if below, else
    ``undecided``; None if there is no comparison. ``reason`` says why, or is a remark. P-values are adjusted over all
    cases that are counted at one place. A method whose own confidence orders images as a free one does
    (``same_order_as``) cannot win by it, and is not counted. ``leads`` is whether its budget is the leading one of the
    data set, ``survives`` whether the method is also better than every free rival, whichever is best on the test
    images, and ``ranking`` the scorer that gives the answers.
    """

    contender: Contender
    split: str
    question: Question
    ranking: str
    leads: bool
    survives: bool
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
        """True if the outcome is still decided when it is adjusted over all cases that are counted."""
        return self.p_holm <= 0.05

    def place(self, apart: Collection[str]) -> str:
        """Its data set if that is one of those ``apart``; else empty."""
        return self.contender.dataset if self.contender.dataset in apart else ""


C = TypeVar("C", bound=Case)


def adjusted(found: Sequence[C], family: Callable[[C], object]) -> list[C]:
    """Adjust p-values over the cases of a family that are counted, by Holm and by Benjamini and Hochberg."""
    families = grouped((place for place, each in enumerate(found) if each.counts), lambda place: family(found[place]))
    result = list(found)
    for places in families.values():
        known = [place for place in places if found[place].p == found[place].p]
        p = np.array([found[place].p for place in known])
        for place, p_holm, p_bh in zip(known, holm(p), stats.false_discovery_control(p) if known else ()):
            result[place] = replace(found[place], p_holm=float(p_holm), p_bh=float(p_bh))
    return result


def p_of(first: Mapping[int, float], second: Mapping[int, float]) -> float:
    """P-value of the difference of two confidences over the seeds of both; nan with fewer than two."""
    both = sorted(set(first) & set(second))
    return (
        float(p_different(np.array([first[seed] - second[seed] for seed in both]))) if len(both) > 1 else float("nan")
    )


def p_of_win(difference: Summary, p: float, aurocs: Mapping[int, float]) -> float:
    """P-value of a difference; of one above 0, of a win, which needs an AUROC above chance as well."""
    if not difference.mean > 0 or p != p:
        return p
    chance = p_of(aurocs, dict.fromkeys(aurocs, 0.5)) if _mean([aurocs]) > 0.5 else 1.0
    return max(p, chance)


def difference_of(first: Mapping[int, float], second: Mapping[int, float]) -> Summary:
    """First minus second over the seeds of both."""
    return paired_difference(first, second) if set(first) & set(second) else NO_DIFFERENCE


@dataclass(frozen=True, kw_only=True)
class Verdict(Case):
    """Answer to one question about one confidence of a contender, on one split: challenger minus rival.

    ``chosen`` is whether the ranking is the one that a system takes.
    """

    challenger: str
    challenger_mean: float
    validation_mean: float
    rivals: Rivals
    rival_mean: float
    difference: Summary | None
    chosen: bool = True

    @property
    def beats_all_free(self) -> bool:
        """True if it is better, and does not order the images as a free one does."""
        return self.outcome == "better" and not self.same_order_as

    @property
    def verdict(self) -> str:
        """Its outcome in words: :data:`WORTH`."""
        return WORTH[self.outcome or ""]

    @property
    def on_test(self) -> bool:
        """True if tables show the best free confidence on test, since there is none that validation chose."""
        return not self.rivals.chosen and bool(self.rivals.best_on_test)

    @property
    def texts(self) -> Texts:
        """Cells of the verdict in a table."""
        free = GAP
        if self.rivals.chosen:
            default = " (default)" if self.rivals.remark else ""
            free = f"{self.rivals.chosen} {percent(self.rival_mean, 1)}{default}"
        if self.on_test:
            free = f"({self.rivals.best_on_test} {percent(self.rivals.best_on_test_mean, 1)})"
        difference = "" if self.difference is None else difference_text(self.difference)
        verdict = ": ".join(filter(None, [self.verdict, self.reason]))
        return Texts(percent(self.challenger_mean, 1), free, difference, verdict)


def verdicts(groups: Iterable[SeedGroup], *, every_ranking: bool = False, apart: Collection[str] = ()) -> list[Verdict]:
    """Answer both questions for every contender on clean and on corrupted test images.

    The answers are those of the ranking that a system takes (:func:`ranking_of`), or of every one under which image
    confidences were tested. A contender without a retrieval confidence on test images, as in old records, is left out.
    There is one verdict before the gallery and one per challenger at query time, or one of each if the method has no
    confidence of its own. A confidence that is constant has the reason alone. P-values are adjusted over the cases of
    all data sets together, but for those ``apart``, each for itself.
    """
    found: list[Verdict] = []
    for own in divided(groups, ["dataset"]).values():
        leading = set(next(iter(by_budget(group.contender for group in own).values()), ()))
        for split in tested_splits(split for group in own for split in group.splits(METRIC)):
            for group in own:
                chosen, leads = ranking_of(group), group.contender in leading
                for ranking in rankings_of(group) if every_ranking else (chosen,):
                    answers = _of_group(group.under(ranking), split, leads)
                    found += (replace(answer, chosen=ranking == chosen) for answer in answers)

    def family(each: Verdict) -> object:
        place = each.leads or each.contender.common
        return each.question, each.split, each.challenger, place, each.chosen, each.place(apart)

    return adjusted(found, family)


def rankings_of(group: SeedGroup) -> tuple[str, ...]:
    """The cosine and the method's own scorer, as far as image confidences were tested under them."""
    names = (OWN, *FREE_IMAGE_CONFIDENCES)
    found = {scorer for name in names for scorer in group.scorers(METRIC, "test", name)} & {"cosine", group.scorer}
    return tuple(sorted(found, key=lambda name: (name != "cosine", name))) or (group.scorer,)


def ranking_of(group: SeedGroup) -> str:
    """Scorer by which a system with this network ranks: that of the best Recall@1 on validation images.

    It is the mean over clean and corrupted ones; the method's own scorer if that is not known.
    """
    means = _recalls(group)
    return max(means, key=lambda scorer: means[scorer]) if len(means) > 1 else group.scorer


def no_ranking(group: SeedGroup) -> str:
    """Why the ranking of a system is not known, as in older records that lack Recall@1 on validation images."""
    others = group.scorers("recall_at_1", "test", "") & {"cosine"} - {group.scorer}
    unknown = others and len(_recalls(group)) < 2
    return "no Recall@1 on validation images chooses the ranking" if unknown else ""


def _recalls(group: SeedGroup) -> dict[str, float]:
    """Recall@1 on validation images by ranking, mean over clean and corrupted ones."""
    splits = _held_out(group, "recall_at_1")
    means = {}
    for scorer in rankings_of(group):
        values = [group.under(scorer).per_seed("recall_at_1", split) for split in splits]
        if values and all(len(defined_values(each)) == group.seeds for each in values):
            means[scorer] = float(np.mean([value for each in values for value in each.values()]))
    return means


def _held_out(group: SeedGroup, metric: str) -> list[str]:
    """Splits of validation images, clean and corrupted, that a metric was measured on."""
    return sorted(split for split in group.splits(metric) if split == "val" or split.startswith("val_"))


def free_confidences(group: SeedGroup, question: Question) -> tuple[str, ...]:
    """Free confidences that a question allows: of images before the gallery, also of the ranking and both later on."""
    kinds = ("image",) if question == "before_gallery" else ("retrieval", "combined")
    names = group.confidences(METRIC)
    first = (*FREE_IMAGE_CONFIDENCES, *RETRIEVAL_CONFIDENCES, MARGIN_AND_AGREEMENT)
    ordered = sorted(names, key=lambda name: (first.index(name) if name in first else len(first), name))
    return tuple(name for name in ordered if kind_of(name) in kinds and name.partition("+")[0] not in (OWN, "random"))


def choose(group: SeedGroup, question: Question, names: Sequence[str] = ()) -> Choice:
    """Choose a confidence of a network by its mean AUROC over clean and corrupted validation images.

    Of its free confidences, unless there are names of its own ones; a constant (0.5) competes with free ones. The
    default is taken if fewer than :data:`FEW_ERRORS` validation answers are wrong, in the mean over seeds.
    """
    splits = _held_out(group, METRIC)
    free = not names
    names = names or free_confidences(group, question)
    if not splits:
        return Choice("", _why_no_choice(group)) if free or len(names) > 1 else Choice(names[0])
    default = DEFAULTS[question] if free else names[0]
    errors = sum(_wrong(group, split) for split in splits)
    if errors < FEW_ERRORS and default in names:
        return Choice(default, f"default, {errors:.0f} wrong validation answers")
    # A seed that answers every validation query rightly has no AUROC there, of any confidence.
    values = {
        name: {(split, seed): value for split in splits for seed, value in aurocs(group, split, name).items()}
        for name in names
    }
    places = {place for own in values.values() for place in own}
    means = {name: _mean([own]) for name, own in values.items() if own.keys() == places}
    if not places or not means:
        return Choice("", "no AUROC on validation")
    means = ({CONSTANT: 0.5} if free else {}) | means
    return Choice(max(means, key=lambda name: means[name]))


def _mean(values: Iterable[Mapping[Any, float]]) -> float:
    every = [value for each in values for value in each.values()]
    return float(np.mean(every)) if every else float("nan")


def _wrong(group: SeedGroup, split: str) -> float:
    """Number of wrong answers, mean over seeds; infinite if older records do not tell."""
    known = defined_values(group.per_seed("recall_at_1", split))
    return group.queries[split] * (1 - _mean([known])) if known else float("inf")


def _of_group(group: SeedGroup, split: str, leads: bool) -> Iterator[Verdict]:
    names = group.confidences(METRIC, split)
    if not names & set(RETRIEVAL_CONFIDENCES):
        return
    same = same_order_as(group, split) if OWN in names else ""
    for question, challengers in CHALLENGERS.items():
        choice = choose(group, question)
        free = free_confidences(group, question)
        best = _best_on_test(group, split, free)
        rivals = Rivals(*choice, best, _mean([aurocs(group, split, best)]) if best else float("nan"))
        for name in [each for each in challengers if each in names] if OWN in names else [""]:
            answer = _verdict(group, split, question, name, rivals, same, leads)
            rivals_by_seed = map(partial(aurocs, group, split), (*free, CONSTANT))
            yield replace(answer, survives=survives(aurocs(group, split, name), rivals_by_seed))


def survives(own: Mapping[int, float], free: Iterable[Mapping[int, float]]) -> bool:
    """True if values by seed are better than those of every rival that has a value at these seeds."""
    whole = [rival for rival in free if own.keys() <= rival.keys()]
    return bool(whole) and all(outcome_of(difference_of(own, rival)) == "better" for rival in whole)


def aurocs(group: SeedGroup, split: str, confidence: str) -> dict[int, float]:
    """AUROC of a confidence by seed, if it has one; 0.5 for a constant."""
    if confidence == CONSTANT:
        return dict.fromkeys(group.rows["seed"].unique().tolist(), 0.5)
    return defined_values(group.per_seed(METRIC, split, confidence=confidence))


def same_order_as(group: SeedGroup, split: str) -> str:
    """The first free image confidence with the AUROC of the own one at every seed; empty if there is none.

    AUROCs of exactly one half, as of embeddings that are all equal, tell nothing about the order.
    """
    own = aurocs(group, split, OWN)
    if all(abs(value - 0.5) <= SAME_ORDER for value in own.values()):
        return ""
    for name in free_confidences(group, "before_gallery"):
        other = aurocs(group, split, name)
        if set(own) == set(other) and all(abs(own[seed] - other[seed]) <= SAME_ORDER for seed in own):
            return name
    return ""


def _best_on_test(group: SeedGroup, split: str, names: Sequence[str]) -> str:
    """The confidence with the highest mean, of those that have a value at every seed; empty without any."""
    defined = {name: aurocs(group, split, name) for name in names}
    seeds = {seed for values in defined.values() for seed in values}
    means = {name: _mean([values]) for name, values in defined.items() if seeds and set(values) == seeds}
    return max(means, key=lambda name: means[name], default="")


def _why_no_choice(group: SeedGroup) -> str:
    if group.contender.ensemble == "concatenated":
        return "no validation classes"
    trained_on = any(each.startswith("train") for each in group.splits(METRIC))
    return "validation classes were trained on" if trained_on else "no validation rows"


def _verdict(
    group: SeedGroup, split: str, question: Question, challenger: str, rivals: Rivals, same: str, leads: bool
) -> Verdict:
    own, free = aurocs(group, split, challenger), aurocs(group, split, rivals.chosen)
    constant = group.constant(challenger)
    difference = paired_difference(own, free) if set(own) & set(free) and not constant else None
    outcome, reason = _decide(challenger, own, rivals, difference)
    if constant:
        reason = constant
    elif outcome and (unknown := no_ranking(group)):
        outcome, reason = None, unknown
    if outcome == "better" and same:
        reason = f"orders images as {same}"
    return Verdict(
        contender=group.contender,
        split=split,
        question=question,
        ranking=group.scorer,
        leads=leads,
        challenger=challenger,
        challenger_mean=SeedStatistics.of(own).mean,
        validation_mean=_mean([aurocs(group, each, challenger) for each in _held_out(group, METRIC)]),
        rivals=rivals,
        rival_mean=SeedStatistics.of(free).mean,
        difference=difference,
        survives=False,
        same_order_as=same,
        outcome=outcome,
        reason=reason,
        p=p_of_win(difference, p_of(own, free), own) if outcome and difference else float("nan"),
    )


def _decide(
    challenger: str, own: Mapping[int, float], rivals: Rivals, difference: Summary | None
) -> tuple[Outcome | None, str]:
    """Outcome of a comparison, and the reason if it is not what the interval says."""
    if not challenger:
        return None, "no own confidence"
    if not rivals.chosen:
        return None, rivals.remark
    if difference is None:
        return None, "no AUROC on test"
    if difference.n < 2:
        return "undecided", "one seed"
    outcome = outcome_of(difference)
    if outcome == "better" and outcome_of(difference_of(own, dict.fromkeys(own, 0.5))) != "better":
        return "undecided", "not above chance"
    return outcome, ""


def outcome_of(difference: Summary, region: float = 0.0) -> Outcome:
    """What the 95 % t-interval of a mean difference decides; one inside the region of no practical meaning is equal."""
    if region and -region <= difference.ci_low and difference.ci_high <= region:
        return "equivalent"
    if difference.ci_low > ROUNDING:
        return "better"
    return "worse" if difference.ci_high < -ROUNDING else "undecided"


def _free(each: Verdict) -> dict[str, object]:
    best = {"best_on_test": each.rivals.best_on_test, "best_on_test_mean": each.rivals.best_on_test_mean}
    chosen = {"rival": each.rivals.chosen, "rival_remark": each.rivals.remark}
    return {**chosen, "rival_mean": each.rival_mean, **best}


SURE: tuple[Column[Any], ...] = (
    Column(
        "p, Holm",
        lambda each: number(each.p_holm, 3),
        lambda each: {"p": each.p, "p_holm": each.p_holm},
        note="p-value of the difference, adjusted over all cases that are counted",
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
        lambda each: {"survives": each.survives},
        number=False,
        note="whether it is better than every free confidence, whichever is best on the test images",
    ),
    Column("", fields=held("same_order_as")),
)
"""Columns that say how sure an outcome is."""

JUDGED: tuple[Column[Verdict], ...] = (
    Column(
        "own",
        lambda each: Cell(each.texts.own, each.challenger_mean),
        held("challenger_mean"),
        note="AUROC of the confidence in percent, mean over seeds",
    ),
    Column(
        "chosen free",
        lambda each: each.texts.free,
        _free,
        note="chosen on clean and corrupted validation images, the default with few errors there; in brackets: best on"
        " test, if validation cannot choose",
    ),
    Column(
        "own - free",
        lambda each: Cell(each.texts.difference or GAP, (each.difference or NO_DIFFERENCE).mean),
        lambda each: difference_fields(each.difference or NO_DIFFERENCE),
        note="mean over paired seeds [95 % t-interval], points",
    ),
    Column(
        "seeds",
        lambda each: str(each.difference.n) if each.difference else GAP,
        held("seeds", lambda each: (each.difference or NO_DIFFERENCE).n),
        note="paired seeds",
    ),
    Column(
        "verdict",
        lambda each: Cell(each.texts.verdict, mark=each.outcome or ""),
        lambda each: {"verdict": each.verdict, "reason": each.reason},
        number=False,
        note="worth it if the interval lies above 0, not worth it if below",
    ),
    *SURE,
)
"""Columns of what is judged, in the tables of every format."""

COLUMNS: tuple[Column[Verdict], ...] = (
    CONTENDER,
    *LABELS,
    Column("", fields=lambda each: {"split": each.split, "question": each.question}),
    label(
        "ranking",
        lambda each: each.ranking + ("" if each.chosen else " (not chosen)"),
        "scorer that ranks; verdicts count under the one with the higher Recall@1 on validation images",
        fields=lambda each: {"ranking": each.ranking, "chosen": each.chosen},
    ),
    label("confidence", lambda each: each.challenger or GAP, fields=held("challenger")),
    *JUDGED,
)
"""Columns of the tables of verdicts."""


def verdict_document(found: Sequence[Verdict]) -> Document:
    """Tables of verdicts, one per data set, split and question."""
    places = grouped(found, lambda each: (each.contender.dataset, each.split, each.question))
    tables = tuple(
        table_of(
            COLUMNS,
            rows,
            f"{dataset}, {images_of(split)}, {QUESTIONS[question]}",
            caption=f"{ABOUT_VERDICTS}. Percent.",
        )
        for (dataset, split, question), rows in places.items()
    )
    introduction = f"{ABOUT_VERDICTS} {ON_TEST}. Percent."
    return Document(
        "verdicts", "Verdicts", introduction, tables, frame_of(COLUMNS, found), always=("method", "confidence")
    )


def images_of(split: str) -> str:
    """Words for the images of a split, such as ``centre crops``."""
    return IMAGES.get(split, split.removeprefix("test_"))
