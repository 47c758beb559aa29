"""The results folder: one directory per unit, one atomic JSON record as its done marker.

    <root>/store.json                                           schema and protocol versions
    <root>/<protocol>/<dataset>/<method>/<kind>-<id>/record.json
    <root>/<protocol>/<dataset>/<method>/study-<id>/study.json, trial-0000.json, ..

Everything else (tables, figures) is a function of the records and can be deleted.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, TypeVar

from ..errors import UserError
from .files import read_json, write_atomic, write_json
from .records import SCHEMA_VERSION, DamagedRecord, StudyRecord, TestRecord, TrainRecord, TrialRecord
from .specs import Cell, Kind

RECORD = "record.json"
STUDY = "study.json"
WEIGHTS = "weights.safetensors"
CHECKPOINT = "checkpoint.pt"

R = TypeVar("R", TrainRecord, TestRecord, StudyRecord, TrialRecord)


def _read(path: Path, kind: type[R]) -> R | None:
    """A record, or None if it is missing or damaged."""
    try:
        return kind.from_json(path.read_bytes())
    except (FileNotFoundError, DamagedRecord):
        return None


class Store:
    """A results folder.

    Args:
        root: Folder, made on first write.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: TextIO | None = None

    def open(self, protocol: str, version: int, *, create: bool) -> None:
        """Check that the folder is ours and of this version.

        Raises:
            UserError: If it holds another schema or protocol version, or something else altogether.
        """
        marker = self.root / "store.json"
        if self.root.exists() and not self.root.is_dir():
            raise UserError(f"--results {self.root} is a file; name a folder")
        if not marker.exists():
            if not create:
                raise UserError(
                    f"{self.root} contains no results; `bench run` creates some, or name the folder with --results"
                )
            if self.root.is_dir() and any(p for p in self.root.iterdir() if not p.name.startswith(".")):
                raise UserError(f"{self.root} is not empty and not a results folder; name another with --results")
            write_json(marker, {"schema": SCHEMA_VERSION, "protocols": {protocol: version}})
            return
        held = read_json(marker)
        if not isinstance(held, dict) or not isinstance(held.get("protocols"), dict):
            raise UserError(f"{marker} is damaged; move the folder away or name another with --results")
        if held.get("schema") != SCHEMA_VERSION:
            raise UserError(
                f"{self.root} has results of schema {held.get('schema')}, this bench writes schema {SCHEMA_VERSION}; "
                "the two are never mixed: name another folder with --results"
            )
        if held["protocols"].get(protocol, version) != version:
            raise UserError(
                f"{self.root} has results of {protocol} version {held['protocols'][protocol]}, this bench runs version "
                f"{version}; the two are never mixed: name another folder with --results"
            )
        if create and protocol not in held["protocols"]:
            held["protocols"][protocol] = version
            write_json(marker, held)

    def lock(self) -> None:
        """Hold the folder for writing until this process ends, however it ends.

        Raises:
            UserError: If another process holds it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        handle = open(self.root / ".lock", "w")  # noqa: SIM115 (held open for the life of the process)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another bench run is writing to {self.root}; wait for it, or name another folder with --results"
            ) from None
        self._lock = handle

    def unit_dir(self, cell: Cell, kind: Kind, unit: str) -> Path:
        """Directory of a unit."""
        return self.root.joinpath(*cell, f"{kind}-{unit}")

    def weights(self, cell: Cell, unit: str) -> Path:
        """File of the weights of a training unit; weights of trials that lost are not kept."""
        return self.unit_dir(cell, "train", unit) / WEIGHTS

    def write(self, record: TrainRecord | TestRecord) -> None:
        """Write the record of a finished unit."""
        folder = self.unit_dir(record.cell, record.kind, record.unit)
        write_atomic(folder / RECORD, record.to_json())

    def write_study(self, record: StudyRecord) -> None:
        """Write what a study is about."""
        write_atomic(self.unit_dir(record.cell, "study", record.unit) / STUDY, record.to_json())

    def write_trial(self, cell: Cell, record: TrialRecord) -> None:
        """Write a finished trial into the folder of its study."""
        folder = self.unit_dir(cell, "study", record.study)
        write_atomic(folder / f"trial-{record.number:04d}.json", record.to_json())

    def trained(self, cell: Cell, unit: str) -> TrainRecord | None:
        """Record of a finished training, or None."""
        return _read(self.unit_dir(cell, "train", unit) / RECORD, TrainRecord)

    def tested(self, cell: Cell, unit: str) -> TestRecord | None:
        """Record of a finished test, or None."""
        return _read(self.unit_dir(cell, "test", unit) / RECORD, TestRecord)

    def trial(self, cell: Cell, study: str, number: int) -> TrialRecord | None:
        """Record of a finished trial, or None."""
        return _read(self.unit_dir(cell, "study", study) / f"trial-{number:04d}.json", TrialRecord)

    def tests(self) -> Iterator[TestRecord]:
        """All tests, in the order of their paths."""
        for path in self._test_records():
            record = _read(path, TestRecord)
            if record is not None:
                yield record

    def damaged_tests(self) -> list[Path]:
        """Records of tests that cannot be read."""
        return [path for path in self._test_records() if _read(path, TestRecord) is None]

    def _test_records(self) -> list[Path]:
        return sorted(self.root.glob(f"*/*/*/test-*/{RECORD}"))

    def studies(self, dataset: str = "*") -> Iterator[tuple[StudyRecord, list[TrialRecord]]]:
        """All studies with their trials, in the order of their paths and of the trials' numbers."""
        for path in sorted(self.root.glob(f"*/{dataset}/*/study-*/{STUDY}")):
            study = _read(path, StudyRecord)
            if study is not None:
                paths = sorted(path.parent.glob("trial-*.json"))
                yield study, [trial for trial in (_read(path, TrialRecord) for path in paths) if trial is not None]

    def remove(self, cell: Cell, kind: Kind, unit: str) -> None:
        """Forget a unit."""
        shutil.rmtree(self.unit_dir(cell, kind, unit), ignore_errors=True)
