"""Verdicts on claims as Markdown, CSV and a table on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console

from ..errors import printable
from ..protocols.metrics import Metric, title_of
from ..report.escape import csv_text, markdown_text
from ..report.frame import Results
from ..reproduce.table import UNPUBLISHED
from ..site import Site
from ..store.files import write_atomic
from .claims import Claim, Ledger
from .commands import commands, has_released_form, papers_commands, published_differences
from .evidence import FORMS, Comparison, Finding, Setting, findings, flips

NOTHING = "-"

ABOUT = (
    "A claim holds, fails or is undecided on a data set, by paired one-sided t-tests over seeds. That A is better holds"
    " if A's mean lead over every B is above 0, and fails if its lead over some B is below the region of practical"
    " equivalence (half a point for most metrics). P-values are adjusted by Holm's method over all claims on a data set"
    ' and setting, in both forms of the methods: on each, the chance of any wrong "holds" is at most 5 %, and so is'
    ' that of any wrong "fails". An undecided claim has the number of seeds, in addition to those it has, with which'
    " a true difference as large as the one seen, but at least of the region, is found in 80 % of cases. The intervals"
    " are 95 % t-intervals, not adjusted, in points of percent for shares; of several B, the one that decides is shown."
    " Published differences are in the unit of the paper. Verdicts are about new trainings on these test images, not"
    " about other images or classes."
)
"""Legend of the tables."""


@dataclass(frozen=True)
class Verdict:
    """Evidence of one data set and setting for a claim, in the corrected and in the released form.

    Attributes:
        finding: What they say about the corrected form.
        released: What they say about the form of public codes; None if no method of the claim has one.
    """

    finding: Finding
    released: Finding | None

    @property
    def flips(self) -> bool:
        """True if the verdict is the opposite with the form of the public codes."""
        return flips(self.finding, self.released)

    @property
    def papers_data(self) -> str:
        """``yes`` if the data set is one of the paper's, ``part`` if it is a part of one, else ``no``."""
        setting = self.finding.setting
        if setting is None or setting.dataset not in self.finding.claim.datasets:
            return "no"
        return "part" if setting.pinned.partial else "yes"

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """Difference with the B that decides, seeds, verdict, verdict on the released form."""
        each = self.finding.decisive
        rival = f" ({each.rival})" if len(self.finding.claim.b) > 1 and each.difference else ""
        released = NOTHING if self.released is None else _outcome(self.released)
        if self.released is not None and not _decides(self.released):
            released = self.released.outcome
        elif self.flips:
            released = f"{released}: flipped"
        seeds = str(each.difference.n) if each.difference else "0"
        seeds = f"{seeds} ({each.left_out})" if each.left_out else seeds
        return f"{difference_text(self.finding.claim, each)}{rival}", seeds, _outcome(self.finding), released


def labels(verdicts: Sequence[Verdict]) -> dict[Setting, str]:
    """Short names of data sets and settings: the name of the data set, with a number for its second setting and so on.

    Args:
        verdicts: Verdicts on claims.

    Example:
        >>> labels([])
        {}
    """
    found: dict[Setting, str] = {}
    for setting in sorted({each.finding.setting for each in verdicts if each.finding.setting}):
        number = 1 + sum(other.dataset == setting.dataset for other in found)
        found[setting] = setting.dataset if number == 1 else f"{setting.dataset} #{number}"
    return found


def _label(each: Verdict, names: Mapping[Setting, str]) -> str:
    return names[each.finding.setting] if each.finding.setting else NOTHING


def _outcome(finding: Finding) -> str:
    if finding.outcome == "no records":
        return finding.reason
    return f"{finding.outcome} ({finding.reason})" if finding.reason else finding.outcome


def difference_text(claim: Claim, each: Comparison) -> str:
    """Mean difference with its 95 % t-interval, in points of percent if the metric is a share; a dash if none.

    Args:
        claim: The claim.
        each: One of its comparisons.
    """
    if each.difference is None:
        return NOTHING
    ends = (each.difference.mean, each.difference.ci_low, each.difference.ci_high)
    mean, low, high = (_number(end, claim.declared) for end in ends)
    return f"{mean} [{low}, {high}]" if each.difference.n > 1 else mean


def _number(value: float, metric: Metric) -> str:
    return f"{100 * value:+.2f}" if metric.unit == "share" else f"{value:+.3f}"


def judge(ledger: Ledger, results: Results, site: Site) -> list[Verdict]:
    """Judge every claim by records, in the corrected form of the methods and in that of public codes.

    Args:
        ledger: The claims.
        results: Finished tests.
        site: Plug-ins, for methods and data sets.

    Returns:
        Verdicts in the order of the claims, one for each data set and setting with records.
    """
    every = findings(ledger, results, site)
    public = {(each.claim.id, each.setting): each for each in every if each.fidelity != "corrected"}
    # Without records of the same setting, what is missing on the data set, or everywhere.
    on_data = {(name, setting.dataset if setting else None): each for (name, setting), each in public.items()}
    found = []
    for each in every:
        if each.fidelity == "corrected":
            released = None
            if has_released_form(each.claim, site):
                name, dataset = each.claim.id, each.setting.dataset if each.setting else None
                nearest = on_data.get((name, dataset)) or on_data.get((name, None))
                released = public.get((name, each.setting)) or nearest
                if released is None or (released.setting != each.setting and _decides(released)):
                    released = _nothing(each)
            found.append(Verdict(each, released))
    return found


def _decides(finding: Finding) -> bool:
    return finding.outcome != "no records"


def _nothing(finding: Finding) -> Finding:
    """A finding of the released form without any records."""
    comparisons = tuple(Comparison(each.rival, None) for each in finding.comparisons)
    return Finding(finding.claim, finding.setting, FORMS[1], (), comparisons)


def to_frame(verdicts: Sequence[Verdict], site: Site) -> pd.DataFrame:
    """Table of verdicts as numbers, one row per claim, data set and setting, B and form of the methods.

    Args:
        verdicts: Verdicts on claims.
        site: Plug-ins, for methods and data sets.

    Returns:
        Columns ``claim``, ``paper``, ``place``, ``says``, ``dataset``, ``papers_data``, ``partial`` and ``setting``;
        ``fidelity``; ``metric``, ``split``, ``direction``, ``a`` and ``b``; ``difference_mean``, ``difference_sd``,
        ``ci95_low``, ``ci95_high``, ``seeds`` and ``left_out`` (A minus B over paired seeds); ``p_holds`` and
        ``p_fails`` of the comparison; ``p_holds_holm`` and ``p_fails_holm`` (of the claim, adjusted), ``verdict``,
        ``reason`` and ``more_seeds``; ``flips`` (True if the released form turns the verdict around); ``commands``.
    """
    lines = []
    for each in verdicts:
        for finding in filter(None, (each.finding, each.released)):
            for comparison in finding.comparisons:
                lines.append({**_numbers(each, finding, comparison, site), "flips": each.flips})
    return pd.DataFrame(lines)


def _numbers(verdict: Verdict, finding: Finding, each: Comparison, site: Site) -> dict[str, object]:
    claim, setting, difference = finding.claim, finding.setting, each.difference
    return {
        "claim": claim.id,
        "paper": claim.paper,
        "place": claim.place,
        "says": claim.says,
        "dataset": setting.dataset if setting else "",
        "papers_data": verdict.papers_data,
        "partial": setting.pinned.partial if setting else "",
        "setting": setting.text if setting else "",
        "fidelity": finding.fidelity,
        "metric": claim.metric,
        "split": claim.split,
        "direction": claim.direction,
        "a": claim.a.label(claim.declared),
        "b": each.rival,
        "difference_mean": difference.mean if difference else None,
        "difference_sd": difference.sd if difference else None,
        "ci95_low": difference.ci_low if difference else None,
        "ci95_high": difference.ci_high if difference else None,
        "seeds": difference.n if difference else 0,
        "left_out": each.left_out,
        "p_holds": each.p_holds,
        "p_fails": each.p_fails,
        "p_holds_holm": finding.p_holds,
        "p_fails_holm": finding.p_fails,
        "verdict": finding.outcome,
        "reason": finding.reason,
        "more_seeds": finding.more_seeds,
        "commands": " && ".join(commands(claim, site, finding.fidelity)),
    }


def write_verdicts(ledger: Ledger, verdicts: Sequence[Verdict], site: Site, out: Path) -> list[Path]:
    """Write verdicts as ``claims.md`` and ``claims.csv``; equal records give equal files.

    Args:
        ledger: The claims and their papers.
        verdicts: Verdicts on claims.
        site: Plug-ins, for methods and data sets.
        out: Folder for the files.

    Returns:
        Paths of the files.
    """
    texts = {"claims.csv": csv_text(to_frame(verdicts, site)), "claims.md": to_markdown(ledger, verdicts, site)}
    for name, text in texts.items():
        write_atomic(out / name, text.encode())
    return [out / name for name in texts]


def to_markdown(ledger: Ledger, verdicts: Sequence[Verdict], site: Site) -> str:
    """Render verdicts as a Markdown page: a count, a table per paper, and the commands of every claim.

    Args:
        ledger: The claims and their papers.
        verdicts: Verdicts on claims.
        site: Plug-ins, for methods and data sets.
    """
    out = ["# Claims of the papers", "", "`bench claims` writes this page from records.", "", ABOUT, ""]
    names = labels(verdicts)
    out += [*_counts(verdicts, names)]
    for key, paper in ledger.paper.items():
        own = [each for each in verdicts if each.finding.claim.paper == key]
        if own:
            out += [
                "",
                f"## {markdown_text(f'{paper.title} ({paper.venue})')}",
                "",
                *_read(paper.read),
                *_table(own, names),
            ]
    out += ["", "## Commands", "", "The first lines of a claim make the records of its table, also as released if"]
    out += ["there is such a form; the line of `DIR` is for the paper's own data."]
    for claim in dict.fromkeys(each.finding.claim for each in verdicts):
        out += ["", f"### {claim.id}", "", f"{markdown_text(_about(claim))}", "", "```sh", *_lines(claim, site), "```"]
    return "\n".join([*out, ""])


def _read(read: str) -> list[str]:
    if read == "text":
        return []
    where = "the abstract of the paper" if read == "abstract" else "memory of the paper"
    return [f"These claims were written from {where}; its text was not at hand.", ""]


def _counts(verdicts: Sequence[Verdict], names: Mapping[Setting, str]) -> Iterator[str]:
    """Number of verdicts of each kind, by data set and setting."""
    kinds = ("holds", "fails", "undecided", "no records")
    yield f"| data | setting | {' | '.join(kinds)} | flipped by a public code |"
    yield "|---|---" + "|---:" * (len(kinds) + 1) + "|"
    for setting, name in names.items():
        own = [each for each in verdicts if each.finding.setting == setting]
        numbers = [sum(each.finding.outcome == kind for each in own) for kind in kinds]
        texts = map(markdown_text, (name, setting.text))
        yield f"| {' | '.join(texts)} | {' | '.join(map(str, numbers))} | {sum(each.flips for each in own)} |"


def _table(verdicts: Sequence[Verdict], names: Mapping[Setting, str]) -> Iterator[str]:
    yield "| claim | data | paper's data | A - B | seeds | verdict | as released | published A - B |"
    yield "|---|---|---|---|---|---|---|---|"
    before = ""
    for each in verdicts:
        claim = each.finding.claim
        first = "" if claim.id == before else f"[`{claim.id}`](#{claim.id}): {markdown_text(claim.says)}"
        difference, seeds, outcome, released = map(markdown_text, each.texts)
        published = markdown_text(published_text(claim)) if first else ""
        shown = f"**{outcome}**" if each.finding.outcome in ("holds", "fails") else outcome
        data = markdown_text(_label(each, names))
        yield f"| {' | '.join([first, data, each.papers_data, difference, seeds, shown, released, published])} |"
        before = claim.id


def published_text(claim: Claim) -> str:
    """Differences that the paper published, by data set; says so if there are none.

    Args:
        claim: The claim.
    """
    found = published_differences(claim)
    return ", ".join(f"{dataset} {value:+.3g}" for dataset, value in found.items()) or UNPUBLISHED


def _about(claim: Claim) -> str:
    """Place, metric, direction, sides and data of a claim, in one paragraph."""
    metric = title_of(claim.metric)
    rivals = "; ".join(side.label(claim.declared) for side in claim.b)
    where = ", ".join((*claim.datasets, *claim.elsewhere))
    fraction = "" if claim.fraction is None else f", {100 * claim.fraction:g} % removed"
    variants = [name for name in claim.variant if name]
    variant = f", variant {' or '.join(variants)}" if variants else ""
    text = (
        f"{claim.place}. A: {claim.a.label(claim.declared)}. B: {rivals}. {metric} ({claim.metric}, {claim.split}"
        f"{variant}{fraction}) is {claim.direction}. The paper's data: {where}."
    )
    return f"{text} {claim.note}" if claim.note else text


def _lines(claim: Claim, site: Site) -> list[str]:
    released = commands(claim, site, "released") if has_released_form(claim, site) else []
    return [*dict.fromkeys([*commands(claim, site), *released, *papers_commands(claim, site)])]


def print_verdicts(verdicts: Sequence[Verdict], site: Site, console: Console) -> None:
    """Print verdicts on the terminal, a line for each data set, and the commands of claims without any records.

    Args:
        verdicts: Verdicts on claims.
        site: Plug-ins, for methods and data sets.
        console: Where to print.
    """
    names = labels(verdicts)
    data = max(map(len, names.values()), default=0)
    width = max((len(each.texts[0]) for each in verdicts), default=0)
    before = ""
    for each in verdicts:
        claim, (difference, _, outcome, released) = each.finding.claim, each.texts
        if claim.id != before:
            _say(claim.id, console)
        before = claim.id
        remark = f"; as released: {released}" if each.released and _decides(each.released) else ""
        _say(f"  {_label(each, names):<{data}}  {difference:<{width}}  {outcome}{remark}", console)
    for setting, name in names.items():
        _say(f"{name}: {setting.text}", console)
    for claim in dict.fromkeys(each.finding.claim for each in verdicts if each.finding.setting is None):
        for line in commands(claim, site):
            _say(f"{claim.id}: {line}", console)


def _say(line: str, console: Console) -> None:
    console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
