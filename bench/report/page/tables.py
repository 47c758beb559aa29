"""Tables of a page: results of methods on a data set, the confidence to use with each, and where results come from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import compress
from typing import Any

import pandas as pd

from ...registry import Registry
from ...store.folder import Store
from ...store.records import Environment, TestRecord, TrainRecord
from .. import comparison
from ..compare import Comparison, level, on_own_split
from ..comparison import ComparisonRow
from ..contender import Contender
from ..cost import CostRow
from ..questions import RETRIEVAL
from ..seeds import ComparedColumn
from ..studies import StudyRow, study_lines
from ..table import GAP, Cell, Column, Table, cells_table, grouped, headings, interval, label, named_by_reason, table_of
from ..views import outcome_text
from .answers import HOLDS, PLACES, Part, mostly, place_of, plainly, title, use_own


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
    of_rows = comparison.Part("", "", [*rows.values()])
    others = sorted({each.label for each in part.groups} - {each.label for each in part.labels})
    texts = {"Unequal budget": of_rows.unequal}
    lacking = "Only at other settings" if rows else "On no class splits at this budget"
    texts[f"{lacking}, in comparison.md"] = ", ".join(others)
    counts = {part.labels[each]: row.n for each, own in part.means.items() for row in own}
    fewer = ((name, str(count)) for name, count in counts.items() if count < max(counts.values()))
    texts["On fewer class splits"] = named_by_reason(fewer) * (not rows)
    said = [*of_rows.remarks, *(f"{topic}: {text}." for topic, text in texts.items() if text)]
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
                lines.append((name, title(place), *_confidence(row, system), *_system(part, system)))
                ids.append(part.anchor(row or system))  # type: ignore[arg-type]
    names = [name for name in part.labels.values() if name not in {line[0] for line in lines}]
    notes = (f"No confidence of the ranking was tested: {', '.join(names)}.",) if names else ()
    name = f"{part.title}: confidences, over {part.over} (bold: the one to use)"
    return cells_table(name, headings(*titles, labels=2), lines, anchors=ids, anchor=f"use-{part.slug}", notes=notes)


def _confidence(row: Comparison | None, system: Comparison | None) -> Sequence[Cell | str]:
    if row is None:
        return (GAP,) * 4
    own, free = _level(row, row.values, row.confidence), _level(row, row.others, row.rival)
    use = use_own(row, system)
    sides = (replace(own, bold=use), replace(free, bold=bool(row.rival) and not use))
    return *sides, Cell(row.text, row.mean), _outcome(row)


def _system(part: Part, row: Comparison | None) -> Sequence[Cell | str]:
    if row is None:
        return (GAP,) * 6
    plain = f"{part.labels.get(row.against, row.against.label)}: {mostly(row.rival)}" if row.against else GAP
    p = Cell(f"{row.p_holm:.3f}".replace("nan", GAP), row.p_holm)
    return plain, _level(row, row.others), _level(row, row.values), Cell(row.text, row.mean), p, _outcome(row)


def _level(row: Comparison, values: Mapping[int, float], name: str = "") -> Cell:
    """Mean of one side of a comparison, with the name of its confidence and in a note those of other splits."""
    mean = level(row, values)
    return Cell(f"{mostly(name)} {row.column.text(mean, brief=True)}".strip(), mean, note=name)


def _outcome(row: Comparison) -> Cell:
    """Outcome in words, with the reason for having another one than the interval says, or none."""
    words = {outcome: f"{outcome}, adjusted" for outcome in HOLDS} if row.holds else {}
    return Cell(outcome_text(row, words), mark=row.outcome if row.counts else "")


Tested = tuple[TestRecord, tuple[TrainRecord, ...]]
"""A test that counts, with the records of the trainings of its models that are there."""


def tested(store: Store, tests: Sequence[TestRecord]) -> list[Tested]:
    """Read the training records of tests."""
    return [
        (test, tuple(found for unit in test.spec.train if (found := store.trained(test.trained_cell, unit))))
        for test in tests
    ]


def losses(found: Iterable[Tested]) -> Iterator[str]:
    """Sentences about trainings whose loss never fell, one for each method and data set."""
    noted = [
        (test.columns, note)
        for test, trainings in found
        for note in dict.fromkeys(train.loss_note for train in trainings)
        if note
    ]
    for own in grouped(noted, lambda each: (each[0].method, each[0].dataset)).values():
        of, note = own[0]
        place = f"{of.dataset}{f', class split {of.pinned.class_seed}' * bool(of.pinned.class_seed)}"
        said = f", and {len(own) - 1} more: {note.partition(':')[0]}" if len(own) > 1 else f": {note}"
        yield f"{of.method} on {place}, seed {of.seed}{said}."


def roundings(found: Iterable[Tested]) -> Iterator[str]:
    """Sentences about contenders whose trainings did not all round alike, on other machines or with other versions."""
    for contender, own in grouped(found, lambda each: on_own_split(Contender.of_columns(each[0].columns))).items():
        digests = {train.environment.rounding for _, trainings in own for train in trainings} - {""}
        if len(digests) > 1:
            yield f"{contender.name} on {contender.dataset}: {len(digests)} roundings among its trainings."


def methods_table(tests: Iterable[TestRecord]) -> Table:
    """Summaries of the methods of tests; those of plug-ins have none."""
    found = {name for test in tests for name in (test.columns.method, test.columns.base)}
    rows = [(entry.name, entry.summary) for entry in Registry("methods") if entry.name in found]
    return cells_table("Methods", headings("method", "what it is", labels=2), rows)


def settings_table(part: Part, found: Iterable[Tested]) -> Table:
    """Settings of training and test of a data set, over all tests of its methods."""
    own = grouped(found, lambda each: on_own_split(Contender.of_columns(each[0].columns)))
    tested = {label: own[contender] for contender, label in part.labels.items() if contender in own}
    every = pd.json_normalize([_settings(*each) for tests in tested.values() for each in tests])
    rows = [(name, _values(every[name].tolist())) for name in every.columns]
    for method, tests in tested.items():
        params = pd.DataFrame([test.setting.get("params", {}) for test, _ in tests])
        texts = [f"{name}={_values(params[name].tolist())}" for name in sorted(params.columns) if name != "form"]
        rows.append((f"hyper-parameters of {method}", "; ".join(texts)))
    titles = headings("setting", "value, or several (number of tests with each)", labels=2)
    return cells_table(f"{part.title}: settings", titles, rows, anchor=f"settings-{part.slug}")


def _values(values: Sequence[Any]) -> str:
    """The value of all tests, or each with the number of tests that have it; of numbers, the lowest and the highest."""
    is_number = [type(value) in (int, float) and value == value for value in values]
    numbers = [*compress(values, is_number)]
    span = " to ".join(dict.fromkeys(_text(end(numbers)) for end in (min, max))) if numbers else ""
    counts = Counter(span if known else _text(value) for value, known in zip(values, is_number))
    return "; ".join(f"{text} ({counts[text]})" if len(counts) > 1 else text for text in sorted(counts))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}".replace("nan", "none")
    return value if isinstance(value, str) else json.dumps(value)


def _settings(test: TestRecord, trainings: Sequence[TrainRecord]) -> dict[str, object]:
    spec = test.spec
    held: dict[str, object] = {"protocol": f"{spec.protocol} version {spec.protocol_version}", "preset": spec.preset}
    held |= {"tests": asdict(spec.tests), "hyper-parameters": spec.hparams, "tuning trials": spec.trials}
    held |= {name: values for name, values in test.setting.items() if name != "params"}
    for train in (train.spec for train in trainings[:1]):
        held |= {"folds": train.folds, "backbone": train.backbone, "dim": train.dim, "view": train.view}
        held |= {"starting weights": train.weights or "random", "selection": train.selection.model_dump(mode="json")}
        held |= {"part of the data": train.partial or "all"}
    return held | {f"SHA-256 of the images, {name}": digest for name, digest in test.manifests.items()}


def machines_table(found: Iterable[Tested]) -> Table:
    """Machines and versions that tests and trainings ran on."""
    units: dict[str, Environment] = {}
    for test, trainings in found:
        units[f"test-{test.unit}"] = test.environment
        units |= {f"train-{train.unit}": train.environment for train in trainings}
    places = grouped(units.values(), lambda at: (at.device, at.machine, str(at.threads), at.bench, at.torch, at.python))
    rows: list[tuple[Cell | str, ...]] = []
    for where, ran in sorted(places.items()):
        hours, peak = sum(held.seconds for held in ran) / 3600, max(held.peak_memory_mib for held in ran)
        remarks = "; ".join(sorted({held.memory_note for held in ran} - {""}))
        rows.append((*where, remarks, str(len(ran)), Cell(f"{hours:.2f}", hours), str(peak)))
    names = ("device", "processor", "threads", "bench", "torch", "Python", "remarks", "units", "hours", "peak MiB")
    return cells_table("Machines and versions", headings(*names, labels=7), rows, anchor="machines")
