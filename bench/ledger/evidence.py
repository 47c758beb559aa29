"""Evidence of records for claims: paired differences over seeds, and a verdict on each data set and setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from ..errors import UserError
from ..planning.experiment import settings_of
from ..planning.request import resolve_fidelity
from ..protocols.statistics import Summary, holm, p_equivalent, p_greater, paired_difference, seeds_needed
from ..report.contender import Contender
from ..report.frame import Results
from ..report.seeds import SeedGroup, defined_values, seed_groups, seeds_text
from ..reproduce.cells import read
from ..reproduce.items import Reads
from ..reproduce.rows import BASE
from ..site import Site
from ..store.pinned import Pinned
from .claims import DEFAULT, Claim, Ledger, Side

ALPHA = 0.05
"""Largest chance of any wrong "holds" on a data set and setting, and of any wrong "fails"."""

FORMS = ("corrected", "released")
"""Forms of the methods in which claims are judged."""

MOST = 10_000
"""Largest number of seeds that is said to be needed."""

Outcome = Literal["holds", "fails", "undecided", "no records"]


class Setting(NamedTuple):
    """Setting that the sides of a claim share: columns of a :class:`~bench.report.contender.Contender`.

    Attributes:
        dataset: Name of the data set.
        protocol: Name of the protocol.
        preset: Name of the preset, a bundle of the protocol's settings.
        hparams: Source of the hyper-parameters, such as ``tuned`` or ``published``.
        trials: Number of tuning trials; 0 if nothing was tuned.
        pinned: Settings that the user fixed, other than those that distinguish a side.
        backbone: Name of the backbone.
        dim: Embedding size.
        ensemble: Combination of several models; empty for one model.
    """

    dataset: str
    protocol: str
    preset: str
    hparams: str
    trials: int
    pinned: Pinned
    backbone: str
    dim: int
    ensemble: str

    @property
    def text(self) -> str:
        """Protocol, source of the hyper-parameters, network and fixed settings as text."""
        source = f"tuned, {self.trials} trials" if self.hparams == "tuned" else self.hparams
        protocol = self.protocol if self.preset == "strict" else f"{self.protocol}, {self.preset}"
        return "; ".join(
            filter(None, [protocol, source, f"{self.backbone}/{self.dim}", self.ensemble, self.pinned.text])
        )


@dataclass(frozen=True)
class Comparison:
    """Difference of the two methods of a claim, A minus one B, over paired seeds.

    Attributes:
        rival: Name of B.
        difference: Mean difference with its 95 % t-interval; None without a common seed.
        left_out: Seeds that only one of the two has; empty if there are none.
        missing: What there is none of, such as records of a method; empty if both have values.
        p_holds: P-value of the claim for this B: that A's lead is above 0, or a difference inside the region of
            equivalence; nan with fewer than two seeds.
        p_fails: P-value of the opposite: that A's lead is below the region, or a difference outside of it.
    """

    rival: str
    difference: Summary | None
    left_out: str = ""
    missing: tuple[str, ...] = ()
    p_holds: float = float("nan")
    p_fails: float = float("nan")


@dataclass(frozen=True)
class Finding:
    """Evidence of the records of one data set and setting for a claim.

    Attributes:
        claim: The claim.
        setting: Data set and setting; None if nothing of the claim has records.
        fidelity: Form of the methods that was asked for: ``corrected`` or ``released``.
        contenders: Methods at their settings that have records, A and every B.
        comparisons: A with each B.
        p_holds: P-value of the claim, adjusted by Holm's method.
        p_fails: P-value of its opposite, adjusted likewise.
        outcome: Verdict.
        more_seeds: Seeds still needed if it is undecided; 0 if not known.
    """

    claim: Claim
    setting: Setting | None
    fidelity: str
    contenders: tuple[Contender, ...]
    comparisons: tuple[Comparison, ...]
    p_holds: float = float("nan")
    p_fails: float = float("nan")
    outcome: Outcome = "no records"
    more_seeds: int = 0

    @property
    def decisive(self) -> Comparison:
        """The comparison that decides: the strongest evidence if the claim fails, else the one least in its favour."""
        known = [each for each in self.comparisons if each.p_holds == each.p_holds] or self.comparisons
        if self.outcome == "fails":
            return min(known, key=lambda each: each.p_fails)
        return max(known, key=lambda each: each.p_holds)

    @property
    def reason(self) -> str:
        """Remark on the outcome: what is missing, seeds still needed, no practical difference; may be empty."""
        difference = self.decisive.difference
        if self.outcome == "no records":
            missing = dict.fromkeys(what for each in self.comparisons for what in each.missing)
            return f"no {'; no '.join(missing)}" if missing else "no common seed"
        if self.outcome == "undecided":
            return _seeds_still(self.more_seeds) if difference and difference.n > 1 else "one seed"
        if self.outcome == "fails" and self.claim.direction != "equal" and difference:
            lead = _sign(self.claim) * difference.mean
            return "no practical difference" if abs(lead) < self.claim.declared.equivalence else ""
        return ""


def _sign(claim: Claim) -> int:
    return -1 if claim.direction == "lower" else 1


def _seeds_still(number: int) -> str:
    if not number:
        return "no difference at any seed"
    if number >= MOST:
        return f"more than {MOST} more seeds"
    return f"{number} more seed{'s' if number > 1 else ''}"


def findings(ledger: Ledger, results: Results, site: Site) -> list[Finding]:
    """Judge claims by records, on each data set and setting that has records of all sides.

    By paired one-sided t-tests over seeds, a claim that A is better holds if A's mean lead over every B is above 0, and
    fails if its lead over some B is below the metric's region of practical equivalence; the second is looked at first.
    A claim that A and B are equal holds if every difference is inside the region, and fails if some is outside of it.

    P-values are adjusted by Holm's method over all claims on a data set and setting, those of both forms of the methods
    taken together, so that on each the chance of any wrong "holds" is at most 5 %, and so is that of any wrong "fails".

    Args:
        ledger: The claims.
        results: Finished tests.
        site: Plug-ins, for methods and data sets.

    Returns:
        Findings in the corrected form of the methods, then those in the form of public codes (``released``; a method
        without that form is corrected), each in the order of the file: one for each claim and setting. A claim without
        records of all sides on a data set has one finding there that says what is missing.
    """
    metrics = {claim.metric for claim in ledger.claim}
    groups = seed_groups(results.frame.merge(results.roles, on="unit")) if not results.frame.empty else []
    # A contender without any of the metrics stays, so that it is known to have been tested.
    groups = [replace(group, rows=group.rows[group.rows["metric"].isin(metrics)]) for group in groups]
    every = (_Evidence(groups, site, fidelity) for fidelity in FORMS)
    return _judged([finding for evidence in every for claim in ledger.claim for finding in evidence.of(claim)])


class _Evidence:
    """Records of contenders, as the sides of claims find them.

    Args:
        groups: Contenders with their values over seeds.
        site: Plug-ins, for methods and data sets.
        fidelity: Form of the methods that is asked for.
    """

    def __init__(self, groups: Sequence[SeedGroup], site: Site, fidelity: str) -> None:
        self.groups, self.site, self.fidelity = groups, site, fidelity
        self.read: dict[tuple[Contender, Reads], dict[int, float]] = {}
        self.bases = {name: _recipes_base(site, name) for name in {group.contender.dataset for group in groups}}

    def of(self, claim: Claim) -> list[Finding]:
        by_setting: dict[Setting, dict[Side, SeedGroup]] = {}
        for side in claim.sides:
            for group in self.groups:
                setting = self._setting(group.contender, side)
                if setting is not None:
                    by_setting.setdefault(setting, {})[side] = group
        found = []
        for dataset in sorted({setting.dataset for setting in by_setting}):
            here = sorted(setting for setting in by_setting if setting.dataset == dataset)
            judged = [self._finding(claim, setting, by_setting[setting]) for setting in here]
            whole = [each for each in judged if not any(one.missing for one in each.comparisons)]
            # Of half-done settings, the one that lacks least is named.
            found += whole or [min(judged, key=lambda each: sum(bool(one.missing) for one in each.comparisons))]
        return found or [self._finding(claim, None, {})]

    def _setting(self, contender: Contender, side: Side) -> Setting | None:
        """Setting that a contender shares with the other sides, if it is the one that a side means; else None."""
        base = self.bases[contender.dataset]
        method = base if side.method == BASE else side.method
        if contender.method != method or contender.base not in ("", side.base or base):
            return None
        cls = self.site.methods.method(method)
        asked = side.fidelity or self.fidelity
        if contender.fidelity != resolve_fidelity(cls, asked, contender.protocol):
            return None
        pinned, wanted = contender.pinned, settings_of(side.set)
        own = {key for key, value in pinned.values.items() if key in wanted and _is_same(str(value), wanted[key])}
        if len(own) < len(wanted):
            return None
        shared = pinned.without(own)
        return Setting(**{**{key: getattr(contender, key) for key in Setting._fields}, "pinned": shared})

    def _finding(self, claim: Claim, setting: Setting | None, groups: dict[Side, SeedGroup]) -> Finding:
        values = {side: self._values(claim, side, groups.get(side)) for side in claim.sides}
        lacks = {side: (self._lack(claim, side, groups),) for side in claim.sides if not values[side]}
        comparisons = (
            _compared(claim, side, values[claim.a], values[side], lacks.get(claim.a, ()) + lacks.get(side, ()))
            for side in claim.b
        )
        contenders = tuple(groups[side].contender for side in claim.sides if side in groups)
        return Finding(claim, setting, self.fidelity, contenders, tuple(comparisons))

    def _values(self, claim: Claim, side: Side, group: SeedGroup | None) -> dict[int, float]:
        """Values of a side by seed; empty if nothing was measured."""
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
        key = group.contender, reads
        if key not in self.read:
            self.read[key] = defined_values(read(group, reads))
        return self.read[key]

    def _lack(self, claim: Claim, side: Side, groups: Mapping[Side, SeedGroup]) -> str:
        """Text for what a side without values lacks, to follow the word "no"."""
        fidelity = side.fidelity
        if not fidelity and side.method != BASE and self.fidelity != "corrected":
            resolved = resolve_fidelity(self.site.methods.method(side.method), self.fidelity, claim.protocol)
            fidelity = "" if resolved == "corrected" else resolved
        named = side.model_copy(update={"fidelity": fidelity})
        if side in groups:
            return f"{claim.metric} of {named.label(claim.declared)}"
        return f"records of {named.model_copy(update={'scorer': DEFAULT, 'confidence': DEFAULT}).label(claim.declared)}"


def _recipes_base(site: Site, dataset: str) -> str:
    """Base of two-stage methods by the recipe of a data set; empty for a data set that is not known here."""
    try:
        return site.recipe(dataset).base
    except UserError:
        return ""


def _is_same(value: str, wanted: str) -> bool:
    """Check if the value of a record is the one that a claim names; ``1`` and ``1.0`` are one number."""
    try:
        return float(value) == float(wanted)
    except ValueError:
        return value.strip().lower() == wanted.lower()


def _compared(
    claim: Claim, side: Side, first: dict[int, float], other: dict[int, float], missing: tuple[str, ...]
) -> Comparison:
    label, common = side.label(claim.declared), sorted(set(first) & set(other))
    if missing or not common:
        return Comparison(label, None, missing=missing)
    alone = {claim.a.label(claim.declared): set(first) - set(other), label: set(other) - set(first)}
    left_out = "; ".join(f"{name} alone: {seeds_text(seeds)}" for name, seeds in alone.items() if seeds)
    found = Comparison(label, paired_difference(first, other), left_out)
    if len(common) < 2:
        return found
    lead, region = _sign(claim) * np.array([first[seed] - other[seed] for seed in common]), claim.declared.equivalence
    if claim.direction == "equal":
        holds = p_equivalent(lead, region)
        fails = np.minimum(1.0, 2 * np.minimum(p_greater(lead, region), p_greater(-lead, region)))
    else:
        holds, fails = p_greater(lead), p_greater(-lead, -region)
    return replace(found, p_holds=float(holds), p_fails=float(fails))


def _judged(found: Sequence[Finding]) -> list[Finding]:
    """Findings with adjusted p-values, outcomes and the seeds that they still need."""
    judged = {}
    settings = dict.fromkeys(finding.setting for finding in found)
    for setting in settings:
        # A claim is one test in both forms of its methods if their records are the same.
        tests = {_test(each): each for each in found if each.setting == setting and _testable(each)}
        holds = holm(np.array([max(each.p_holds for each in test.comparisons) for test in tests.values()]))
        fails = holm(np.array([_p_of_any([each.p_fails for each in test.comparisons]) for test in tests.values()]))
        decided = {key: (float(a), float(b)) for key, a, b in zip(tests, holds, fails)}
        undecided = sum(min(pair) > ALPHA for pair in decided.values())
        judged[setting] = decided, undecided
    return [_decided(each, *judged[each.setting]) for each in found]


_Test = tuple[str, tuple[Contender, ...]]


def _test(finding: Finding) -> _Test:
    return finding.claim.id, finding.contenders


def _testable(finding: Finding) -> bool:
    return all(each.p_holds == each.p_holds for each in finding.comparisons)


def _p_of_any(p: list[float]) -> float:
    """P-value of the smallest of some p-values (Bonferroni)."""
    return min(1.0, len(p) * min(p))


def _decided(finding: Finding, adjusted: Mapping[_Test, tuple[float, float]], undecided: int) -> Finding:
    if any(each.difference is None for each in finding.comparisons):
        return finding
    if not _testable(finding):
        return replace(finding, outcome="undecided")
    holds, fails = adjusted[_test(finding)]
    outcome: Outcome = "fails" if fails <= ALPHA else "holds" if holds <= ALPHA else "undecided"
    judged = replace(finding, p_holds=holds, p_fails=fails, outcome=outcome)
    return replace(judged, more_seeds=_more_seeds(judged, undecided)) if outcome == "undecided" else judged


def _more_seeds(finding: Finding, undecided: int) -> int:
    """Seeds still needed, at the level that Holm's method leaves for each of the undecided claims; 0 if not known."""
    difference, region = finding.decisive.difference, finding.claim.declared.equivalence
    assert difference is not None
    lead = _sign(finding.claim) * difference.mean
    if finding.claim.direction == "equal":
        effect = abs(abs(lead) - region)
    else:
        effect = max(lead, region) if lead > 0 else region - lead
    if not effect:
        return 0
    # The level of a two-sided interval that leaves ALPHA / undecided on one side.
    needed = seeds_needed(difference.sd, effect, alpha=2 * ALPHA / undecided, most=MOST)
    return needed if needed >= MOST else max(1, needed - difference.n)


def flips(corrected: Finding, released: Finding | None) -> bool:
    """Check if the released form of the methods turns a verdict around: from holds to fails, or back.

    Args:
        corrected: What records of the corrected form say.
        released: What those of the released form say on the same data; None if there is no such form.
    """
    return released is not None and {corrected.outcome, released.outcome} == {"holds", "fails"}
