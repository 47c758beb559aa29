"""Claims of papers judged by records: paired differences over seeds or splits; verdicts by data set and setting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..errors import UserError
from ..planning.experiment import settings_of
from ..protocols.statistics import Summary, holm, p_equivalent, p_greater, seeds_needed, summarise, summarise_splits
from ..report.contender import Contender
from ..report.frame import Results
from ..report.seeds import SeedGroup, SeedStatistics, defined_values, seed_groups, seeds_text
from ..report.splits import BySplit, groups_by_split, test_over_train
from ..site import Site
from ..store.folder import Store
from .claims import DEFAULT, Claim, Ledger, Side, has_released_form, region
from .items import Reads
from .run import BASE, method_of
from .tables import BySeed, read

ALPHA = 0.05
"""Largest chance of any wrong "holds" on a data set and setting, and of any wrong "reversed"."""

FORMS = ("corrected", "released")
"""Forms of the methods in which claims are judged."""

MOST = 10_000
"""Largest number of seeds that is said to be needed."""

Outcome = Literal["holds", "negligible", "reversed", "undecided", "no records"]

Setting = Contender
"""What the sides of a claim share: a contender without its method, base, form and the settings that distinguish it."""


@dataclass(frozen=True)
class Comparison:
    """Difference of the two methods of a claim, A minus one B, over paired seeds or class splits."""

    rival: str  # name of B
    difference: Summary | None  # None without a common seed
    test_over_train: float = 0.0  # classes, of differences over class splits; 0 of those over seeds
    left_out: str = ""  # seeds or splits that only one of the two has
    missing: tuple[str, ...] = ()  # what there is none of, such as records of a method
    p_holds: float = float("nan")  # of the claim for this B; nan with fewer than two seeds
    p_reversed: float = float("nan")  # of the opposite

    @property
    def unit(self) -> str:
        """What the values are paired over."""
        return "split" if self.test_over_train else "seed"


@dataclass(frozen=True)
class Finding:
    """What the records of one data set and setting say about a claim, in one form of the methods."""

    claim: Claim
    setting: Setting | None  # None if nothing of the claim has records
    fidelity: str  # the form that was asked for: corrected or released
    contenders: tuple[Contender, ...]  # those that have records, A and every B
    comparisons: tuple[Comparison, ...]  # A with each B
    p_holds: float = float("nan")  # adjusted by Holm's method, like the next
    p_reversed: float = float("nan")
    outcome: Outcome = "no records"
    more_seeds: int = 0  # still needed if it is undecided; 0 if not known
    released: Finding | None = None  # of a corrected one: that of public codes, if one of them differs

    @property
    def decisive(self) -> Comparison:
        """The comparison that decides: a negligible one, the strongest against the claim, or the weakest for it."""
        known = [each for each in self.comparisons if each.p_holds == each.p_holds] or self.comparisons
        if self.outcome == "negligible":
            known = [each for each in known if self._is_negligible(each)]
        if self.outcome == "reversed":
            return min(known, key=lambda each: each.p_reversed)
        return max(known, key=lambda each: each.p_holds)

    @property
    def region(self) -> float:
        """Size up to which a difference is negligible."""
        return region(self.claim, self.setting.dataset if self.setting else "")

    def _is_negligible(self, each: Comparison) -> bool:
        """True if the whole interval of a lead is inside the region, which says nothing against a claim of equality."""
        if each.difference is None or self.claim.direction == "equal":
            return False
        return -self.region < each.difference.ci_low and each.difference.ci_high < self.region

    @property
    def lacks_size(self) -> bool:
        """True if the lead over some B is negligible."""
        return any(map(self._is_negligible, self.comparisons))

    @property
    def reason(self) -> str:
        """Remark on the outcome: what is missing, seeds still needed, what is shown nevertheless; may be empty."""
        difference = self.decisive.difference
        if self.outcome == "no records":
            missing = dict.fromkeys(what for each in self.comparisons for what in each.missing)
            return f"no {'; no '.join(missing)}" if missing else "no common seed"
        if self.outcome == "undecided":
            if self.decisive.test_over_train:
                return ""
            return _seeds_still(self.more_seeds) if difference and difference.n > 1 else "one seed"
        if self.outcome == "negligible":
            return "direction shown" if self.p_holds <= ALPHA else ""
        return "negligible" if self.outcome == "reversed" and self._is_negligible(self.decisive) else ""

    @property
    def test(self) -> tuple[str, tuple[Contender, ...]]:
        """What is tested: a claim is one test in both forms of its methods if their records are the same."""
        return self.claim.id, self.contenders

    @property
    def is_testable(self) -> bool:
        """True if every comparison has a p-value."""
        return all(each.p_holds == each.p_holds for each in self.comparisons)

    @property
    def decides(self) -> bool:
        """True if there are records of all sides."""
        return self.outcome != "no records"

    @property
    def text(self) -> str:
        """The outcome with the remark on it."""
        if not self.decides:
            return self.reason
        return f"{self.outcome} ({self.reason})" if self.reason else self.outcome

    @property
    def flips(self) -> bool:
        """True if the verdict is the opposite with the form of the public codes."""
        return self.released is not None and {self.outcome, self.released.outcome} == {"holds", "reversed"}

    @property
    def papers_data(self) -> str:
        """``yes`` if the data set is one of the paper's, ``part`` if it is a part of one, else ``no``."""
        if self.setting is None or self.setting.dataset not in self.claim.datasets:
            return "no"
        return "part" if self.setting.pinned.partial else "yes"


def _seeds_still(number: int) -> str:
    if not number:
        return "no difference at any seed"
    if number >= MOST:
        return f"more than {MOST} more seeds"
    return f"{number} more seed{'s' if number > 1 else ''}"


def judge(ledger: Ledger, results: Results, site: Site, stores: Sequence[Store] = ()) -> list[Finding]:
    """Judge every claim by records, on each data set and setting, with the released form next to the corrected one."""
    every = findings(ledger, results, site, stores)
    public = {(each.claim.id, each.setting): each for each in every if each.fidelity != "corrected"}
    # Without records of the same setting, what is missing on the data set, or everywhere.
    on_data = {(name, setting.dataset if setting else None): each for (name, setting), each in public.items()}
    own = {(each.claim.id, each.setting) for each in every if each.fidelity == "corrected"}
    alone = {key: each for key, each in public.items() if each.decides and key not in own}
    found = [replace(_elsewhere(each, "corrected"), released=each) for each in alone.values()]
    # That there are no records is then said of a setting.
    covered = {(name, place) for name, setting in alone if setting for place in (setting.dataset, None)}
    for each in every:
        name, dataset = each.claim.id, each.setting.dataset if each.setting else None
        if each.fidelity != "corrected" or (not each.decides and (name, dataset) in covered):
            continue
        if has_released_form(each.claim, site):
            released = public.get((name, each.setting)) or on_data.get((name, dataset)) or on_data.get((name, None))
            if released is None or (released.setting != each.setting and released.decides):
                released = _elsewhere(each, FORMS[1])
            each = replace(each, released=released)
        found.append(each)
    order = {claim.id: number for number, claim in enumerate(ledger.claim)}
    return sorted(found, key=lambda each: order[each.claim.id])


def _elsewhere(finding: Finding, form: str) -> Finding:
    """Finding without records, of the other form of the methods at the same setting."""
    lacking = tuple(Comparison(one.rival, None, missing=("records at this setting",)) for one in finding.comparisons)
    return Finding(finding.claim, finding.setting, form, (), lacking)


def findings(ledger: Ledger, results: Results, site: Site, stores: Sequence[Store] = ()) -> list[Finding]:
    """Judge claims by records, on each data set and setting that has records of all sides.

    If all sides were tested on two common class splits or more, the unit is the split, with the mean over its seeds,
    and t-tests and intervals are those of Nadeau and Bengio (2003); the training records that the number of training
    classes is read from are in the ``stores``. Else the unit is the seed, on the data set's own split.

    By paired one-sided t-tests over seeds, a claim that A is better is reversed if A's mean lead over some B is below
    0. Else it is negligible, whether or not its direction is shown, if the whole interval of a lead is inside the
    :func:`~bench.papers.claims.region`. Else it holds if the lead over every B is above 0. A claim that A and B are
    equal holds if every difference is inside the metric's region, and is reversed if some is outside of it.

    P-values are adjusted by Holm's method over all claims on a data set and setting, those of both forms of the methods
    taken together, so that on each the chance of any wrong "holds" is at most 5 %, and so is that of any wrong
    "reversed". The intervals, and so "negligible", are at 95 % for each claim alone.

    Returns:
        Findings in the corrected form of the methods, then those in the form of public codes, each in the order of the
        file. A claim without records of all sides on a data set has one finding there that says what is missing.
    """
    metrics = {claim.metric for claim in ledger.claim}
    groups = seed_groups(results.merged) if not results.frame.empty else []
    # A contender without any of the metrics stays, so that it is known to have been tested.
    groups = [replace(group, rows=group.rows[group.rows["metric"].isin(metrics)]) for group in groups]
    by_split = groups_by_split(results)
    ratios = {each: test_over_train(splits, results, *stores) for each, splits in by_split.items()}
    over = {each: (by_split[each], ratio) for each, ratio in ratios.items() if ratio == ratio}
    every = (_Evidence(groups, over, site, fidelity) for fidelity in FORMS)
    return _judged([finding for evidence in every for claim in ledger.claim for finding in evidence.of(claim)])


class _Evidence:
    """Records of contenders in a form of the methods, as the sides of claims find them."""

    def __init__(
        self,
        groups: Sequence[SeedGroup],
        over: Mapping[Contender, tuple[BySplit, float]],
        site: Site,
        fidelity: str,
    ) -> None:
        self.groups, self.over, self.site, self.fidelity = groups, over, site, fidelity
        self.read: dict[tuple[Contender, Reads, bool], BySeed] = {}
        self.bases = {name: _recipes_base(site, name) for name in {group.contender.dataset for group in groups}}

    def of(self, claim: Claim) -> Iterator[Finding]:
        """Findings on each data set, of a claim that has records of all sides there, or that lacks least."""
        by_setting: dict[Setting, dict[Side, SeedGroup]] = {}
        for side in claim.sides:
            for group in self.groups:
                setting = self._setting(group.contender, side)
                if setting is not None:
                    by_setting.setdefault(setting, {})[side] = group
        for dataset in sorted({setting.dataset for setting in by_setting}):
            here = sorted(setting for setting in by_setting if setting.dataset == dataset)
            judged = [self._finding(claim, setting, by_setting[setting]) for setting in here]
            whole = [each for each in judged if not any(one.missing for one in each.comparisons)]
            yield from whole or [min(judged, key=lambda each: sum(bool(one.missing) for one in each.comparisons))]
        if not by_setting:
            yield self._finding(claim, None, {})

    def _setting(self, contender: Contender, side: Side) -> Setting | None:
        """Setting that a contender shares with the other sides, if it is the one that a side means; else None."""
        base = self.bases[contender.dataset]
        method = base if side.method == BASE else side.method
        if contender.method != method or contender.base not in ("", side.base or base):
            return None
        if contender.fidelity != side.form(method, self.fidelity, contender.protocol, self.site):
            return None
        pinned, wanted = contender.pinned, settings_of(side.set)
        own = {key for key, value in pinned.values.items() if key in wanted and _is_same(str(value), wanted[key])}
        if len(own) < len(wanted):
            return None
        return contender._replace(method="", base="", fidelity="", pinned=pinned.without(own))

    def _finding(self, claim: Claim, setting: Setting | None, groups: dict[Side, SeedGroup]) -> Finding:
        values = {side: self._values(claim, side, groups.get(side)) for side in claim.sides}
        on_splits = {side: self._values(claim, side, groups.get(side), over_splits=True) for side in claim.sides}
        ratio = 0.0
        if all(len(on_splits[claim.a].keys() & on_splits[side].keys()) > 1 for side in claim.b):
            values, ratio = on_splits, self.over[groups[claim.a].contender][1]
        lacks = {side: (self._lack(claim, side, side in groups),) for side in claim.sides if not values[side]}
        comparisons = (
            _compared(claim, side, values[claim.a], values[side], ratio, lacks.get(claim.a, ()) + lacks.get(side, ()))
            for side in claim.b
        )
        contenders = tuple(groups[side].contender for side in claim.sides if side in groups)
        return Finding(claim, setting, self.fidelity, contenders, tuple(comparisons))

    def _values(self, claim: Claim, side: Side, group: SeedGroup | None, *, over_splits: bool = False) -> BySeed:
        """Values of a side by seed, or means over seeds by class split; empty if nothing was measured."""
        if group is None:
            return {}
        reads = Reads(
            metric=claim.metric,
            split=claim.split,
            variant=claim.variant,
            scorer=side.scorer,
            confidence=side.confidence if claim.declared.of == "confidence" else "",
            fraction=claim.fraction,
        )
        key = group.contender, reads, over_splits
        if key not in self.read:
            splits, _ = self.over.get(group.contender, ({}, 0)) if over_splits else ({}, 0)
            means = {number: SeedStatistics.of(read(own, reads)).mean for number, own in splits.items()}
            self.read[key] = defined_values(means if over_splits else read(group, reads))
        return self.read[key]

    def _lack(self, claim: Claim, side: Side, tested: bool) -> str:
        """Text for what a side without values lacks, to follow the word "no"."""
        named = side
        if not side.fidelity and side.method != BASE and self.fidelity != "corrected":
            form = side.form(side.method, self.fidelity, claim.protocol, self.site)
            named = side.model_copy(update={"fidelity": "" if form == "corrected" else form})
        if tested:
            return f"{claim.metric} of {named.label(claim.declared)}"
        return f"records of {named.model_copy(update={'scorer': DEFAULT, 'confidence': DEFAULT}).label(claim.declared)}"


def _recipes_base(site: Site, dataset: str) -> str:
    """Base of two-stage methods by the recipe of a data set; empty for a data set that is not known here."""
    try:
        return method_of(BASE, dataset, site)
    except UserError:
        return ""


def _is_same(value: str, wanted: str) -> bool:
    """Check if the value of a record is the one that a claim names; ``1`` and ``1.0`` are one number."""
    try:
        return float(value) == float(wanted)
    except ValueError:
        return value.strip().lower() == wanted.lower()


def _compared(
    claim: Claim, side: Side, first: BySeed, other: BySeed, test_over_train: float, missing: tuple[str, ...]
) -> Comparison:
    label, common = side.label(claim.declared), sorted(set(first) & set(other))
    found = Comparison(label, None, test_over_train, missing=missing)
    if missing or not common:
        return found
    alone = {claim.a.label(claim.declared): set(first) - set(other), label: set(other) - set(first)}
    left_out = "; ".join(f"{name} alone: {seeds_text(seeds, found.unit)}" for name, seeds in alone.items() if seeds)
    differences = [first[seed] - other[seed] for seed in common]
    difference = summarise_splits(differences, test_over_train) if test_over_train else summarise(differences)
    found = replace(found, difference=difference, left_out=left_out)
    if len(common) < 2:
        return found
    lead, inside = claim.sign * np.array(differences), claim.declared.equivalence
    if claim.direction == "equal":
        holds = p_equivalent(lead, inside, test_over_train)
        outside = (p_greater(each, inside, test_over_train) for each in (lead, -lead))
        opposite = np.minimum(1.0, 2 * np.minimum(*outside))
    else:
        holds, opposite = (p_greater(each, 0.0, test_over_train) for each in (lead, -lead))
    return replace(found, p_holds=float(holds), p_reversed=float(opposite))


def _judged(found: Sequence[Finding]) -> list[Finding]:
    """Findings with adjusted p-values, outcomes and the seeds that they still need."""
    judged = {}
    for setting in dict.fromkeys(finding.setting for finding in found):
        tests = {each.test: each.comparisons for each in found if each.setting == setting and each.is_testable}
        holds = holm(np.array([max(each.p_holds for each in test) for test in tests.values()]))
        # It is reversed by the smallest of its p-values (Bonferroni).
        least = (len(test) * min(each.p_reversed for each in test) for test in tests.values())
        opposite = holm(np.minimum(1.0, np.array([*least])))
        judged[setting] = {key: (float(a), float(b)) for key, a, b in zip(tests, holds, opposite)}
    decided = [_decided(each, judged[each.setting].get(each.test)) for each in found]
    waiting = {(each.setting, each.test) for each in decided if each.outcome == "undecided" and each.is_testable}
    among = Counter(setting for setting, _ in waiting)
    return [replace(each, more_seeds=_more_seeds(each, among[each.setting])) for each in decided]


def _decided(finding: Finding, adjusted: tuple[float, float] | None) -> Finding:
    """The finding with its adjusted p-values, which one with too few seeds has not, and its outcome."""
    if any(each.difference is None for each in finding.comparisons):
        return finding
    if adjusted is None:
        return replace(finding, outcome="undecided")
    holds, opposite = adjusted
    outcome: Outcome = "holds" if holds <= ALPHA else "undecided"
    if opposite <= ALPHA:
        outcome = "reversed"
    elif finding.lacks_size:
        outcome = "negligible"
    return replace(finding, p_holds=holds, p_reversed=opposite, outcome=outcome)


def _more_seeds(finding: Finding, undecided: int) -> int:
    """Seeds still needed, at the level that Holm's method leaves for each of the undecided claims; 0 if not known."""
    difference, inside = finding.decisive.difference, finding.region
    if finding.outcome != "undecided" or not finding.is_testable or finding.decisive.test_over_train:
        return 0  # the variance over class splits has a part that more of them do not lessen
    assert difference is not None
    size = abs(difference.mean)
    effect = abs(size - inside) if finding.claim.direction == "equal" else max(size, inside)
    if not effect:
        return 0
    # The level of a two-sided interval that leaves ALPHA / undecided on one side.
    needed = seeds_needed(difference.sd, effect, alpha=2 * ALPHA / undecided, most=MOST)
    return needed if needed >= MOST else max(1, needed - difference.n)
