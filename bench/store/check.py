"""Checks of a results folder: all files for damage, and what failed or was interrupted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import shortened
from .files import MARKER, DamagedFile, sha256, unpacked
from .folder import CHECKPOINT, LOG, RECORD, STUDY, WEIGHTS, Damage, Store
from .records import TestRecord, TrainRecord, read_marker
from .specs import Cell, Kind


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
    pruned = isinstance(record, TrainRecord) and record.spec.is_trial
    if store.archive_of(record.cell, record.kind, record.unit):  # its arrays are elsewhere
        copy = store.copy_of_queries(record) if isinstance(record, TestRecord) else None
        if copy is not None and _unpacked_sha256(copy) not in record.files.values():
            store.on_damage(Damage(copy, "its SHA-256 is not that of its record"))
        return
    whole = store.whole_files(record)
    folder = store.unit_dir(record.cell, record.kind, record.unit)
    for name in record.files.keys() - whole:
        if not (folder / name).exists() and not (pruned and name == WEIGHTS):
            store.on_damage(Damage(folder / name, f"it is missing though {RECORD} names it"))


def _unpacked_sha256(path: Path) -> str:
    try:
        return sha256(unpacked(path))
    except DamagedFile:
        return ""


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
