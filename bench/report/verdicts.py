"""Verdicts about learned confidences: is one worth it, compared with the best confidence that costs nothing?

There are two questions. Before there is a gallery, a method's own confidence competes with the free image confidences
of the same network. At query time it competes, alone and combined with the margin, with the free retrieval confidences.
The rival is the best free confidence on validation classes; values on test classes never choose it. Of a combination
with the margin it is also said if a free image confidence does as well in the same combination, or if the own
confidence orders the images as a free one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import pandas as pd

from ..protocols.confidence_kinds import COMBINED, FITTED, FREE_IMAGE_CONFIDENCES, OWN, RETRIEVAL_CONFIDENCES, kind_of
from ..protocols.statistics import ROUNDING, Outcome, Summary, paired_difference
from .contender import CONTENDER, LABELS, Contender
from .frame import tested_splits
from .seeds import SeedGroup, SeedStatistics, defined_values, divided
from .table import GAP, Cell, Column, Document, frame_of, held, label, percent, table_of

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
"""Words for the outcomes of a learned confidence against the best free one, as tables and files have them."""

IMAGES = {"test": "clean images", "test_crop": "centre crops"}
"""Splits that the terminal shows, with their names in titles; the files have every split."""

ABOUT_VERDICTS = (
    "AUROC of Recall@1 being right; best free: chosen by validation;\nown - free: mean over seeds [95 % t-interval]"
)
"""Legend of the tables of verdicts."""

ON_TEST = "(in brackets: best on test, if validation cannot choose)"
"""Rest of the legend, for tables with rivals in brackets."""

CHALLENGERS: Mapping[Question, tuple[str, ...]] = {
    "before_gallery": (OWN,),
    "at_query_time": (OWN, f"{OWN}{COMBINED}", f"{OWN}{FITTED}"),
}
"""Names of the confidences that each question is about."""

SAME_ORDER = 5e-4
"""Largest difference of the AUROCs of two confidences, at every seed, that are said to order the images alike.

A norm that is the concentration of a distribution is one: its AUROC differs from that of the norm by rounding only.
"""

NONE_OWN = "no own confidence"
CONCATENATED = "no validation classes"
TRAINED_ON = "validation classes were trained on"
NO_VALIDATION = "no validation rows"
NO_CHOICE = "no AUROC on validation"
NO_VALUE = "no AUROC on test"
ONE_SEED = "one seed"
CONSTANT = "AUROC 0.5 at every seed"


class Texts(NamedTuple):
    """Cells of a verdict in a table, AUROC in percent; a rival is in brackets if no validation classes chose it."""

    own: str
    free: str
    difference: str
    verdict: str
    ending: str


class Rivals(NamedTuple):
    """Free confidences that a question allows, on one split of the test images.

    ``chosen`` is the best one on validation images, with its mean AUROC over seeds there, or there is a reason for
    having no choice; the best one on the test images plays no part in a verdict.
    """

    chosen: str
    validation_mean: float
    best_on_test: str
    best_on_test_mean: float
    reason: str


class Alike(NamedTuple):
    """The free image confidence that validation chose, combined with the margin in the same way as the own one."""

    name: str
    mean: float
    difference: Summary

    @property
    def suffices(self) -> bool:
        """True if the challenger was not shown to be better."""
        return not self.difference.ci_low > ROUNDING


@dataclass(frozen=True)
class Verdict:
    """Answer to one question about one confidence of a contender, on one split.

    ``difference`` is challenger minus rival over paired seeds; the outcome is ``better`` if its 95 % t-interval lies
    above 0, ``worse`` if below, else ``undecided``; empty if the question cannot be answered. ``reason`` says why, or
    is a remark: ``not over norm + margin`` if a combination is better, but was not shown to be better than the free one
    that is combined alike (``alike``), ``orders images as norm`` if it is better, but the own confidence in it orders
    the images as a free one does (``same_order_as``).
    """

    contender: Contender
    split: str
    question: Question
    challenger: str
    challenger_mean: float
    rivals: Rivals
    rival_mean: float
    difference: Summary | None
    outcome: Outcome | Literal[""]
    reason: str
    alike: Alike | None = None
    same_order_as: str = ""
    validation_mean: float = float("nan")

    @property
    def beats_all_free(self) -> bool:
        """True if it is better and nothing free does as well.

        A combination with the margin has to be better than the same one of a free image confidence, and made of an own
        confidence that does not order the images as a free one does.
        """
        return self.outcome == "better" and not (self.alike and self.alike.suffices) and not self.same_order_as

    @property
    def verdict(self) -> str:
        """Its outcome in words: :data:`WORTH`."""
        return WORTH[self.outcome]

    @property
    def on_test(self) -> bool:
        """True if tables show the best free confidence on test, since there is none that validation chose."""
        return not self.rivals.chosen and bool(self.rivals.best_on_test)

    @property
    def texts(self) -> Texts:
        """Cells of the verdict in a table."""
        free = f"{self.rivals.chosen} {percent(self.rival_mean, 1)}" if self.rivals.chosen else "-"
        if self.on_test:
            free = f"({self.rivals.best_on_test} {percent(self.rivals.best_on_test_mean, 1)})"
        difference = ""
        if self.difference is not None:
            low, high = (f"{100 * end:+.1f}" for end in (self.difference.ci_low, self.difference.ci_high))
            difference = f"{100 * self.difference.mean:+.1f}" + (f" [{low}, {high}]" if self.difference.n > 1 else "")
        verdict = ": ".join(filter(None, [self.verdict, self.reason]))
        ending = self.challenger.removeprefix(OWN).replace("_", " ")
        return Texts(percent(self.challenger_mean, 1), free, difference, verdict, ending)


def verdicts(groups: Iterable[SeedGroup]) -> list[Verdict]:
    """Answer both questions for every contender on clean and on corrupted test images.

    The AUROC is that of the method's own scorer. A contender without a retrieval confidence on test images, as in old
    records, is left out. There is one verdict before the gallery and three at query time, or one of each if the method
    has no confidence of its own.
    """
    found: list[Verdict] = []
    for own in divided(groups, ["dataset"]).values():
        for split in tested_splits(split for group in own for split in group.splits(METRIC)):
            for group in own:
                found += _of_group(group, split)
    return found


def _of_group(group: SeedGroup, split: str) -> Iterator[Verdict]:
    names = group.confidences(METRIC, split)
    if not names & set(RETRIEVAL_CONFIDENCES):
        return
    free: dict[Question, tuple[str, ...]] = {
        "before_gallery": _free_images(names),
        "at_query_time": RETRIEVAL_CONFIDENCES,
    }
    known = {question: _rivals(group, split, rivals) for question, rivals in free.items()}
    same = _same_order_as(group, split, free["before_gallery"]) if OWN in names else ""
    for question, rivals in known.items():
        for name in CHALLENGERS[question] if OWN in names else ("",):
            answer = replace(_verdict(group, split, question, name, rivals), same_order_as=same)
            yield _with_remark(_with_alike(answer, group, known["before_gallery"].chosen))


def _free_images(names: set[str]) -> tuple[str, ...]:
    """Free image confidences of these names, in the order in which ties are broken."""
    others = sorted(name for name in names - {OWN, *FREE_IMAGE_CONFIDENCES} if kind_of(name) == "image")
    return (*(name for name in FREE_IMAGE_CONFIDENCES if name in names), *others)


def _rivals(group: SeedGroup, split: str, free: Sequence[str]) -> Rivals:
    best, best_mean = _best({name: group.per_seed(METRIC, split, confidence=name) for name in free})
    by_seed = {name: group.per_seed(METRIC, _held_out(split), confidence=name) for name in free}
    chosen, mean = _best(by_seed)
    reason = ""
    if not chosen:
        reason = NO_CHOICE if any(by_seed.values()) else _why_no_validation(group)
    return Rivals(chosen, mean, best, best_mean, reason)


def _same_order_as(group: SeedGroup, split: str, free: Sequence[str]) -> str:
    """The first free image confidence with the AUROC of the own one at every seed; empty if there is none."""
    own = defined_values(group.per_seed(METRIC, split, confidence=OWN))
    for name in free:
        other = defined_values(group.per_seed(METRIC, split, confidence=name))
        if own and set(own) == set(other) and all(abs(own[seed] - other[seed]) <= SAME_ORDER for seed in own):
            return name
    return ""


def _held_out(split: str) -> str:
    """Split of the validation images that corresponds to one of the test images."""
    return f"val{split.removeprefix('test')}"


def _best(by_name: Mapping[str, Mapping[int, float]]) -> tuple[str, float]:
    """The confidence with the highest mean and this mean; the first of equal ones, nothing if none has a value.

    A confidence that lacks the value of a seed does not compete: its mean would be that of other models.
    """
    defined = {name: defined_values(values) for name, values in by_name.items()}
    seeds = {seed for values in defined.values() for seed in values}
    means = {name: SeedStatistics.of(values).mean for name, values in defined.items() if seeds and set(values) == seeds}
    if not means:
        return "", float("nan")
    best = max(means, key=lambda name: means[name])
    return best, means[best]


def _why_no_validation(group: SeedGroup) -> str:
    if group.contender.ensemble == "concatenated":
        return CONCATENATED
    trained_on = any(split.startswith("train") for split in group.splits(METRIC))
    return TRAINED_ON if trained_on else NO_VALIDATION


def _verdict(group: SeedGroup, split: str, question: Question, challenger: str, rivals: Rivals) -> Verdict:
    own = defined_values(group.per_seed(METRIC, split, confidence=challenger)) if challenger else {}
    free = defined_values(group.per_seed(METRIC, split, confidence=rivals.chosen)) if rivals.chosen else {}
    held_out = defined_values(group.per_seed(METRIC, _held_out(split), confidence=challenger)) if challenger else {}
    difference = paired_difference(own, free) if set(own) & set(free) else None
    answer = Verdict(
        contender=group.contender,
        split=split,
        question=question,
        challenger=challenger,
        challenger_mean=SeedStatistics.of(own).mean,
        rivals=rivals,
        rival_mean=SeedStatistics.of(free).mean,
        difference=difference,
        outcome="",
        reason=rivals.reason,
        validation_mean=SeedStatistics.of(held_out).mean,
    )
    if not challenger:
        return replace(answer, reason=NONE_OWN)
    if rivals.reason:
        return answer
    if difference is None:
        return replace(answer, reason=NO_VALUE)
    if difference.n < 2:
        return replace(answer, outcome="undecided", reason=ONE_SEED)
    constant = all(value == 0.5 for value in own.values())
    return replace(answer, outcome=outcome_of(difference), reason=CONSTANT if constant else "")


def outcome_of(difference: Summary, region: float = 0.0) -> Outcome:
    """What the 95 % t-interval of a mean difference decides; one inside the region of no practical meaning is equal."""
    if region and -region <= difference.ci_low and difference.ci_high <= region:
        return "equivalent"
    if difference.ci_low > ROUNDING:
        return "better"
    return "worse" if difference.ci_high < -ROUNDING else "undecided"


def _with_alike(answer: Verdict, group: SeedGroup, free: str) -> Verdict:
    """Add how a combination with the margin compares with that of a free image confidence."""
    ending = answer.challenger.removeprefix(OWN)
    if not ending or not free:
        return answer
    own, other = (
        defined_values(group.per_seed(METRIC, answer.split, confidence=name))
        for name in (answer.challenger, f"{free}{ending}")
    )
    if not set(own) & set(other):
        return answer
    return replace(answer, alike=Alike(f"{free}{ending}", SeedStatistics.of(other).mean, paired_difference(own, other)))


def _with_remark(answer: Verdict) -> Verdict:
    """Add in words why an answer that is better does not beat all that is free."""
    if answer.reason or answer.outcome != "better" or answer.beats_all_free:
        return answer
    if answer.alike and answer.alike.suffices:
        # In words, which a narrow column can break.
        return replace(answer, reason=f"not over {answer.alike.name.replace('_', ', ').replace('+', ' + ')}")
    return replace(answer, reason=f"orders images as {answer.same_order_as}")


_NAN = float("nan")
_NONE = Summary(_NAN, _NAN, _NAN, _NAN, 0)


def _interval(each: Verdict) -> dict[str, object]:
    found = each.difference or _NONE
    ends = {"ci95_low": found.ci_low, "ci95_high": found.ci_high}
    return {"difference_mean": found.mean, "difference_sd": found.sd, **ends}


def _free(each: Verdict) -> dict[str, object]:
    best = {"best_on_test": each.rivals.best_on_test, "best_on_test_mean": each.rivals.best_on_test_mean}
    chosen = {"rival": each.rivals.chosen, "rival_validation_mean": each.rivals.validation_mean}
    return {**chosen, "rival_mean": each.rival_mean, **best}


def _alike(each: Verdict) -> dict[str, object]:
    found = each.alike or Alike("", _NAN, _NONE)
    ends = {"alike_ci95_low": found.difference.ci_low, "alike_ci95_high": found.difference.ci_high}
    means = {"alike_mean": found.mean, "alike_difference_mean": found.difference.mean}
    return {"alike": found.name, **means, **ends, "same_order_as": each.same_order_as}


JUDGED: tuple[Column[Verdict], ...] = (
    Column(
        "own",
        lambda each: Cell(each.texts.own, each.challenger_mean),
        held("challenger_mean"),
        note="AUROC of the confidence in percent, mean over seeds",
    ),
    Column(
        "best free",
        lambda each: each.texts.free,
        _free,
        note="chosen on validation classes; in brackets: best on test, if validation cannot choose",
    ),
    Column(
        "own - free",
        lambda each: Cell(each.texts.difference or GAP, (each.difference or _NONE).mean),
        _interval,
        note="mean over paired seeds [95 % t-interval], points",
    ),
    Column(
        "seeds",
        lambda each: str(each.difference.n) if each.difference else GAP,
        lambda each: {"seeds": (each.difference or _NONE).n},
        note="paired seeds",
    ),
    Column(
        "verdict",
        lambda each: Cell(each.texts.verdict, mark=each.outcome),
        lambda each: {"verdict": each.verdict, "reason": each.reason},
        number=False,
        note="worth it if the interval lies above 0, not worth it if below",
    ),
)
"""Columns of what is judged, in the tables of every format."""

COLUMNS: tuple[Column[Verdict], ...] = (
    CONTENDER,
    *LABELS,
    Column("", fields=lambda each: {"split": each.split, "question": each.question}),
    label("confidence", lambda each: each.challenger or GAP, fields=held("challenger")),
    *JUDGED,
    Column("", fields=_alike),
)
"""Columns of the tables of verdicts."""


def verdict_frame(found: Sequence[Verdict]) -> pd.DataFrame:
    """Numbers of verdicts, one row per contender, split, question and challenger."""
    return frame_of(COLUMNS, found)


def verdict_document(found: Sequence[Verdict]) -> Document:
    """Tables of verdicts, one per data set, split and question."""
    about = ABOUT_VERDICTS.replace("\n", " ")
    places: dict[tuple[str, str, Question], list[Verdict]] = {}
    for each in found:
        places.setdefault((each.contender.dataset, each.split, each.question), []).append(each)
    tables = tuple(
        table_of(COLUMNS, rows, f"{dataset}, {images_of(split)}, {QUESTIONS[question]}", caption=f"{about}. Percent.")
        for (dataset, split, question), rows in places.items()
    )
    introduction = f"{about} {ON_TEST}. Percent."
    return Document("verdicts", "Verdicts", introduction, tables, verdict_frame(found), always=("method", "confidence"))


def images_of(split: str) -> str:
    """Words for the images of a split, such as ``centre crops``."""
    return IMAGES.get(split, split.removeprefix("test_"))
