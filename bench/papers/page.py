"""Verdicts on claims as Markdown, CSV and lines on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from ..report import table
from ..report.compare import Comparison
from ..report.render import files_of
from ..site import Site
from ..store.files import write_atomic
from .claims import Claim, Ledger, Source, commands, published_differences
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


def write_verdicts(ledger: Ledger, found: Sequence[Finding], site: Site, out: Path) -> list[Path]:
    """Write verdicts as ``claims.csv`` and ``claims.md``; equal records give equal files."""
    texts = texts_of(ledger, found, site)
    for name, text in texts.items():
        write_atomic(out / name, text.encode())
    return [out / name for name in texts]


def texts_of(ledger: Ledger, found: Sequence[Finding], site: Site) -> dict[str, str]:
    """The files of verdicts by name: the numbers, and a page with a table of each claim and a count."""
    names = labels(found)
    rows = []
    for setting, name in names.items():
        counts = Counter(each.outcome for each in found if each.setting == setting)
        rows.append([name, setting_text(setting), *(str(counts[kind]) for kind in OUTCOMES)])
    tables = [
        table.cells_table(
            "Verdicts by data set and setting", table.headings("data", "setting", *OUTCOMES, labels=2), rows
        )
    ]
    for claim, own in table.grouped(found, lambda each: each.claim).items():
        notes = tuple(_notes(claim, ledger.paper[claim.paper], site))
        tables.append(table.table_of(columns(names), _both_forms(own), f"{claim.id}: {claim.says}", notes=notes))
    page = table.Document("claims", "Claims of the papers", ABOUT, tuple(tables), to_frame(found, site))
    texts = files_of(page)
    return {name: texts[name] for name in ("claims.csv", "claims.md")}


def _notes(claim: Claim, paper: Source, site: Site) -> Iterator[str]:
    """What is said of a claim below its table."""
    read = "" if paper.read == "text" else f" (written from {'its abstract' if paper.read == 'abstract' else 'memory'})"
    where = ", ".join((*claim.datasets, *claim.elsewhere))
    yield f"{paper.title} ({paper.venue}), {claim.place}{read}, on {where}. {claim.note}".strip()
    numbers = ", ".join(f"{dataset} {value:+.3g}" for dataset, value in published_differences(claim).items())
    yield f"{claim.metric} of {claim.a.label(claim.declared)} is {claim.direction}; published: {numbers or UNPUBLISHED}"
    yield f"Records: {' && '.join(commands(claim, site))}"


def _both_forms(found: Iterable[Finding]) -> list[Finding]:
    """Findings, each followed by that on the public codes' form, if there is one with records."""
    return [each for own in found for each in (own, own.released) if each and (each is own or each.decides)]


def columns(names: Mapping[Setting, str]) -> tuple[table.Column[Finding], ...]:
    """Columns of verdicts for readers; the numbers are of the B that decides."""
    return (
        table.label("data", lambda each: names.get(each.setting, table.GAP)),
        table.label("paper's data", papers_data),
        table.label("form", lambda each: each.fidelity),
        table.label("B", lambda each: each.decisive.about["b"]),
        table.label("A - B", difference_text),
        table.label("region", lambda each: f"±{_size_text(each.claim, each.region)}" if each.region else table.GAP),
        table.label("seeds", seeds_of),
        table.label("verdict", verdict_text),
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
    source = setting._replace(protocol="reality_check", preset="strict").tuning
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
    of_dataset = table.grouped(settings, lambda setting: setting.dataset)
    return {
        setting: dataset if place == 1 else f"{dataset} #{place}"
        for dataset, own in sorted(of_dataset.items())
        for place, setting in enumerate(own, 1)
    }


def difference_text(each: Finding) -> str:
    """Mean difference from the B that decides with its 95 % t-interval, in points of percent if it is a share."""
    mean, _, low, high = _difference(each.decisive).values()
    return table.interval(*(_size_text(each.claim, end, "+") for end in (mean, low, high)))


def _size_text(claim: Claim, value: float, sign: str = "") -> str:
    return table.percent(value, 2, sign) if claim.declared.unit == "share" else table.number(value, 3, sign)


def seeds_of(each: Finding) -> str:
    """Number of paired seeds or splits, with those that were left out."""
    row = each.decisive
    text = f"{row.n} splits" if row.unit == "split" else str(row.n)
    return f"{text} ({row.about['left_out']})" if row.about["left_out"] else text


def verdict_text(each: Finding) -> str:
    """The outcome with the remark on it; without records, the remark."""
    if not each.decides:
        return each.reason
    return f"{each.outcome} ({each.reason})" if each.reason else each.outcome


def verdict_lines(found: Sequence[Finding], site: Site) -> Iterator[str]:
    """Lines for the terminal: the verdicts that records give, and how to make those of a claim without any."""
    names = labels(found)
    judged = table.grouped((each for each in _both_forms(found) if each.decisive.n), lambda each: each.claim)
    for claim, own in judged.items():
        yield claim.id
        for each in own:
            difference = f"{difference_text(each)} ({each.decisive.about['b']})"
            yield f"  {names[each.setting]:<11} {each.fidelity:<9}  {difference:<36}  {verdict_text(each)}"
    shown = {each.setting for own in judged.values() for each in own}
    yield from (f"{name}: {setting_text(setting)}" for setting, name in names.items() if setting in shown)
    others = [each for each in found if each.claim not in judged]
    if others:
        # Begun with: some of its methods have records.
        begun = next((each for each in others if each.setting.dataset), others[0])
        count = len({each.claim for each in others})
        yield f"{count} claim{'s' * (count > 1)} cannot be judged by these records; claims.md has the commands of each"
        yield f"{begun.claim.id}: {begun.reason}"
        yield from (f"    {line}" for line in commands(begun.claim, site))
