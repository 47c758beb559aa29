"""Where results come from: the protocol in force, machines, versions, data, and what failed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from ...protocols._base import PROTOCOLS, get_protocol
from ...registry import Registry
from ...store.check import Failure
from ...store.folder import Store
from ...store.records import Environment, TestRecord, TrainRecord
from ..contender import Contender
from ..table import Cell, Column, Table, cells_table, headings, label
from .tables import METHOD, Of
from .words import DatasetFacts


class Tested(NamedTuple):
    """A test that counts, with the records of the trainings of its models that are there."""

    test: TestRecord
    trainings: tuple[TrainRecord, ...]


def tested(store: Store, tests: Sequence[TestRecord]) -> list[Tested]:
    """Read the training records of tests."""
    return [
        Tested(test, tuple(found for unit in test.spec.train if (found := store.trained(test.trained_cell, unit))))
        for test in tests
    ]


def losses(found: Sequence[Tested]) -> list[str]:
    """Sentences about trainings whose loss never fell."""
    return [
        f"On {each.test.columns.dataset}, {each.test.columns.method}, seed {each.test.columns.seed}: {note}."
        for each in found
        for note in dict.fromkeys(train.loss_note for train in each.trainings)
        if note
    ]


def about_protocols(tests: Sequence[TestRecord]) -> list[tuple[str, str]]:
    """Names, versions and presets of the protocols of tests, each with a summary."""
    found = sorted({(test.spec.protocol, test.spec.protocol_version, test.spec.preset) for test in tests})
    summaries = {name: get_protocol(name).summary for name in PROTOCOLS}
    return [
        (f"{name} version {version}, preset {preset}", summaries.get(name, "not a protocol of this version"))
        for name, version, preset in found
    ]


def about_methods(tests: Sequence[TestRecord]) -> list[tuple[str, str]]:
    """Names of the methods of tests, each with its summary; those of plug-ins are left out."""
    found = {name for test in tests for name in (test.columns.method, test.columns.base)}
    return [(entry.name, entry.summary) for entry in Registry("methods") if entry.name in found and entry.summary]


def settings_table(facts: DatasetFacts, found: Sequence[Tested], anchor: str) -> Table:
    """Table of the settings of training and test at a budget: one value, or how many tests have each."""
    counts: dict[str, Counter[str]] = {}
    for each in found:
        for name, value in _settings(each).items():
            counts.setdefault(name, Counter())[value] += 1
    rows = []
    for name, values in counts.items():
        shared = len(values) == 1 and values.total() == len(found)
        texts = [value if shared else f"{value} ({count})" for value, count in sorted(values.items())]
        rows.append((name, "; ".join(texts)))
    columns: tuple[Column[object], ...] = (
        label("setting"),
        label("value", note="in parentheses the number of tests, if they differ"),
    )
    return cells_table(f"{facts.title}: settings of training and test", columns, rows, anchor=anchor)


def _settings(each: Tested) -> dict[str, str]:
    spec, setting = each.test.spec, each.test.setting
    held: dict[str, object] = {"preset": spec.preset, "tests": asdict(spec.tests)}
    held["hyper-parameters"] = spec.hparams
    held["tuning trials"] = spec.trials
    held |= {name: values for name, values in setting.items() if name != "params"}
    if each.trainings:
        train = each.trainings[0].spec
        held |= {"folds": train.folds, "backbone": train.backbone, "dim": train.dim, "view": train.view}
        held |= {"starting weights": train.weights or "random", "selection": train.selection.model_dump(mode="json")}
        held |= {"images that are missing": train.partial or "none"}
    return dict(_flat("", held))


def _flat(start: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{start}.{name}" if start else str(name), inner)
    else:
        yield start, value if isinstance(value, str) else json.dumps(value)


def settings_text(facts: DatasetFacts, found: Sequence[Tested]) -> str:
    """Settings of the trainings at one budget that matter most, as text, such as the size of the images."""
    epochs = {value for each in found if (value := _epochs(each.test))}
    trainings = [train.spec for each in found for train in each.trainings]
    sizes = {int(size) for spec in trainings if (size := str(spec.view.get("image_size", ""))).isdigit()}
    networks = sorted({row.contender.backbone for row in facts.rows})
    pretrained = trainings and all(spec.weights for spec in trainings)
    parts = [f"{_range(epochs)} epoch{'s' * (epochs != {1})}"] if epochs else []
    parts += [f"images of {_range(sizes)} pixels"] if sizes else []
    parts += [f"network {' or '.join(networks)}{', pretrained' if pretrained else ''}"]
    return ", ".join(parts)


def _epochs(test: TestRecord) -> int:
    """Number of epochs of the trainings of a test; 0 if none is recorded, as of a fitted head."""
    return int(test.setting.get("optim", {}).get("epochs") or 0)


def _range(values: Collection[int]) -> str:
    return f"{min(values)}" if len(values) == 1 else f"{min(values)} to {max(values)}"


def parameters_table(facts: DatasetFacts, found: Sequence[Tested], anchor: str) -> Table:
    """Table of the hyper-parameters of each method at a budget."""
    rows = []
    for each in (Of(facts, row.contender, row) for row in facts.rows):
        texts = {
            "; ".join(
                f"{name}={f'{value:.4g}' if isinstance(value, float) else json.dumps(value)}"
                for name, value in sorted(one.test.setting.get("params", {}).items())
                if name != "form"
            )
            for one in found
            if Contender.of_columns(one.test.columns) == each.contender
        }
        rows.append((each.method, " | ".join(sorted(texts))))
    columns: tuple[Column[Any], ...] = (METHOD, label("hyper-parameters"))
    return cells_table(f"{facts.title}: hyper-parameters", columns, rows, anchor=anchor)


def machines_table(found: Sequence[Tested], anchor: str) -> Table:
    """Table of the machines and versions that tests and trainings ran on."""
    units: dict[str, Environment] = {}
    for each in found:
        units[f"test-{each.test.unit}"] = each.test.environment
        units |= {f"train-{train.unit}": train.environment for train in each.trainings}
    places: dict[tuple[str, ...], list[Environment]] = {}
    for held in units.values():
        place = (held.device, held.machine, str(held.threads), held.bench, held.torch, held.python)
        places.setdefault(place, []).append(held)
    rows: list[tuple[Cell | str, ...]] = []
    for where, ran in sorted(places.items()):
        remarks = "; ".join(sorted({held.memory_note for held in ran} - {""}))
        hours, peak = sum(held.seconds for held in ran) / 3600, max(held.peak_memory_mib for held in ran)
        rows.append((*where, str(len(ran)), Cell(f"{hours:.2f}", hours), str(peak), remarks))
    columns: tuple[Column[object], ...] = (
        *map(label, ("device", "processor", "threads", "bench", "torch", "Python")),
        Column("units", note="trainings and tests"),
        Column("hours", note="wall-clock time of all of them"),
        Column("peak MiB", note="largest resident memory of a process"),
        label("remarks"),
    )
    return cells_table("Machines and versions", columns, rows, anchor=anchor)


def manifests_table(found: Sequence[Tested], anchor: str) -> Table:
    """Table of the SHA-256 of the images, by data set and part, with the number of tests that had them."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for each in found:
        counts.update((each.test.columns.dataset, part, digest) for part, digest in each.test.manifests.items())
    columns = headings("data set", "part", "SHA-256 of its images", "tests", labels=3)
    rows = [(*place, str(count)) for place, count in sorted(counts.items())]
    return cells_table("Manifests of the images", columns, rows, anchor=anchor)


def failures_table(found: Iterable[Failure], anchor: str) -> Table:
    """Table of what failed."""
    return cells_table("What failed, and why", headings("where", "what", "why", labels=3), found, anchor=anchor)
