"""Where results come from: what was tested on which data, with which settings, on which machines, and what failed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

import pandas as pd

from ...registry import Registry
from ...store.folder import Store
from ...store.records import Environment, TestRecord, TrainRecord
from ..compare import on_own_split
from ..contender import Contender
from ..table import Cell, Table, cells_table, grouped, headings
from .answers import Part

Tested = tuple[TestRecord, tuple[TrainRecord, ...]]
"""A test that counts, with the records of the trainings of its models that are there."""


def tested(store: Store, tests: Sequence[TestRecord]) -> list[Tested]:
    """Read the training records of tests."""
    return [
        (test, tuple(found for unit in test.spec.train if (found := store.trained(test.trained_cell, unit))))
        for test in tests
    ]


def losses(found: Iterable[Tested]) -> Iterator[str]:
    """Sentences about trainings whose loss never fell."""
    for test, trainings in found:
        of = test.columns
        place = f"{of.dataset}{f', class split {of.pinned.class_seed}' * bool(of.pinned.class_seed)}"
        for note in dict.fromkeys(train.loss_note for train in trainings if train.loss_note):
            yield f"{of.method} on {place}, seed {of.seed}: {note}."


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
    """Settings of training and test of a data set: one value, or those that methods have with their numbers."""
    own = {on_own_split(Contender.of_columns(each[0].columns)): each for each in found}
    tested = {label: own[contender] for contender, label in part.labels.items() if contender in own}
    every = pd.json_normalize([_settings(*each) for each in tested.values()])
    rows = []
    for name in every.columns:
        counts = every[name].map(_text).value_counts()
        texts = [value if len(counts) == 1 else f"{value} ({counts[value]})" for value in sorted(counts.index)]
        rows.append((name, "; ".join(texts)))
    for label, (test, _) in tested.items():
        params = sorted(test.setting.get("params", {}).items())
        texts = [f"{name}={_text(value)}" for name, value in params if name != "form"]
        rows.append((f"hyper-parameters of {label}", "; ".join(texts)))
    titles = headings("setting", "value (number of methods with it)", labels=2)
    return cells_table(f"{part.title}: settings", titles, rows, anchor=f"settings-{part.slug}")


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
