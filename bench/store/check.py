"""Check of all files of a results folder for damage."""

from __future__ import annotations

from pathlib import Path

from .files import DamagedFile
from .folder import RECORD, STUDY, WEIGHTS, Damage, Store
from .marker import MARKER, read_marker
from .records import TestRecord, TrainRecord
from .specs import TUNING, Cell, Kind


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
