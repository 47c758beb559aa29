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

from ..protocols.rows import COMBINED, FITTED, FREE_IMAGE_CONFIDENCES, OWN, RETRIEVAL_CONFIDENCES, kind_of
from ..protocols.statistics import ROUNDING, Outcome, Summary, paired_difference
from .contender import CONTENDER, LABELS, Contender
from .frame import tested_splits
from .seeds import NO_DIFFERENCE, SeedGroup, SeedStatistics, defined_values, difference_fields, divided
from .table import GAP, Cell, Column, Document, frame_of, grouped, held, interval, label, percent, table_of

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
        free = f"{self.rivals.chosen} {percent(self.rival_mean, 1)}" if self.rivals.chosen else GAP
        if self.on_test:
            free = f"({self.rivals.best_on_test} {percent(self.rivals.best_on_test_mean, 1)})"
        difference = ""
        if self.difference is not None:
            numbers = (self.difference.mean, self.difference.ci_low, self.difference.ci_high)
            difference = interval(*(percent(value, 1, "+") for value in numbers))
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
    images = _free_images(names)
    known: dict[Question, Rivals] = {
        "before_gallery": _rivals(group, split, images),
        "at_query_time": _rivals(group, split, RETRIEVAL_CONFIDENCES),
    }
    same = same_order_as(group, split) if OWN in names else ""
    for question, rivals in known.items():
        for name in CHALLENGERS[question] if OWN in names else ("",):
            yield _verdict(group, split, question, name, rivals, known["before_gallery"].chosen, same)


def _aurocs(group: SeedGroup, split: str, confidence: str) -> dict[int, float]:
    """AUROC of a confidence by seed, if it has one."""
    return defined_values(group.per_seed(METRIC, split, confidence=confidence))


def _free_images(names: set[str]) -> tuple[str, ...]:
    """Free image confidences of these names, in the order in which ties are broken."""
    others = sorted(name for name in names - {OWN, *FREE_IMAGE_CONFIDENCES} if kind_of(name) == "image")
    return (*(name for name in FREE_IMAGE_CONFIDENCES if name in names), *others)


def _rivals(group: SeedGroup, split: str, free: Sequence[str]) -> Rivals:
    chosen, mean = _best(group, _held_out(split), free)
    reason = "" if chosen else _why_no_choice(group, split, free)
    return Rivals(chosen, mean, *_best(group, split, free), reason)


def same_order_as(group: SeedGroup, split: str) -> str:
    """The first free image confidence with the AUROC of the own one at every seed; empty if there is none."""
    own = _aurocs(group, split, OWN)
    for name in _free_images(group.confidences(METRIC, split)):
        other = _aurocs(group, split, name)
        if own and set(own) == set(other) and all(abs(own[seed] - other[seed]) <= SAME_ORDER for seed in own):
            return name
    return ""


def _held_out(split: str) -> str:
    """Split of the validation images that corresponds to one of the test images."""
    return f"val{split.removeprefix('test')}"


def _best(group: SeedGroup, split: str, names: Sequence[str]) -> tuple[str, float]:
    """The confidence with the highest mean and this mean; the first of equal ones, nothing if none has a value.

    A confidence that lacks the value of a seed does not compete: its mean would be that of other models.
    """
    defined = {name: _aurocs(group, split, name) for name in names}
    seeds = {seed for values in defined.values() for seed in values}
    means = {name: SeedStatistics.of(values).mean for name, values in defined.items() if seeds and set(values) == seeds}
    if not means:
        return "", float("nan")
    best = max(means, key=lambda name: means[name])
    return best, means[best]


def _why_no_choice(group: SeedGroup, split: str, free: Sequence[str]) -> str:
    if any(group.per_seed(METRIC, _held_out(split), confidence=name) for name in free):
        return "no AUROC on validation"
    if group.contender.ensemble == "concatenated":
        return "no validation classes"
    trained_on = any(each.startswith("train") for each in group.splits(METRIC))
    return "validation classes were trained on" if trained_on else "no validation rows"


def _verdict(
    group: SeedGroup, split: str, question: Question, challenger: str, rivals: Rivals, free_image: str, same: str
) -> Verdict:
    own, free = _aurocs(group, split, challenger), _aurocs(group, split, rivals.chosen)
    difference = paired_difference(own, free) if set(own) & set(free) else None
    outcome, reason = _decide(challenger, own, rivals, difference)
    answer = Verdict(
        contender=group.contender,
        split=split,
        question=question,
        challenger=challenger,
        challenger_mean=SeedStatistics.of(own).mean,
        rivals=rivals,
        rival_mean=SeedStatistics.of(free).mean,
        difference=difference,
        outcome=outcome,
        reason=reason,
        alike=_compare_alike(group, split, challenger, free_image),
        same_order_as=same,
        validation_mean=SeedStatistics.of(_aurocs(group, _held_out(split), challenger)).mean,
    )
    if answer.reason or answer.outcome != "better" or answer.beats_all_free:
        return answer
    if answer.alike and answer.alike.suffices:
        # In words, which a narrow column can break.
        return replace(answer, reason=f"not over {answer.alike.name.replace('_', ', ').replace('+', ' + ')}")
    return replace(answer, reason=f"orders images as {same}")


def _decide(
    challenger: str, own: Mapping[int, float], rivals: Rivals, difference: Summary | None
) -> tuple[Outcome | Literal[""], str]:
    """Outcome of a comparison, and the reason if it is not what the interval says."""
    if not challenger:
        return "", "no own confidence"
    if rivals.reason:
        return "", rivals.reason
    if difference is None:
        return "", "no AUROC on test"
    if difference.n < 2:
        return "undecided", "one seed"
    constant = all(value == 0.5 for value in own.values())
    return outcome_of(difference), "AUROC 0.5 at every seed" if constant else ""


def _compare_alike(group: SeedGroup, split: str, challenger: str, free: str) -> Alike | None:
    """How a combination with the margin compares with that of a free image confidence."""
    ending = challenger.removeprefix(OWN)
    if not ending or not free:
        return None
    own, other = _aurocs(group, split, challenger), _aurocs(group, split, f"{free}{ending}")
    if not set(own) & set(other):
        return None
    return Alike(f"{free}{ending}", SeedStatistics.of(other).mean, paired_difference(own, other))


def outcome_of(difference: Summary, region: float = 0.0) -> Outcome:
    """What the 95 % t-interval of a mean difference decides; one inside the region of no practical meaning is equal."""
    if region and -region <= difference.ci_low and difference.ci_high <= region:
        return "equivalent"
    if difference.ci_low > ROUNDING:
        return "better"
    return "worse" if difference.ci_high < -ROUNDING else "undecided"


def _free(each: Verdict) -> dict[str, object]:
    best = {"best_on_test": each.rivals.best_on_test, "best_on_test_mean": each.rivals.best_on_test_mean}
    chosen = {"rival": each.rivals.chosen, "rival_validation_mean": each.rivals.validation_mean}
    return {**chosen, "rival_mean": each.rival_mean, **best}


def _alike(each: Verdict) -> dict[str, object]:
    found = each.alike or Alike("", NO_DIFFERENCE.mean, NO_DIFFERENCE)
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
    places = grouped(found, lambda each: (each.contender.dataset, each.split, each.question))
    tables = tuple(
        table_of(COLUMNS, rows, f"{dataset}, {images_of(split)}, {QUESTIONS[question]}", caption=f"{about}. Percent.")
        for (dataset, split, question), rows in places.items()
    )
    introduction = f"{about} {ON_TEST}. Percent."
    return Document(
        "verdicts", "Verdicts", introduction, tables, frame_of(COLUMNS, found), always=("method", "confidence")
    )


def images_of(split: str) -> str:
    """Words for the images of a split, such as ``centre crops``."""
    return IMAGES.get(split, split.removeprefix("test_"))
