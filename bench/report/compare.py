"""A comparison is a row: two series of values by unit, what a paired test says about them, and the decision.

Every judged table of a report, and every claim of a paper, is a choice of such rows; how they are made is a
:class:`Question`. Seeds pair up because initialisation and order of the data depend on (data set, replicate), not on
the method.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from ..protocols.statistics import paired
from .contender import Contender
from .seeds import ComparedColumn, SeedGroup, mean_of
from .table import grouped, interval, percent

NAN = float("nan")

ALPHA = 0.05
"""Largest p-value of a decision."""

Outcome = Literal["better", "worse", "equivalent", "undecided", "depends on tuning", "no verdict"]

OUTCOMES: tuple[Outcome, ...] = ("better", "worse", "equivalent", "undecided", "depends on tuning", "no verdict")
"""What a comparison may come to, in the order in which readers see them."""

Unit = Literal["seed", "replicate", "split"]

APART = 2.8
"""Pooled SDs of replicates of one sign that the mean of each sign is away from 0 if the outcome depends on tuning.

Of five replicates that are normal around 0, 4 % are; two of one network and setting differ by as much in 5 % of cases.
"""

Use = Literal["", "before_gallery", "at_query_time"]
"""When a confidence is used: when only the image is known, or when its ranking is; empty without a confidence."""


class Reason(Enum):
    """Why there is no verdict, or not the one that the interval alone would give; the text of each."""

    NO_PAIRS = "no common {unit}"
    ONE_UNIT = "one {unit}"
    NO_RATIO = "the numbers of classes are not known"
    NO_PLAIN = "no result of the plain method at this budget"
    NO_OWN = "no own confidence"
    NO_VALUE = "no AUROC on test"
    CONSTANT = "confidence {detail}"
    NO_RANKING = "no Recall@1 on validation images chooses the ranking"
    NO_CLASSES = "no validation classes"
    TRAINED_ON = "validation classes were trained on"
    NO_VALIDATION = "no validation rows"
    NO_CHOICE = "no AUROC on validation"
    NO_RECORDS = "no {detail}"
    NOT_ABOVE_CHANCE = "not above chance"
    SAME_ORDER = "orders images as {detail}"
    SIGNS = "{detail} replicates agree"


@dataclass(kw_only=True, slots=True, eq=False)
class Comparison:
    """Values of a contender beside those of what it is compared with, paired by unit, and what follows.

    Attributes:
        question: Name of its :class:`Question`.
        contender: Method at one setting that the outcome is about.
        against: Contender that it is compared with; None if it is a confidence of the same network.
        column: Metric, with the images and the variant.
        values: Values of the contender by unit; ``others`` are those that it is compared with.
        unit: What values are paired over: ``seed`` of one setting, ``replicate`` with a tuning study of its own, or
            ``split`` for class splits.
        test_over_train: Test classes over training classes of class splits; 0 of seeds, nan if not known.
        use: When the confidence is used.
        ranking: Scorer that ranks; ``confidence`` and ``rival`` are the confidences of the two sides.
        leads: Whether its budget is the leading one of the data set.
        aurocs: AUROC of the confidence by unit, which a win needs above chance; None without a confidence.
        free: Values of every free confidence that could have been the rival, by name and unit.
        same_order_as: Free confidence that orders the images alike; the comparison is then not counted.
        about: What else a question says about it, by column.
        mean: Mean difference, in favour of the contender, with ``sd`` and the 95 % t-interval ``low`` to ``high``, over
            ``n`` units. What does not exist is nan.
        p: P-value of no difference; of a win, also of an AUROC at chance. ``p_equivalence`` is that of a difference
            inside the region of the metric (two one-sided t-tests).
        p_holm: The same adjusted over the family of the question, as is ``p_equivalence_holm``; ``p_bh`` by Benjamini
            and Hochberg's method.
        family: Number of p-values that are adjusted together.
        outcome: One of :data:`OUTCOMES`, with a ``reason`` if the interval is not all that decides, and its ``detail``.
    """

    question: str
    contender: Contender
    column: ComparedColumn
    values: Mapping[int, float]
    others: Mapping[int, float]
    against: Contender | None = None
    unit: Unit = "seed"
    test_over_train: float = 0.0
    use: Use = ""
    ranking: str = ""
    confidence: str = ""
    rival: str = ""
    leads: bool = True
    aurocs: Mapping[int, float] | None = None
    free: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    same_order_as: str = ""
    about: Mapping[str, object] = field(default_factory=dict)
    mean: float = NAN
    sd: float = NAN
    low: float = NAN
    high: float = NAN
    n: int = 0
    p: float = NAN
    p_equivalence: float = NAN
    p_holm: float = NAN
    p_equivalence_holm: float = NAN
    p_bh: float = NAN
    family: int = 0
    survives: bool = False
    outcome: Outcome = "no verdict"
    reason: Reason | None = None
    detail: str = ""

    @property
    def counts(self) -> bool:
        """True if it is a case that can be won or lost."""
        return self.outcome != "no verdict" and not self.same_order_as

    @property
    def holds(self) -> bool:
        """True if it is still decided when it is adjusted over the methods of its data set."""
        return self.p_holm <= ALPHA and self.reason is not Reason.SIGNS

    @property
    def why(self) -> str:
        """Text of the reason; empty without one."""
        unit = "class split" if self.unit == "split" else self.unit
        return self.reason.value.format(unit=unit, detail=self.detail) if self.reason else ""

    @property
    def verdict(self) -> str:
        """The outcome, or the reason for having none that counts."""
        return self.outcome if self.counts else self.why

    @property
    def text(self) -> str:
        """Mean difference with its interval: shares in points with one decimal."""
        return interval(*map(self._text_of, (self.mean, self.low, self.high)))

    @property
    def differences(self) -> list[str]:
        """Difference at each unit, in favour of the contender, as text: shares in points with one decimal."""
        return [self._text_of(self.column.sign * (self.values[at] - self.others[at])) for at in common(self)]

    def _text_of(self, difference: float) -> str:
        return percent(difference, 1, "+") if self.column.percent else self.column.text(difference, "+")

    @property
    def raw(self) -> dict[str, float]:
        """Values of the contender minus the others, as they are measured, whichever direction is better."""
        sign = self.column.sign
        low, high = sorted((sign * self.low, sign * self.high)) if self.low == self.low else (NAN, NAN)
        return {"difference_mean": sign * self.mean, "difference_sd": self.sd, "ci95_low": low, "ci95_high": high}

    @property
    def superiority(self) -> dict[str, float]:
        """Share of units at which the contender is better, ties counted half, with its exact 95 % interval."""
        found = np.array([self.column.sign * (self.values[at] - self.others[at]) for at in common(self)])
        better = paired.probability_of_superiority(found) if len(found) else (NAN, NAN, NAN)
        return dict(zip(("superiority", "superiority_ci95_low", "superiority_ci95_high"), better))

    def turned(self) -> Comparison:
        """The same comparison, about the other contender."""
        assert self.against is not None
        turn: dict[Outcome, Outcome] = {"better": "worse", "worse": "better"}
        return replace(
            self,
            contender=self.against,
            against=self.contender,
            values=self.others,
            others=self.values,
            mean=-self.mean,
            low=-self.high,
            high=-self.low,
            outcome=turn.get(self.outcome, self.outcome),
        )

    def units_needed(self, alpha: float = ALPHA) -> int | None:
        """Units, in all, at which a difference of the observed size would be found in 80 % of cases.

        A difference smaller than the region counts as the region; without either there is no number.
        """
        effect = max(abs(self.mean), self.column.declared.equivalence)
        return paired.seeds_needed(self.sd, effect, alpha=alpha) if self.n > 1 and effect > 0 else None


def common(row: Comparison) -> list[int]:
    """Units at which both sides have a value, sorted."""
    return _common(row.values, row.others)


def _common(own: Mapping[int, float], other: Mapping[int, float]) -> list[int]:
    return sorted(at for at, value in own.items() if value == value and other.get(at, NAN) == other.get(at, NAN))


def level(row: Comparison, values: Mapping[int, float]) -> float:
    """Mean of a side of a comparison over the units of its difference; without any, over all that it has."""
    return mean_of(values, common(row) or None)


class Question(NamedTuple):
    """How comparisons are made and decided.

    Attributes:
        name: Name in ``comparisons.csv``.
        pairs: Function that makes the comparisons of some groups, which need no numbers.
        family: P-values of comparisons with a common value of it are adjusted together.
        adjusted: Whether the outcome is at the adjusted p-values, not at those of each comparison alone.
        regions: Whether a difference inside the metric's region of practical equivalence is ``equivalent``.
    """

    name: str
    pairs: Callable[[Sequence[SeedGroup]], Iterable[Comparison]]
    family: Callable[[Comparison], Hashable]
    adjusted: bool = False
    regions: bool = True


class Paired(NamedTuple):
    """Paired differences of P pairs, an array ``[P]`` each; what does not exist is nan."""

    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray
    p: np.ndarray
    p_equivalence: np.ndarray


def compare(
    values: Sequence[Mapping[int, float]],
    others: Sequence[Mapping[int, float]],
    regions: Sequence[float] | float = 0.0,
    test_over_train: Sequence[float] | float = 0.0,
) -> Paired:
    """Differences ``values - others`` of P pairs over their common units: means, intervals and p-values.

    Student's paired t-test; over class splits, with ``test_over_train`` above 0, the variance of the mean is that of
    Nadeau and Bengio (2003).

    Args:
        values: Values by unit, one mapping a pair; nan is no value.
        others: What they are compared with, likewise.
        regions: Largest difference without practical meaning, at least 0, of each pair or of all.
        test_over_train: Test classes over training classes, at least 0, of each pair or of all; nan leaves the interval
            and the p-values unknown.

    Returns:
        The results, in the order of the pairs.

    Example:
        >>> found = compare([{0: 0.3, 1: 0.5, 2: 0.4}], [{0: 0.2, 1: 0.3, 2: 0.1, 3: 0.0}])
        >>> [float(round(each[0], 4)) for each in (found.mean, found.low, found.n, found.p)]
        [0.2, -0.0484, 3.0, 0.0742]
    """
    count = len(values)
    found = Paired(*(np.full(count, NAN) for _ in Paired._fields))
    found.n[:] = 0
    region_of, ratio_of = (np.broadcast_to(np.asarray(each), count) for each in (regions, test_over_train))
    units = [tuple(_common(*pair)) for pair in zip(values, others)]
    for (at, region, ratio), places in grouped(range(count), lambda i: (units[i], region_of[i], ratio_of[i])).items():
        found.n[places] = len(at)
        if not at:
            continue
        difference = np.array([[values[i][unit] - others[i][unit] for i in places] for unit in at])
        found.mean[places] = mean = difference.mean(0)
        if len(at) < 2:
            continue
        found.sd[places] = sd = difference.std(0, ddof=1)
        half = special.stdtrit(len(at) - 1, 1 - ALPHA / 2) * sd * np.sqrt(1 / len(at) + ratio)
        found.low[places], found.high[places] = mean - half, mean + half
        if ratio == ratio:
            found.p[places] = paired.p_different(difference, ratio)
            if region > 0:
                found.p_equivalence[places] = paired.p_equivalent(difference, region, ratio)
    return found


def decided(rows: Iterable[Comparison], question: Question) -> list[Comparison]:
    """Fill in the numbers and outcomes of comparisons: one set of rules, whatever the unit.

    Without a reason that was given, there is no verdict on a single unit. A difference is ``equivalent`` if two
    one-sided t-tests place it inside the region of its metric, else ``better`` or ``worse`` if its p-value is at most
    5 %, else ``undecided``. A confidence cannot win unless its AUROC is above chance. Replicates with tuning studies of
    their own have to agree in sign, too; if those of each sign stand :data:`APART`, the outcome depends on tuning.
    """
    found = list(rows)
    regions = [row.column.declared.equivalence if question.regions else 0.0 for row in found]
    values, others = ([_signed(row, getattr(row, side)) for row in found] for side in ("values", "others"))
    tested = compare(values, others, regions, [row.test_over_train for row in found])
    chance = _p_of_chance(found)
    for row, numbers in zip(found, zip(*tested)):
        row.unit = row.contender.unit if row.unit == "seed" else row.unit
        row.mean, row.sd, row.low, row.high, _, row.p, row.p_equivalence = map(float, numbers)
        row.n = int(numbers[4])
        if row.reason is None and row.p != row.p:
            row.reason = Reason.NO_RATIO if row.n > 1 else Reason.ONE_UNIT if row.n else Reason.NO_PAIRS
    for row, p in zip(found, chance):
        if row.aurocs is not None and row.mean > 0:
            row.p = float(np.fmax(row.p, p)) if row.p == row.p else NAN
        if row.reason is not None:
            row.p = row.p_equivalence = NAN
    _adjust([row for row in found if not row.same_order_as], question)
    for row, p in zip(found, tested.p):
        if row.reason is None:
            kinds = ("p_holm", "p_equivalence_holm") if question.adjusted else ("p", "p_equivalence")
            row.outcome = paired.verdict(row.mean, *(getattr(row, kind) for kind in kinds))
            if row.outcome == "undecided" and row.aurocs is not None and row.mean > 0 and p <= ALPHA:
                row.reason = Reason.NOT_ABOVE_CHANCE
            elif row.same_order_as:
                row.reason, row.detail = Reason.SAME_ORDER, row.same_order_as
            elif row.unit == "replicate" and row.outcome != "equivalent":
                agree(row)
    _mark_survivors(found)
    return found


def agree(row: Comparison) -> None:
    """Take a decision back if replicates differ in sign, and say so if they contradict each other."""
    differences = np.array([row.column.sign * (row.values[at] - row.others[at]) for at in common(row)])
    signs = [differences[differences > paired.ROUNDING], differences[differences < -paired.ROUNDING]]
    if not min(map(len, signs)):  # a tie contradicts nothing
        return
    row.reason, row.detail = Reason.SIGNS, f"{max(map(len, signs))} of {len(differences)}"
    row.outcome = "undecided"
    if (signed := sum(map(len, signs))) > 4:
        spread = np.sqrt(sum(((each - each.mean()) ** 2).sum() for each in signs) / (signed - 2))
        if min(abs(each.mean()) for each in signs) > APART * spread:
            row.outcome = "depends on tuning"


def _signed(row: Comparison, values: Mapping[int, float]) -> dict[int, float]:
    """Values of which the higher is better."""
    return {at: row.column.sign * value for at, value in values.items()}


def _p_of_chance(rows: Sequence[Comparison]) -> np.ndarray:
    """P-value of an AUROC of one half; 1 of one that is not above it in the mean."""
    aurocs = [row.aurocs or {} for row in rows]
    found = compare(aurocs, [dict.fromkeys(own, 0.5) for own in aurocs], 0.0, [row.test_over_train for row in rows])
    return np.where((found.mean > 0) & ~np.isnan(found.p), found.p, 1.0)  # one AUROC tells nothing


def _adjust(rows: Sequence[Comparison], question: Question) -> None:
    for own in grouped(rows, question.family).values():
        different, equal = (np.array([getattr(row, kind) for row in own]) for kind in ("p", "p_equivalence"))
        known = int((different == different).sum())
        adjusted = (paired.holm(different), paired.holm(equal), paired.benjamini_hochberg(different))
        for row, p_holm, p_equivalence_holm, p_bh in zip(own, *(each.tolist() for each in adjusted)):
            row.p_holm, row.p_equivalence_holm, row.p_bh = p_holm, p_equivalence_holm, p_bh
            row.family = known


def _mark_survivors(rows: Sequence[Comparison]) -> None:
    """Mark those that are better than with every free confidence that has a value at their units."""
    pairs = [
        (row, other)
        for row in rows
        for other in row.free.values()
        if {at for at, value in row.values.items() if value == value} <= {at for at, v in other.items() if v == v}
    ]
    values, others = [_signed(row, row.values) for row, _ in pairs], [_signed(*pair) for pair in pairs]
    found = compare(values, others, 0.0, [row.test_over_train for row, _ in pairs])
    lost = {id(row) for (row, _), low in zip(pairs, found.low) if not low > paired.ROUNDING}
    for row in {id(row): row for row, _ in pairs}.values():
        row.survives = id(row) not in lost


def ask(question: Question, groups: Sequence[SeedGroup]) -> list[Comparison]:
    """Make the comparisons of a question and decide them."""
    return decided(question.pairs(groups), question)


def over_units(
    rows: Mapping[int, Iterable[Comparison]], unit: Unit, ratio: Callable[[Contender], float] = lambda _: 0.0
) -> Iterator[Comparison]:
    """Fold comparisons that were made on each class split, or of each replicate, into those with that unit.

    Args:
        rows: Comparisons by the number of the class split or replicate. Of each, the mean over common seeds is the
            value.
        unit: The unit.
        ratio: Function of a contender, as on the data set's own split: test over training classes.
    """
    named = on_own_split if unit == "split" else (lambda contender: contender)
    every: dict[Hashable, dict[int, Comparison]] = {}
    for number, own in rows.items():
        for row in own:
            sides = tuple(each and named(each) for each in (row.contender, row.against))
            about = row.column, row.use, row.about.get("chosen"), row.confidence if row.question == "confidence" else ""
            every.setdefault((row.question, *sides, *about), {})[number] = row
    for by_split in every.values():
        held = {number: row for number, row in by_split.items() if common(row)}
        first = next(iter((held or by_split).values()))
        # A constant confidence or an unknown ranking on one split leaves the whole without a verdict: a mean over the
        # other splits would hide it.
        lasting = (row for row in by_split.values() if row.reason in (Reason.CONSTANT, Reason.NO_RANKING))
        # One that answers everything rightly has no AUROC, but risks as the others have.
        judged = [row for row in held.values() if not row.reason]
        refused = next(lasting, None if judged else first)
        same = {row.same_order_as for row in judged or held.values()}
        remarks = [name for name in first.about if name.endswith("_remark")]
        said = {name: _every(str(row.about[name]) for row in by_split.values()) for name in remarks}
        contender = named(first.contender)
        yield replace(
            first,
            unit=unit,
            test_over_train=ratio(contender),
            contender=contender,
            against=first.against and named(first.against),
            values={number: mean_of(row.values, common(row)) for number, row in held.items()},
            others={n: mean_of(row.others, common(row)) for n, row in held.items()}
            or {n: mean_of(row.others) for n, row in by_split.items()},
            aurocs=None
            if first.aurocs is None
            else {number: mean_of(row.aurocs or {}) for number, row in held.items()},
            free={
                name: {n: mean_of(row.free[name], common(row)) for n, row in held.items() if name in row.free}
                for name in dict.fromkeys(name for row in held.values() for name in row.free)
            },
            same_order_as=same.pop() if len(same) == 1 else "",
            ranking=_every(row.ranking for row in by_split.values()),
            confidence=_every(row.confidence for row in by_split.values()),
            rival=_every(row.rival for row in by_split.values()),
            reason=refused.reason if refused else None,
            detail=refused.detail if refused else "",
            about={**first.about, **said, "seeds": max((len(common(row)) for row in held.values()), default=0)},
        )


def _every(names: Iterable[str]) -> str:
    """Names that validation chose on some split, the most frequent first, as text."""
    return " or ".join(name for name, _ in Counter(filter(None, names)).most_common())


def on_own_split(contender: Contender) -> Contender:
    """The contender of which this one is on some class split."""
    return contender._replace(pinned=contender.pinned.on_split(0))


_FIELDS = ("low", "high", "n", "unit", "outcome", "p", "p_holm", "p_bh", "p_equivalence", "p_equivalence_holm", "leads")
_ABOUT = ("ranking", "confidence", "rival", "same_order_as", "survives", "family")


def _line(row: Comparison) -> dict[str, object]:
    split = row.column.split
    return {
        "question": row.question,
        **row.contender._asdict(),
        "against": row.against.label if row.against else "",
        "against_tuning": row.against.tuning if row.against else "",
        "against_network": row.against.network if row.against else "",
        "against_pinned": str(row.against.pinned) if row.against else "",
        "use": row.use,
        "images": split.removeprefix("test_") if split != "test" else "clean",
        **{name: getattr(row, name) for name in _ABOUT},
        "metric": row.column.metric,
        "variant": row.about.get("variant", row.column.variant),
        "chosen": row.about.get("chosen", True),
        "difference": row.mean,
        **{name: getattr(row, name) for name in _FIELDS},
        "reason": row.why,
    }


def comparisons_frame(rows: Iterable[Comparison]) -> pd.DataFrame:
    """Table ``comparisons.csv``: all comparisons, a row each; differences above 0 are in favour of the method."""
    return pd.DataFrame([_line(row) for row in rows])
