"""Verdicts on claims as Markdown, CSV and lines on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from ..errors import printable
from ..protocols.metrics import title_of
from ..report.render import files_of, markdown_text
from ..report.table import GAP, Cell, Document, Table, cells_table, headings, interval, number, percent
from ..site import Site
from ..store.files import write_atomic
from .claims import Claim, Ledger, Source, commands, every_command, published_differences
from .items import UNPUBLISHED
from .judge import Comparison, Finding, Setting

ABOUT = (
    "A claim holds, is negligible, reversed or undecided on a data set. A claim that A is better is reversed if A's"
    " mean lead over some B is shown to be below 0, by paired one-sided t-tests over seeds. Else it is negligible,"
    " whether or not its direction is shown, if the whole interval of its lead over some B is inside the region. Else"
    " it holds if the lead over every B is shown to be above 0. The region is the metric's region of equivalence (half"
    " a point for most metrics; some have none), or half of the published effect if that is smaller: the effect on the"
    " same data set, or else the smallest one of the paper in the direction of the claim. That A and B are equal holds"
    " if every difference is shown to be inside the metric's region, and is reversed if one is shown to be outside."
    " P-values are adjusted by Holm's method over all claims on a data set and setting, in both forms of the methods:"
    ' on each, the chance of any wrong "holds" is at most 5 %, and so is that of any wrong "reversed". An undecided'
    " claim has the number of seeds, in addition to those it has, with which a true difference as large as the one"
    " seen, but at least of the region, is found in 80 % of cases. The intervals are 95 % t-intervals, not adjusted,"
    " in points of percent for shares; of several B, the one that decides is shown. Published differences are in the"
    " unit of the paper. Verdicts over seeds are about new trainings on these test images, not about other images or"
    " classes. If all sides were tested on several class splits, the unit is the split, the mean over its seeds, with"
    " the tests and intervals of Nadeau and Bengio: these verdicts are about new classes, too, and no number of seeds"
    " is given."
)
"""Legend of the tables."""

KINDS = ("holds", "negligible", "reversed", "undecided", "no records")


def write_verdicts(ledger: Ledger, found: Sequence[Finding], site: Site, out: Path) -> list[Path]:
    """Write verdicts as ``claims.csv`` and ``claims.md``; equal records give equal files."""
    texts = texts_of(ledger, found, site)
    for name, text in texts.items():
        write_atomic(out / name, text.encode())
    return [out / name for name in texts]


def texts_of(ledger: Ledger, found: Sequence[Finding], site: Site) -> dict[str, str]:
    """The files of verdicts by name: a page with a count, a table per paper and the commands of every claim; CSV."""
    names = labels(found)
    tables = [_counts(found, names)]
    for key, paper in ledger.paper.items():
        own = [each for each in found if each.claim.paper == key]
        tables += [_table(paper, own, names)] if own else []
    introduction = f"`bench paper claims` writes this page from records.\n\n{ABOUT}"
    page = Document("claims", "Claims of the papers", introduction, tuple(tables), to_frame(found, site))
    texts = files_of(page)
    commanded = _commands([each.claim for each in found], site)
    return {"claims.csv": texts["claims.csv"], "claims.md": f"{texts['claims.md']}{commanded}"}


def to_frame(found: Sequence[Finding], site: Site) -> pd.DataFrame:
    """Verdicts as numbers, one row per claim, data set and setting, form of the methods and B.

    Differences are A minus B over paired seeds or class splits (``unit``); p-values named ``holm`` are of the claim,
    adjusted; ``flips`` is True if the released form turns the verdict around.
    """
    return pd.DataFrame(
        [
            _numbers(each, finding, comparison, site)
            for each in found
            for finding in (each, each.released)
            if finding is not None
            for comparison in finding.comparisons
        ]
    )


def _numbers(corrected: Finding, finding: Finding, each: Comparison, site: Site) -> dict[str, object]:
    claim, setting, difference = finding.claim, finding.setting, each.difference
    return {
        "claim": claim.id,
        "paper": claim.paper,
        "place": claim.place,
        "says": claim.says,
        "dataset": setting.dataset if setting else "",
        "papers_data": corrected.papers_data,
        "partial": setting.pinned.partial if setting else "",
        "setting": setting_text(setting) if setting else "",
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
        "unit": each.unit,
        "seeds": difference.n if difference else 0,
        "left_out": each.left_out,
        "p_holds": each.p_holds,
        "region": finding.region,
        "p_reversed": each.p_reversed,
        "p_holds_holm": finding.p_holds,
        "p_reversed_holm": finding.p_reversed,
        "verdict": finding.outcome,
        "reason": finding.reason,
        "more_seeds": finding.more_seeds,
        "commands": " && ".join(commands(claim, site, finding.fidelity)),
        "flips": corrected.flips,
    }


def setting_text(setting: Setting) -> str:
    """Protocol, source of the hyper-parameters, network and fixed settings."""
    source = f"tuned, {setting.trials} trials" if setting.hparams == "tuned" else setting.hparams
    protocol = setting.protocol if setting.preset == "strict" else f"{setting.protocol}, {setting.preset}"
    network = f"{setting.backbone}/{setting.dim}"
    return "; ".join(filter(None, [protocol, source, network, setting.ensemble, str(setting.pinned)]))


def labels(found: Sequence[Finding]) -> dict[Setting, str]:
    """Short names of data sets and settings: the name of the data set, with a number for its second setting and so on.

    Example:
        >>> labels([])
        {}
    """
    names: dict[Setting, str] = {}
    settings = {each.setting for each in found if each.setting}
    for setting in sorted(settings, key=lambda setting: (setting.dataset, setting)):
        place = 1 + sum(other.dataset == setting.dataset for other in names)
        names[setting] = setting.dataset if place == 1 else f"{setting.dataset} #{place}"
    return names


def _counts(found: Sequence[Finding], names: Mapping[Setting, str]) -> Table:
    """Number of verdicts of each kind, by data set and setting."""
    rows = []
    for setting, name in names.items():
        own = [each for each in found if each.setting == setting]
        counts = [sum(each.outcome == kind for each in own) for kind in KINDS]
        rows.append([name, setting_text(setting), *map(str, (*counts, sum(each.flips for each in own)))])
    columns = headings("data", "setting", *KINDS, "flipped by a public code", labels=2)
    return cells_table("Verdicts by data set and setting", columns, rows)


def _table(paper: Source, found: Sequence[Finding], names: Mapping[Setting, str]) -> Table:
    """Verdicts on the claims of a paper."""
    rows: list[list[Cell | str]] = []
    before = ""
    for each in found:
        claim = each.claim
        first = claim.id != before
        says, published = (f"{claim.id}: {claim.says}", published_text(claim)) if first else ("", "")
        difference, seeds, released = difference_text(each), seeds_of(each), released_text(each)
        outcome = Cell(each.text, bold=each.outcome in ("holds", "reversed"))
        data = (_label(each, names), each.papers_data)
        rows.append([says, *data, difference, region_text(each), seeds, outcome, released, published])
        before = claim.id
    where = {"abstract": "the abstract of the paper", "memory": "memory of the paper"}.get(paper.read)
    note = f"These claims were written from {where}; its text was not at hand."
    titles = ("claim", "data", "paper's data", "A - B", "region", "seeds", "verdict", "as released", "published A - B")
    title = f"{paper.title} ({paper.venue})"
    return cells_table(title, headings(*titles, labels=len(titles)), rows, notes=(note,) if where else ())


def _label(each: Finding, names: Mapping[Setting, str]) -> str:
    return names[each.setting] if each.setting else GAP


def difference_text(each: Finding) -> str:
    """Mean difference from the B that decides with its 95 % t-interval, in points of percent if it is a share."""
    found = each.decisive
    if found.difference is None:
        return GAP
    ends = (found.difference.mean, found.difference.ci_low, found.difference.ci_high)
    texts = (_size_text(each.claim, end, "+") for end in ends)
    return interval(*texts) + (f" ({found.rival})" if len(each.claim.b) > 1 else "")


def region_text(each: Finding) -> str:
    """Size up to which a difference is negligible, in the unit of the difference."""
    return f"±{_size_text(each.claim, each.region)}" if each.region else GAP


def _size_text(claim: Claim, value: float, sign: str = "") -> str:
    return percent(value, 2, sign) if claim.declared.unit == "share" else number(value, 3, sign)


def seeds_of(each: Finding) -> str:
    """Number of paired seeds or splits, with those that were left out."""
    found = each.decisive
    seeds = str(found.difference.n) if found.difference else "0"
    if found.test_over_train:
        seeds += " splits"
    return f"{seeds} ({found.left_out})" if found.left_out else seeds


def released_text(each: Finding) -> str:
    """Verdict on the released form of the methods."""
    if each.released is None:
        return GAP
    if not each.released.decides:
        return each.released.outcome
    return f"{each.released.text}: flipped" if each.flips else each.released.text


def published_text(claim: Claim) -> str:
    """Differences that the paper published, by data set; says so if there are none."""
    found = published_differences(claim)
    return ", ".join(f"{dataset} {value:+.3g}" for dataset, value in found.items()) or UNPUBLISHED


def _commands(claims: Sequence[Claim], site: Site) -> str:
    """Section of the page with the commands that make the records of every claim."""
    out = ["## Commands", "", "The first lines of a claim make the records of its table, also as released if"]
    out += ["there is such a form; the line of `DIR` is for the paper's own data."]
    for claim in dict.fromkeys(claims):
        lines = every_command(claim, site)
        out += ["", f"### {claim.id}", "", markdown_text(_about(claim)), "", "```sh", *lines, "```"]
    return "\n".join([*out, ""])


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


def print_verdicts(found: Sequence[Finding], site: Site, console: Console) -> None:
    """Print verdicts, a line for each data set; claims that the records say nothing about are counted."""
    for line in _lines(found, site):
        console.print(printable(line), highlight=False, markup=False, soft_wrap=True)


def _lines(found: Sequence[Finding], site: Site) -> Iterator[str]:
    judged = [each for each in found if each.decisive.difference is not None]
    names = labels(found)
    data = max((len(_label(each, names)) for each in judged), default=0)
    differences = [difference_text(each) for each in judged]
    width = max(map(len, differences), default=0)
    before = ""
    for each, difference in zip(judged, differences):
        if each.claim.id != before:
            yield each.claim.id
        before = each.claim.id
        remark = f"; as released: {released_text(each)}" if each.released and each.released.decides else ""
        yield f"  {_label(each, names):<{data}}  {difference:<{width}}  {each.text}{remark}"
    shown = {each.setting for each in judged}
    yield from (f"{name}: {setting_text(setting)}" for setting, name in names.items() if setting in shown)
    silent = [*dict.fromkeys(each.claim for each in found)]
    silent = [claim for claim in silent if claim not in {each.claim for each in judged}]
    if silent:
        # Begun with: some of its methods have records.
        those = [each for each in found if each.claim in silent]
        begun = next((each for each in those if each.setting), those[0])
        count = f"{len(silent)} claim{'' if len(silent) == 1 else 's'}"
        yield f"{count} cannot be judged by these records; claims.md has the commands of each"
        yield f"{begun.claim.id}: {begun.reason}"
        yield from (f"    {line}" for line in commands(begun.claim, site))
