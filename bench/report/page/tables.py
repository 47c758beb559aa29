"""Tables of a page: results of the methods on a data set, and the confidence to use with each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from .. import comparison
from ..compare import Comparison
from ..comparison import ComparisonRow
from ..contender import Contender
from ..cost import CostRow
from ..questions import RETRIEVAL
from ..seeds import ComparedColumn, SeedStatistics
from ..studies import StudyRow, study_lines
from ..table import GAP, Cell, Column, Table, cells_table, headings, interval, label, named_by_reason, table_of
from .answers import HOLDS, PLACES, Part, mostly, place_of, plainly, title, won


def results_table(part: Part, spent: Iterable[CostRow], studies: Iterable[StudyRow]) -> Table:
    """Results of the methods of a data set, best MAP@R first: over its class splits, or with all columns over seeds."""
    rows = part.rows
    columns: list[Column[Contender]] = [
        Column("against the plain one: MAP@R, points", partial(_against_plain, part), number=False)
    ]
    speed = {row.contender: Cell(f"{row.ms_per_image:.3g}", row.ms_per_image) for row in spent if row.ms_per_image}
    if part.rows:
        every = [column for column in comparison.columns() if column.title and "page" in column.places]
        columns = [label("method", lambda each: rows[each].marked), *columns, *(_of(column, rows) for column in every)]
        columns += [label("default confidence, of Crop rho", lambda each: plainly(rows[each].group.confidence))]
        columns += [Column("ms per image", lambda each: speed.get(each, Cell(GAP, note="not recorded")))]
    else:
        means = [Column(f"{of.title}, %", partial(_mean, part, of)) for of in RETRIEVAL]
        columns = [label("method", part.labels.__getitem__), *means, *columns]
    name = f"{part.title}: retrieval, means over {part.over}"
    table = table_of(
        columns, list(part.labels), name, place="page", anchors=part.ids.values(), anchor=f"results-{part.slug}"
    )
    said = comparison.Part("", "", [*rows.values()]).remarks
    others = sorted({each.label for each in part.groups} - {each.label for each in part.labels})
    texts = {"Unequal budget": named_by_reason((row.label, row.unequal) for row in rows.values())}
    texts["Only at other settings, in comparison.md"] = ", ".join(others)
    counts = {part.labels[each]: row.n for each, own in part.means.items() for row in own}
    fewer = ((name, str(count)) for name, count in counts.items() if count < max(counts.values()))
    texts["On fewer class splits"] = named_by_reason(fewer) * (not rows)
    said += [f"{topic}: {text}." for topic, text in texts.items() if text]
    tuned = study_lines(row for row in studies if row.study.cell.dataset == part.name)
    return replace(table, notes=(*said, *_gaps(table), *tuned))


def _of(column: Column[ComparisonRow], rows: Mapping[Contender, ComparisonRow]) -> Column[Contender]:
    return Column(column.title, lambda each: column.of(rows[each]), number=column.number, note=column.note)


def _mean(part: Part, column: ComparedColumn, contender: Contender) -> Cell:
    rows = (row for row in part.means[contender] if row.column == column)
    cells = (Cell(interval(*map(row.column.text, (row.mean, row.low, row.high))), row.mean) for row in rows)
    return next(cells, Cell(GAP))


def _against_plain(part: Part, contender: Contender) -> Cell:
    row = next((row for row in part.against_plain if row.contender == contender), None)
    if row is None:
        return Cell("it is the plain one" if contender == part.plain else "nothing to compare with")
    found = _outcome(row)
    return replace(found, text=f"{row.text} {found.text}".removeprefix(f"{GAP} "), value=row.mean)


def _gaps(table: Table) -> Iterator[str]:
    """A line for the columns that have no value in some row, with the reasons."""
    found: dict[str, list[str]] = {}
    for place, column in enumerate(table.columns):
        gaps = [
            (row.cells[0].text, row.cells[place].note or "no value") for row in table.rows if row.cells[place].is_gap
        ]
        if gaps:
            found.setdefault(named_by_reason(gaps), []).append(column.title)
    yield from (f"No {', '.join(titles)}: {names}." for names, titles in found.items())


def confidence_table(part: Part) -> Table:
    """For every method, use and kind of images: its confidences, that to use in bold, and it as a system."""
    titles = (
        *("method", "when, on which images", "own confidence, AUROC", "chosen free one, AUROC"),
        *("own \N{MINUS SIGN} free, points", "outcome", "plain method with", "its AUGRC", "AUGRC"),
        *("plain \N{MINUS SIGN} method, points", "p, Holm", "outcome as a system"),
    )
    systems = {(row.contender, place_of(row)): row for row in part.systems}
    lines, ids = [], []
    for contender, name in part.labels.items():
        for place in PLACES:
            system = systems.get((contender, place))
            row = part.confidence(contender, place, system.confidence if system else "")
            if row or system:
                lines.append((name, title(place), *_confidence(row), *_system(part, system)))
                ids.append(part.anchor(row or system))  # type: ignore[arg-type]
    names = [name for name in part.labels.values() if name not in {line[0] for line in lines}]
    notes = (f"No confidence of the ranking was tested: {', '.join(names)}.",) if names else ()
    name = f"{part.title}: confidences, over {part.over} (bold: the one to use)"
    return cells_table(name, headings(*titles, labels=2), lines, anchors=ids, anchor=f"use-{part.slug}", notes=notes)


def _confidence(row: Comparison | None) -> Sequence[Cell | str]:
    if row is None:
        return (GAP,) * 4
    own, free = _level(row, row.values, row.confidence), _level(row, row.others, row.rival)
    sides = (replace(own, bold=won(row)), replace(free, bold=bool(row.rival) and not won(row)))
    return *sides, Cell(row.text, row.mean), _outcome(row)


def _system(part: Part, row: Comparison | None) -> Sequence[Cell | str]:
    if row is None:
        return (GAP,) * 6
    plain = f"{part.labels.get(row.against, row.against.label)}: {mostly(row.rival)}" if row.against else GAP
    p = Cell(f"{row.p_holm:.3f}".replace("nan", GAP), row.p_holm)
    return plain, _level(row, row.others), _level(row, row.values), Cell(row.text, row.mean), p, _outcome(row)


def _level(row: Comparison, values: Mapping[int, float], name: str = "") -> Cell:
    """Mean of one side of a comparison, with the name of its confidence and in a note those of other splits."""
    mean = SeedStatistics.of(values).mean
    return Cell(f"{mostly(name)} {row.column.text(mean, brief=True)}".strip(), mean, note=name)


def _outcome(row: Comparison) -> Cell:
    """Outcome in words, with the reason for having another one than the interval says, or none."""
    outcome = f"{row.outcome}{', adjusted' * (row.holds and row.outcome in HOLDS)}" * (row.outcome != "no verdict")
    return Cell(": ".join(filter(None, (outcome, row.why))), mark=row.outcome if row.counts else "")
