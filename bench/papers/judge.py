"""Claims of papers judged by records: a claim is a question, whose comparisons are of method A with each method B."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np

from ..planning.experiment import settings_of
from ..protocols.statistics.paired import holm, p_greater, seeds_needed
from ..report.compare import ALPHA, NAN, Comparison, Question, Reason, Unit, agree, ask, common
from ..report.contender import Contender
from ..report.frame import Results
from ..report.seeds import ComparedColumn, SeedGroup, SeedStatistics, defined_values, seed_groups, seeds_text
from ..report.splits import BySplit, groups_by_split, test_over_train
from ..report.table import grouped
from ..site import Site
from ..store.folder import Store
from ..store.specs import Pinned
from .claims import DEFAULT, FORMS, Claim, Ledger, Side, has_released_form, region
from .items import Reads
from .run import BASE, method_of
from .tables import BySeed, read

MOST = 10_000
"""Largest number of seeds that is said to be needed."""

Outcome = Literal["holds", "negligible", "reversed", "undecided", "no records"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

Setting = Contender
"""What the sides of a claim share: a contender without its method, base, form and the settings that distinguish it."""

NOWHERE = Setting("", "", "", "", "", "", "", 0, Pinned(pooling=""), "", 0, "")
"""Setting of a claim of which nothing has records."""


@dataclass(frozen=True)
class Finding:
    """What the records of one data set and setting say about a claim, in one form of the methods.

    ``rows`` compare A with each B. P-values, of the claim and of its opposite, are adjusted by Holm's method; with
    fewer than two seeds they are nan, that of the claim if it is so for some B. ``more_seeds`` are still needed if it
    is undecided; 0 if that is not known. ``released`` is the finding on public codes beside that on the corrected form,
    if one of them differs.
    """

    claim: Claim
    setting: Setting
    fidelity: str
    rows: tuple[Comparison, ...]
    p_holds: float = NAN
    p_reversed: float = NAN
    outcome: Outcome = "no records"
    more_seeds: int = 0
    released: Finding | None = None

    @property
    def decisive(self) -> Comparison:
        """The comparison that decides: a negligible or contradictory one, the strongest against, or the weakest for."""
        known = [row for row in self.rows if row.p == row.p] or self.rows
        if self.outcome == "negligible":
            known = [row for row in known if self.is_negligible(row)]
        if self.outcome == "undecided":
            known = [row for row in known if row.reason is Reason.SIGNS] or known
        if self.outcome == "reversed":
            return min(known, key=lambda row: p_values(row)[1])
        return max(known, key=lambda row: p_values(row)[0])

    @property
    def region(self) -> float:
        """Size up to which a difference is negligible."""
        return region(self.claim, self.setting.dataset)

    def is_negligible(self, row: Comparison) -> bool:
        """True if the whole interval of a lead is inside the region, which says nothing against a claim of equality."""
        return self.claim.direction != "equal" and -self.region < row.low and row.high < self.region

    @property
    def reason(self) -> str:
        """Remark on the outcome: what is missing, seeds still needed, what is shown nevertheless; may be empty."""
        row = self.decisive
        if self.outcome == "no records":
            about: list[Mapping[str, Any]] = [each.about for each in self.rows]
            missing = dict.fromkeys(text for each in about for text in each["missing"])
            return f"no {'; no '.join(missing)}" if missing else "no common seed"
        if self.outcome == "undecided" and row.reason is Reason.SIGNS:
            return f"depends on tuning: {row.why}" if row.outcome == "depends on tuning" else row.why
        if self.outcome == "undecided":
            single = next((each for each in self.rows if each.reason is Reason.ONE_UNIT), None)
            return single.why if single else _seeds_still(self.more_seeds) if row.unit == "seed" else row.why
        if self.outcome == "negligible":
            return "direction shown" if self.p_holds <= ALPHA and not row.reason else ""
        return "negligible" if self.outcome == "reversed" and self.is_negligible(row) else ""

    @property
    def test(self) -> tuple[str, tuple[Contender | None, ...]]:
        """What is tested: a claim is one test in both forms of its methods if their records are the same."""
        return self.claim.id, (self.rows[0].contender, *(row.against for row in self.rows))

    @property
    def is_testable(self) -> bool:
        """True if every comparison has a p-value."""
        return all(row.p == row.p for row in self.rows)

    @property
    def decides(self) -> bool:
        """True if there are records of all sides."""
        return self.outcome != "no records"

    @property
    def flips(self) -> bool:
        """True if the verdict is the opposite with the form of the public codes."""
        return self.released is not None and {self.outcome, self.released.outcome} == {"holds", "reversed"}


def p_values(row: Comparison) -> tuple[float, float]:
    """One-sided p-values of a claim about A and this B, and of its opposite; nan with fewer than two units."""
    claim, ahead = row.about["claim"], row.raw["difference_mean"]
    assert isinstance(claim, Claim)
    if row.p == row.p and claim.direction == "equal":
        larger = np.copysign(1.0, ahead) * np.array([row.values[at] - row.others[at] for at in common(row)])
        outside = p_greater(larger, claim.declared.equivalence, row.test_over_train)
        return row.p_equivalence, min(1.0, 2 * float(outside))
    sides = row.p / 2, 1 - row.p / 2
    return sides if claim.sign * ahead > 0 else sides[::-1]


def _seeds_still(number: int) -> str:
    if not number:
        return "no difference at any seed"
    if number >= MOST:
        return f"more than {MOST} more seeds"
    return f"{number} more seed{'s' if number > 1 else ''}"


def judge(ledger: Ledger, results: Results, site: Site, stores: Sequence[Store] = ()) -> list[Finding]:
    """Judge every claim by records, on each data set and setting, with the released form next to the corrected one."""
    every = grouped(findings(ledger, results, site, stores), lambda each: (each.claim, each.fidelity))
    both = ((every[claim, FORMS[0]], every[claim, FORMS[1]]) for claim in ledger.claim)
    return [each for corrected, public in both for each in _beside(corrected, public, site)]


def _beside(corrected: Sequence[Finding], public: Sequence[Finding], site: Site) -> Iterator[Finding]:
    """Findings on a claim in the corrected form, with those of public codes; what only these have records of first."""
    settings = {each.setting for each in corrected}
    alone = [each for each in public if each.decides and each.setting not in settings]
    yield from (replace(_elsewhere(each, FORMS[0]), released=each) for each in alone)
    # That there are no records is then said of a setting.
    covered = {place for each in alone for place in (each.setting.dataset, "")}
    for each in corrected:
        if not each.decides and each.setting.dataset in covered:
            continue
        if has_released_form(each.claim, site):
            at = {place: other for other in public for place in (other.setting.dataset, other.setting)}
            # Without records of the same setting, what is missing on the data set, or everywhere.
            places = (each.setting, each.setting.dataset, "")
            released = next((at[place] for place in places if place in at), None)
            if released is None or (released.setting != each.setting and released.decides):
                released = _elsewhere(each, FORMS[1])
            each = replace(each, released=released)
        yield each


def _elsewhere(finding: Finding, form: str) -> Finding:
    """Finding without records, of the other form of the methods at the same setting."""
    missing = {"missing": ("records at this setting",), "left_out": ""}
    rows = (
        Comparison(
            question="claim", contender=NOWHERE, column=row.column, values={}, others={}, about={**row.about, **missing}
        )
        for row in finding.rows
    )
    return Finding(finding.claim, finding.setting, form, tuple(rows))


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
    groups = seed_groups(results.measured)
    by_split = groups_by_split(results)
    ratios = {each: test_over_train(splits, results, *stores) for each, splits in by_split.items()}
    over = {each: (by_split[each], ratio) for each, ratio in ratios.items() if ratio == ratio}

    def pairs(groups: Sequence[SeedGroup]) -> Iterator[Comparison]:
        records = _Records({group.contender: group for group in groups}, over, site)
        return (row for form in FORMS for claim in ledger.claim for row in records.pairs(claim, form))

    every = grouped(ask(Question("claim", pairs, _finding_of), groups), _finding_of).items()
    return _judged([Finding(claim, setting, form, tuple(own)) for (claim, setting, form), own in every])


def _finding_of(row: Comparison) -> tuple[Any, ...]:
    return row.about["claim"], row.about["setting"], row.about["fidelity"]


class _Records:
    """Records of contenders, as the sides of claims find them."""

    def __init__(
        self, groups: Mapping[Contender, SeedGroup], over: Mapping[Contender, tuple[BySplit, float]], site: Site
    ) -> None:
        self.groups, self.over, self.site = groups, over, site
        # That of a data set which is not known here is empty.
        known = {contender.dataset for contender in groups} & set(site.datasets.names)
        self.bases = {name: method_of(BASE, name, site) for name in known}
        self.values = cache(self._values)

    def pairs(self, claim: Claim, form: str) -> Iterator[Comparison]:
        """Comparisons on each data set, of a claim that has records of all sides there, or that lacks least."""
        by_setting: dict[Setting, dict[Side, Contender]] = {}
        for side in claim.sides:
            for contender in self.groups:
                setting = self._setting(contender, side, form)
                if setting is not None:
                    by_setting.setdefault(setting, {})[side] = contender
        every = sorted(by_setting, key=lambda setting: (setting.dataset, setting))
        for here in grouped(every, lambda setting: setting.dataset).values():
            found = [[*self._rows(claim, form, setting, by_setting[setting])] for setting in here]
            lacks = [sum(row.reason is not None for row in rows) for rows in found]
            chosen = [rows for rows, lacking in zip(found, lacks) if not lacking]
            yield from chain(*(chosen or [found[lacks.index(min(lacks))]]))
        if not by_setting:
            yield from self._rows(claim, form, NOWHERE, {})

    def _setting(self, contender: Contender, side: Side, form: str) -> Setting | None:
        """Setting that a contender shares with the other sides, if it is the one that a side means; else None."""
        base = self.bases.get(contender.dataset, "")
        method = base if side.method == BASE else side.method
        if contender.method != method or contender.base not in ("", side.base or base):
            return None
        if contender.fidelity != side.form(method, form, contender.protocol, self.site):
            return None
        pinned, wanted = contender.pinned, settings_of(side.set)
        own = {key for key, value in pinned.values.items() if key in wanted and _is_same(str(value), wanted[key])}
        if len(own) < len(wanted):
            return None
        return contender._replace(method="", base="", fidelity="", pinned=pinned.without(own))

    def _rows(self, claim: Claim, form: str, setting: Setting, sides: Mapping[Side, Contender]) -> Iterator[Comparison]:
        found = {side: self.values(sides.get(side), claim.reads(side)) for side in claim.sides}
        over_splits = all(len(found[claim.a][1].keys() & found[side][1].keys()) > 1 for side in claim.b)
        values = {side: own[over_splits] for side, own in found.items()}
        ratio = self.over[sides[claim.a]][1] if over_splits else 0.0
        unit: Unit = "split" if over_splits else "seed"
        for side in claim.b:
            pair = {each: (each.label(claim.declared), values[each]) for each in (claim.a, side)}
            missing = [self._lack(claim, each, form, each in sides) for each, (_, own) in pair.items() if not own]
            (_, own), (label, others) = pair[claim.a], pair[side]
            alone = {name: at.keys() - (own.keys() & others.keys()) for name, at in pair.values()}
            left_out = "; ".join(f"{name} alone: {seeds_text(at, unit)}" for name, at in alone.items() if at)
            yield Comparison(
                question="claim",
                contender=sides.get(claim.a, NOWHERE),
                against=sides.get(side),
                column=ComparedColumn(claim.metric, split=claim.split),
                values=own,
                others=others,
                unit=unit,
                test_over_train=ratio,
                reason=Reason.NO_RECORDS if missing else None,
                detail="; no ".join(missing),
                about={
                    "claim": claim,
                    "setting": setting,
                    "fidelity": form,
                    "b": label,
                    "missing": missing,
                    "left_out": left_out if own.keys() & others.keys() else "",
                },
            )

    def _values(self, contender: Contender | None, reads: Reads) -> tuple[BySeed, BySeed]:
        """Values of a side by seed, and means over seeds by class split; empty if nothing was measured."""
        if contender is None:
            return {}, {}
        splits, _ = self.over.get(contender, ({}, 0.0))
        means = {number: SeedStatistics.of(read(own, reads)).mean for number, own in splits.items()}
        return defined_values(read(self.groups[contender], reads)), defined_values(means)

    def _lack(self, claim: Claim, side: Side, asked: str, tested: bool) -> str:
        """Text for what a side without values lacks, to follow the word "no"."""
        named = side
        if not side.fidelity and side.method != BASE and asked != "corrected":
            form = side.form(side.method, asked, claim.protocol, self.site)
            named = side.model_copy(update={"fidelity": "" if form == "corrected" else form})
        if tested:
            return f"{claim.metric} of {named.label(claim.declared)}"
        return f"records of {named.model_copy(update={'scorer': DEFAULT, 'confidence': DEFAULT}).label(claim.declared)}"


def _is_same(value: str, wanted: str) -> bool:
    """Check if the value of a record is the one that a claim names; ``1`` and ``1.0`` are one number."""
    try:
        return float(value) == float(wanted)
    except ValueError:
        return value.strip().lower() == wanted.lower()


def _judged(found: Sequence[Finding]) -> list[Finding]:
    """Findings with adjusted p-values, outcomes and the seeds that they still need."""
    adjusted: dict[object, tuple[float, float]] = {}
    for setting, own in grouped(found, lambda each: each.setting).items():
        tests = {each.test: np.array([*map(p_values, each.rows)]) for each in own if any(r.p == r.p for r in each.rows)}
        holds = holm(np.array([p[:, 0].max() for p in tests.values()]))  # nan if one of them is
        # It is reversed by the smallest of its p-values (Bonferroni), of those that there are.
        opposite = holm(np.array([min(1.0, sum(p[:, 1] == p[:, 1]) * np.nanmin(p[:, 1])) for p in tests.values()]))
        adjusted |= {(setting, key): (float(a), float(b)) for key, a, b in zip(tests, holds, opposite)}
    decided = [_decided(each, *adjusted.get((each.setting, each.test), (NAN, NAN))) for each in found]
    waiting = {(each.setting, each.test) for each in decided if each.outcome == "undecided" and each.is_testable}
    among = Counter(setting for setting, _ in waiting)
    return [replace(each, more_seeds=_more_seeds(each, among[each.setting])) for each in decided]


def _decided(finding: Finding, holds: float, opposite: float) -> Finding:
    """The finding with its adjusted p-values, which one with too few seeds has not, and its outcome."""
    if not all(row.n for row in finding.rows):
        return finding
    undecided = any(row.reason is Reason.SIGNS for row in finding.rows)
    for row in finding.rows:
        if row.unit == "replicate" and finding.claim.direction != "equal":
            agree(row)  # on a direction, also if their differences are equivalent to none
    mixed = any(row.reason is Reason.SIGNS for row in finding.rows)
    outcome: Outcome = "holds" if holds <= ALPHA and not mixed else "undecided"
    if undecided:
        outcome = "undecided"
    elif opposite <= ALPHA and not mixed:
        outcome = "reversed"
    elif any(map(finding.is_negligible, finding.rows)) and finding.is_testable:
        outcome = "negligible"
    return replace(finding, p_holds=holds, p_reversed=opposite, outcome=outcome)


def _more_seeds(finding: Finding, undecided: int) -> int:
    """Seeds still needed, at the level that Holm's method leaves for each of the undecided claims; 0 if not known."""
    row, inside = finding.decisive, finding.region
    if finding.outcome != "undecided" or not finding.is_testable or row.unit == "split" or row.reason:
        return 0  # more splits do not lessen all of their variance, nor take more replicates a contradiction back
    size = abs(row.mean)
    effect = abs(size - inside) if finding.claim.direction == "equal" else max(size, inside)
    if not effect:
        return 0
    # The level of a two-sided interval that leaves ALPHA / undecided on one side.
    needed = seeds_needed(row.sd, effect, alpha=2 * ALPHA / undecided, most=MOST)
    return needed if needed >= MOST else max(1, needed - row.n)
