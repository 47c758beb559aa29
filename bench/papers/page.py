"""Verdicts on claims as Markdown, CSV and lines on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from ..errors import printable
from ..protocols.metrics import title_of
from ..report.compare import Comparison
from ..report.render import files_of, markdown_text
from ..report.table import (
    GAP,
    Cell,
    Column,
    Document,
    cells_table,
    grouped,
    headings,
    interval,
    label,
    number,
    percent,
    table_of,
)
from ..site import Site
from ..store.files import write_atomic
from .claims import Claim, Ledger, commands, every_command, published_differences
from .items import UNPUBLISHED
from .judge import OUTCOMES, Finding, Setting, p_values

ABOUT = (
    "A claim that A is better is reversed if A's mean lead over some B is shown to be below 0, by paired one-sided"
    " t-tests over seeds. Else it is negligible if the whole interval of its lead over some B is inside the region."
    " Else it holds if the lead over every B is shown to be above 0. The region is the metric's region of equivalence,"
    " or half of the published effect if that is smaller: that on the same data set, or else the smallest one of the"
    " paper in the direction of the claim. That A and B are equal holds if every difference is shown to be inside the"
    " metric's region, and is reversed if one is shown to be outside. Holm's method adjusts p-values over all claims on"
    ' a data set and setting, in both forms of the methods: on each, the chance of any wrong "holds" is at most 5 %,'
    ' and so is that of any wrong "reversed". An undecided claim has the number of further seeds with which a true'
    " difference as large as the one seen, but at least of the region, is found in 80 % of cases. Intervals are 95 %"
    " t-intervals, not adjusted, in points of percent for shares, of the B that decides. Published differences are in"
    " the unit of the paper. If all sides were tested on several class splits, the unit is the split, with the tests"
    " and intervals of Nadeau and Bengio: such verdicts are about new classes, those over seeds about new trainings"
    " alone."
)
"""Legend of the tables."""

NOTES = {
    read: f"These claims were written from {where} of the paper; its text was not at hand."
    for read, where in (("abstract", "the abstract"), ("memory", "memory"))
}
"""Note on a paper by what its claims were written from."""


def write_verdicts(ledger: Ledger, found: Sequence[Finding], site: Site, out: Path) -> list[Path]:
    """Write verdicts as ``claims.csv`` and ``claims.md``; equal records give equal files."""
    texts = texts_of(ledger, found, site)
    for name, text in texts.items():
        write_atomic(out / name, text.encode())
    return [out / name for name in texts]


def texts_of(ledger: Ledger, found: Sequence[Finding], site: Site) -> dict[str, str]:
    """The files of verdicts by name: a page with a count, a table per paper and the commands of every claim; CSV."""
    names = labels(found)
    rows = []
    for setting, name in names.items():
        own = [each for each in found if each.setting == setting]
        counts = [sum(each.outcome == kind for each in own) for kind in OUTCOMES]
        rows.append([name, setting_text(setting), *map(str, (*counts, sum(each.flips for each in own)))])
    titles = headings("data", "setting", *OUTCOMES, "flipped by a public code", labels=2)
    tables = [cells_table("Verdicts by data set and setting", titles, rows)]
    firsts = [own[0] for own in grouped(found, lambda each: each.claim).values()]
    for key, paper in ledger.paper.items():
        own = [each for each in found if each.claim.paper == key]
        notes = (NOTES[paper.read],) if paper.read in NOTES else ()
        title = f"{paper.title} ({paper.venue})"
        tables += [table_of(_columns(names, firsts), own, title, notes=notes)] if own else []
    introduction = f"`bench paper claims` writes this page from records.\n\n{ABOUT}"
    page = Document("claims", "Claims of the papers", introduction, tuple(tables), to_frame(found, site))
    texts = files_of(page)
    commanded = _commands([each.claim for each in firsts], site)
    return {"claims.csv": texts["claims.csv"], "claims.md": f"{texts['claims.md']}{commanded}"}


def _columns(names: Mapping[Setting, str], firsts: Sequence[Finding]) -> tuple[Column[Finding], ...]:
    """Columns of a paper's claims; what is said of a claim stands in its first row alone."""

    def once(text: Callable[[Claim], str]) -> Callable[[Finding], str]:
        return lambda each: text(each.claim) if any(each is first for first in firsts) else ""

    return (
        label("claim", once(lambda claim: f"{claim.id}: {claim.says}")),
        label("data", lambda each: names.get(each.setting, GAP)),
        label("paper's data", papers_data),
        label("A - B", difference_text),
        label("region", lambda each: f"±{_size_text(each.claim, each.region)}" if each.region else GAP),
        label("seeds", seeds_of),
        label("verdict", lambda each: Cell(verdict_text(each), bold=each.outcome in ("holds", "reversed"))),
        label("as released", released_text),
        label("published A - B", once(published_text)),
    )


def to_frame(found: Sequence[Finding], site: Site) -> pd.DataFrame:
    """Verdicts as numbers, one row per claim, data set and setting, form of the methods and B.

    Differences are A minus B over paired seeds or class splits (``unit``); p-values named ``holm`` are of the claim,
    adjusted; ``flips`` is True if the released form turns the verdict around.
    """
    pairs = [(each, finding) for each in found for finding in (each, each.released) if finding is not None]
    return pd.DataFrame([_numbers(*pair, row, site) for pair in pairs for row in pair[1].rows])


def _numbers(corrected: Finding, finding: Finding, row: Comparison, site: Site) -> dict[str, object]:
    claim, setting, p = finding.claim, finding.setting, p_values(row)
    return {
        "claim": claim.id,
        **claim.model_dump(include={"paper", "place", "says"}),
        "dataset": setting.dataset,
        "papers_data": papers_data(corrected),
        "partial": setting.pinned.partial,
        "setting": setting_text(setting),
        "fidelity": finding.fidelity,
        **claim.model_dump(include={"metric", "split", "direction"}),
        "a": claim.a.label(claim.declared),
        "b": row.about["b"],
        **_difference(row),
        "unit": row.unit,
        "seeds": row.n,
        "left_out": row.about["left_out"],
        "p_holds": p[0],
        "region": finding.region,
        "p_reversed": p[1],
        "p_holds_holm": finding.p_holds,
        "p_reversed_holm": finding.p_reversed,
        "verdict": finding.outcome,
        "reason": finding.reason,
        "more_seeds": finding.more_seeds,
        "commands": " && ".join(commands(claim, site, finding.fidelity)),
        "flips": corrected.flips,
    }


def _difference(row: Comparison) -> dict[str, float]:
    return {name: value + 0.0 for name, value in row.raw.items()}  # no minus before a zero


def papers_data(each: Finding) -> str:
    """``yes`` if the data set is one of the paper's, ``part`` if it is a part of one, else ``no``."""
    if each.setting.dataset not in each.claim.datasets:
        return "no"
    return "part" if each.setting.pinned.partial else "yes"


def setting_text(setting: Setting) -> str:
    """Protocol, source of the hyper-parameters, network and fixed settings; empty without records."""
    if not setting.dataset:
        return ""
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
    settings = sorted({each.setting for each in found if each.setting.dataset})
    of_dataset = grouped(settings, lambda setting: setting.dataset)
    return {
        setting: dataset if place == 1 else f"{dataset} #{place}"
        for dataset, own in sorted(of_dataset.items())
        for place, setting in enumerate(own, 1)
    }


def difference_text(each: Finding) -> str:
    """Mean difference from the B that decides with its 95 % t-interval, in points of percent if it is a share."""
    row = each.decisive
    if not row.n:
        return GAP
    mean, _, low, high = _difference(row).values()
    text = interval(*(_size_text(each.claim, end, "+") for end in (mean, low, high)))
    return f"{text} ({row.about['b']})" if len(each.claim.b) > 1 else text


def _size_text(claim: Claim, value: float, sign: str = "") -> str:
    return percent(value, 2, sign) if claim.declared.unit == "share" else number(value, 3, sign)


def seeds_of(each: Finding) -> str:
    """Number of paired seeds or splits, with those that were left out."""
    row = each.decisive
    text = f"{row.n} splits" if row.unit == "split" else str(row.n)
    return f"{text} ({row.about['left_out']})" if row.about["left_out"] else text


def verdict_text(each: Finding) -> str:
    """The outcome with the remark on it."""
    if not each.decides:
        return each.reason
    return f"{each.outcome} ({each.reason})" if each.reason else each.outcome


def released_text(each: Finding) -> str:
    """Verdict on the released form of the methods."""
    if each.released is None:
        return GAP
    text = verdict_text(each.released) if each.released.decides else each.released.outcome
    return f"{text}: flipped" if each.flips else text


def published_text(claim: Claim) -> str:
    """Differences that the paper published, by data set; says so if there are none."""
    found = published_differences(claim)
    return ", ".join(f"{dataset} {value:+.3g}" for dataset, value in found.items()) or UNPUBLISHED


def _commands(claims: Sequence[Claim], site: Site) -> str:
    """Section of the page with the commands that make the records of every claim."""
    out = ["## Commands", "", "The first lines of a claim make the records of its table, also as released if"]
    out += ["there is such a form; the line of `DIR` is for the paper's own data."]
    for claim in claims:
        out += ["", f"### {claim.id}", "", markdown_text(_about(claim)), ""]
        out += ["```sh", *every_command(claim, site), "```"]
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
    names, every = labels(found), grouped(found, lambda each: each.claim)
    judged = [(names[each.setting], difference_text(each), each) for each in found if each.decisive.n]
    texts = ([name for name, _, _ in judged], [difference for _, difference, _ in judged])
    widths = [max(map(len, each), default=0) for each in texts]
    for claim, lines in grouped(judged, lambda line: line[2].claim).items():
        yield claim.id
        for name, difference, each in lines:
            remark = f"; as released: {released_text(each)}" if each.released and each.released.decides else ""
            yield f"  {name:<{widths[0]}}  {difference:<{widths[1]}}  {verdict_text(each)}{remark}"
        every.pop(claim)
    shown = {each.setting for *_, each in judged}
    yield from (f"{name}: {setting_text(setting)}" for setting, name in names.items() if setting in shown)
    if every:
        # Begun with: some of its methods have records.
        those = [each for own in every.values() for each in own]
        begun = next((each for each in those if each.setting.dataset), those[0])
        count = f"{len(every)} claim{'' if len(every) == 1 else 's'}"
        yield f"{count} cannot be judged by these records; claims.md has the commands of each"
        yield f"{begun.claim.id}: {begun.reason}"
        yield from (f"    {line}" for line in commands(begun.claim, site))
