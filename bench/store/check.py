"""Checks of a results folder: all files for damage, and archived records against each other.

A record from elsewhere may be wrong in ways that its checksum does not tell: a checksum is computed by whoever writes.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError, shortened
from ..protocols import PROTOCOLS, get_protocol
from ..protocols.metrics import find_metric
from .files import MARKER, DamagedFile
from .folder import CHECKPOINT, LOG, RECORD, STUDY, WEIGHTS, Damage, Store
from .records import KEYS, ROW_KEYS, StudyRecord, TestRecord, TrainRecord, TrialRecord, read_marker
from .specs import TUNING, Cell, Kind, Pinned, TrainSpec

MOST_COUNTED = 10**9
"""Most queries, images or pairs that a value may be about."""

_DAY = 86400.0
_SPLIT = re.compile(r"(test|val|train)(_[a-z][a-z0-9_]*)?")
_FROM_SPEC = ("protocol", "preset", "hparams", "trials", "pinned", "ensemble")


def damages(root: Path) -> list[Damage]:
    """Every damaged file of a results folder, sorted by path; a missing file that a record names counts as damaged.

    Nothing is changed. Records are checked for checksum, schema, and an id that agrees with their folder and
    specification. Array files, cached features and checkpoints are checked for their digest. The marker ``store.json``,
    which has the versions of the results, has to be readable. Weights of tuning trials may be missing.
    """
    found: list[Damage] = []
    store = Store(root)
    store.on_damage = found.append
    try:
        if not store.is_archive and read_marker(root / MARKER) is None:
            found.append(Damage(root / MARKER, "it is missing"))
    except DamagedFile:
        found.append(Damage(root / MARKER, "it is damaged"))
    store.check_features()
    cells = set()
    kinds: tuple[Kind, ...] = ("train", "test", "study", "rescore")
    for folder in sorted(folder for kind in kinds for folder in store.units(kind)):
        cell = Cell(*folder.relative_to(root).parts[:3])
        kind, _, unit = folder.name.partition("-")
        cells.add(cell)
        if kind == "study" and store.study(cell, unit) is None:
            if any(folder.glob("trial-*.json")) and not (folder / STUDY).exists():
                found.append(Damage(folder / STUDY, "it is missing"))
        elif kind == "train":
            store.check_caches(cell, unit)
            _check_files(store, store.trained(cell, unit))
        elif kind == "test":
            _check_files(store, store.tested(cell, unit))
        elif kind == "rescore":
            store.rescored(cell, unit)
    for cell in cells:
        for _ in store.trials(cell):
            pass  # reading checks
    return sorted(set(found))


def _check_files(store: Store, record: TrainRecord | TestRecord | None) -> None:
    """Check the array files of a unit; the weights of a tuning trial need not be there."""
    if record is None:
        return
    pruned = isinstance(record, TrainRecord) and record.spec.replicate == TUNING
    if store.archive_of(record.cell, record.kind, record.unit):  # its arrays are elsewhere
        return
    whole = store.whole_files(record)
    folder = store.unit_dir(record.cell, record.kind, record.unit)
    for name in record.files.keys() - whole:
        if not (folder / name).exists() and not (pruned and name == WEIGHTS):
            store.on_damage(Damage(folder / name, f"it is missing though {RECORD} names it"))


def inconsistencies(store: Store) -> list[Damage]:
    """First fault of every archived test whose claims do not follow from the records that it comes with.

    Two archives must not have the same setting and seed.
    """
    found: list[Damage] = []
    archives: dict[tuple[object, ...], Path] = {}
    images: dict[tuple[str, Pinned], str] = {}
    studies: dict[Cell, Studies] = {}
    places = [(record, store.archive_of(record.cell, "test", record.unit)) for record in store.tests()]
    archived = [(record, archive) for record, archive in places if archive is not None]
    if archived:
        for study, trials in store.studies():
            studies.setdefault(study.cell, []).append((study, trials))
    for record, archive in archived:
        try:
            reason = next(_faults(record, store, studies.get(record.trained_cell, [])), "")
        except UserError as error:  # a name that leads elsewhere
            reason = str(error)
        first = archives.setdefault(tuple(getattr(record.columns, name) for name in KEYS), archive)
        if first != archive:
            reason = reason or f"{first.name} has a result of this setting and seed already"
        own = record.manifests.get("test", "")
        if images.setdefault((record.columns.dataset, record.columns.pinned), own) != own:
            reason = reason or "its test images are not those of the other results of this data set"
        if reason:
            found.append(Damage(store.unit_dir(record.cell, "test", record.unit) / RECORD, shortened(reason, 200)))
    return found


Studies = list[tuple[StudyRecord, list[TrialRecord]]]


def _faults(record: TestRecord, store: Store, studies: Studies) -> Iterator[str]:
    columns, spec = record.columns, record.spec
    if columns.protocol not in PROTOCOLS:
        yield f"unknown protocol {columns.protocol!r}"
        return
    protocol = get_protocol(columns.protocol)
    if spec.protocol_version != protocol.version:
        yield f"it is of {columns.protocol} version {spec.protocol_version}, this bench has version {protocol.version}"
    if spec.preset not in protocol.presets:
        yield f"{columns.protocol} has no preset {spec.preset!r}"
    if record.cell != Cell(columns.protocol, columns.dataset, columns.method):
        yield "its columns are not of its protocol, data set and method"
    for name in _FROM_SPEC:
        if getattr(columns, name) != getattr(spec, name):
            yield f"its column {name} is {getattr(columns, name)!r}, its specification has {getattr(spec, name)!r}"
    trained = [store.trained(record.trained_cell, unit) for unit in spec.train]
    known = [each for each in trained if each is not None]
    if not trained or len(known) < len(trained):
        yield "a training of it has no record"
        return
    yield from _training_faults(record, known, store)
    yield from _budget_faults(record, known[0].spec, studies, store)
    yield from _value_faults(record)


def _training_faults(record: TestRecord, trained: list[TrainRecord], store: Store) -> Iterator[str]:
    columns, first = record.columns, trained[0].spec
    seeds = range(len(trained)) if columns.ensemble == "seeds" else [columns.seed] * len(trained)
    if any(each.spec.replicate != seed for each, seed in zip(trained, seeds)):
        yield f"its trainings are not of seed {columns.seed}"
    side_by_side = len(trained) if columns.ensemble in ("seeds", "concatenated") else 1
    if (columns.backbone, columns.dim) != (first.backbone, first.dim * side_by_side):
        yield "its backbone or embedding size is not that of its trainings"
    content = first.model_dump(mode="json")
    for part, values in record.setting.items():
        for name, value in values.items():
            if content.get(part, {}).get(name) != value:
                yield f"its setting {part}.{name} is not that of its trainings"
    named = len(trained) > 1 and columns.ensemble != "seeds"
    for each in trained[:1] if columns.ensemble == "seeds" else trained:
        fold = f"_fold_{each.spec.fold}" if named else ""
        if any(record.manifests.get(f"{name}{fold}") != digest for name, digest in each.manifests.items()):
            yield "its manifests are not those of its trainings"
    for each in trained:
        base = each.spec.base
        if base is not None and store.trained(each.cell._replace(method=base.method), base.unit) is None:
            yield "the training of its base has no record"


def _budget_faults(record: TestRecord, trained: TrainSpec, studies: Studies, store: Store) -> Iterator[str]:
    trials, hparams = record.columns.trials, record.columns.hparams
    if (trials > 0) != (hparams == "tuned"):
        yield f"it claims {trials} trials with hyper-parameters {hparams!r}"
    if not trials and record.spec.tuning_trainings and not record.columns.ensemble:
        yield f"it claims no trial and {record.spec.tuning_trainings} tuning trainings"
    if hparams != "tuned":
        return
    number, chosen = 0, False
    for study, of_study in studies:
        number = max(number, len(of_study))
        finished = [trial for trial in of_study if trial.state == "complete"]
        chosen = chosen or any(_has_point(trained, trial.params) for trial in finished)
        for trial in finished:
            if any(store.trained(study.cell, unit) is None for unit in trial.units):
                yield f"trial {trial.number} of its study has a training without a record"
    if number < trials:
        yield f"it claims {trials} trials, its study has {number}"
    elif not chosen:
        yield "its setting is that of no trial of its study"


def _has_point(spec: TrainSpec, point: dict[str, int | float]) -> bool:
    """Check if a training is at the point of a trial."""
    held = spec.model_dump(mode="json")
    content = {"method": held["params"], "optim": held["optim"]}
    parts = [(name.partition("."), value) for name, value in point.items()]
    return all(content.get(part, {}).get(name, value) == value for (part, _, name), value in parts)


def _value_faults(record: TestRecord) -> Iterator[str]:
    if not 0 <= record.finished <= time.time() + _DAY:
        yield "it was finished in the future"
    if not 0 <= record.environment.seconds < math.inf:
        yield "its run time is no time"
    seen = set()
    ranges = {row["metric"]: find_metric(row["metric"]) for row in record.rows}
    for row in record.rows:
        name, value = shortened(row["metric"], 40), row["value"]
        metric = ranges[row["metric"]]
        if metric is None:
            yield f"unknown metric {name!r}"
        elif value is not None and not metric.low - 1e-6 <= value <= metric.high + 1e-6:
            yield f"{name} is {value:.4g}, outside of [{metric.low:g}, {metric.high:g}]"
        if not 0 <= row["n_queries"] <= MOST_COUNTED or not 0 <= row["n_lone"] <= MOST_COUNTED:
            yield f"the number of queries of {name} is no count"
        if not _SPLIT.fullmatch(row["split"]):
            yield f"unknown split {shortened(row['split'], 40)!r}"
        key = tuple(row.get(part) for part in ROW_KEYS)
        if key in seen:
            yield f"{name} has two values of the same kind"
        seen.add(key)
    if not record.rows:
        yield "it has no value"


class Failure(NamedTuple):
    """Something of a results folder that gave no result: where it is, what happened to it, and why."""

    place: str
    what: str
    reason: str


def failures(store: Store, damaged: Iterable[Damage]) -> list[Failure]:
    """List what failed, was interrupted or cannot be read, sorted by path."""
    return sorted({*_units(store), *_trials(store), *_damages(store, damaged)})


def _units(store: Store) -> Iterator[Failure]:
    for folder in sorted(path for path in store.root.glob("*/*/*/t*-*") if path.is_dir()):
        if (folder / RECORD).exists():
            continue
        place = folder.relative_to(store.root).as_posix()
        if (folder / LOG).exists():
            lines = [line for line in (folder / LOG).read_text(errors="replace").splitlines() if line.strip()]
            yield Failure(place, "failed", shortened(lines[-1]) if lines else "no reason was written")
        elif (folder / CHECKPOINT).exists():
            yield Failure(place, "unfinished", "it has a checkpoint; the same command goes on from there")


def _trials(store: Store) -> Iterator[Failure]:
    for study, trials in store.studies():
        for trial in trials:
            if trial.state == "failed":
                place = "/".join((*study.cell, f"study-{study.unit}", f"trial-{trial.number:04d}"))
                yield Failure(place, "failed trial", trial.reason)


def _damages(store: Store, damaged: Iterable[Damage]) -> Iterator[Failure]:
    for path, reason in damaged:
        inside = path.is_relative_to(store.root)
        yield Failure((path.relative_to(store.root) if inside else path).as_posix(), "not read", reason)
