"""The results folder: one directory per unit, one atomic JSON record as its done marker.

    <root>/store.json                                           schema and protocol versions
    <root>/<protocol>/<dataset>/<method>/<kind>-<id>/record.json
    <root>/<protocol>/<dataset>/<method>/study-<id>/study.json, trial-0000.json, ..
    <root>/<name>.tar.xz                                        records of many units (:mod:`bench.store.files`)
    <root>/experiments/<hash>.toml                              what was asked for
    <root>/.drivers/, <unit>/.claim                             who is at work (:mod:`bench.store.claims`)
    <root>/.features/<id>/                                      features of backbones at their starting weights
    <root>/.damaged/                                            what was set aside

Everything else (tables, figures) is a function of the records and can be deleted.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError, first_line
from ..names import part_of_path
from .files import (
    ARCHIVE,
    COPY,
    DRIVERS,
    MARKER,
    PLACE,
    DamagedFile,
    file_sha256,
    file_state,
    read_archive,
    read_sealed,
    sha256,
    write_atomic,
)
from .records import (
    SCHEMA_VERSION,
    DamagedRecord,
    Marker,
    RescoreRecord,
    StudyRecord,
    TestRecord,
    TrainRecord,
    TrialRecord,
    read_marker,
)
from .remembered import R, Remembered
from .specs import Cell, Kind

RECORD = "record.json"
STUDY = "study.json"
WEIGHTS = "weights.safetensors"
CHECKPOINT = "checkpoint.pt"
LOG = "error.txt"
"""File of a unit with the traceback of its last failure."""
FEATURES = "features-"
"""Start of the names of cached features; the name goes on with a key and the SHA-256 of the file."""

FROZEN_FEATURES = ".features"
"""Subfolder with the features of backbones that stay at their starting weights, in a folder per id."""

SET_ASIDE = ".damaged"
EXPERIMENTS = "experiments"
"""Subfolder with the experiments that made the records."""

REPRODUCED = "reproduce"
"""Subfolder with tables and figures of papers, of which some need no records."""


class Damage(NamedTuple):
    """A damaged file of a results folder, and what is wrong with it."""

    path: Path
    reason: str


def is_whole_cache(path: Path) -> bool:
    """Check that a file of cached features has the SHA-256 that its name ends with."""
    return file_sha256(path) == path.stem.rpartition("-")[2]


class Store:
    """A results folder, with its records of finished trainings, tests and tuning trials.

    Damaged files are never used: they count as missing, and ``on_damage`` is called with each. The folder is made on
    first write. With ``remember`` a record whose file has not changed since a command read it is not checked again.
    """

    def __init__(self, root: Path, remember: bool = False) -> None:
        self.root = root
        self.remembered = Remembered(root) if remember else None
        self.on_damage: Callable[[Damage], None] = lambda damage: None
        self._archives: tuple[tuple[object, ...], dict[str, tuple[Path, bytes]]] = (), {}

    def open(self, protocol: str, version: int, *, create: bool) -> None:
        """Check that the folder holds results of this benchmark, with this protocol version and the present schema.

        Without a whole marker, it has those of its records.
        """
        if self.root.exists() and not self.root.is_dir() and (create or not self.is_archive):
            raise UserError(f"--results {self.root} is a file; name a folder")
        held = self._marker() or self.marker_of_records() or self._without_records(create)
        if held.schema_version != SCHEMA_VERSION:
            raise UserError(
                f"{self.root} has results of schema {held.schema_version}, this bench writes schema {SCHEMA_VERSION}; "
                "the two are never mixed: name another folder with --results"
            )
        if held.protocols.get(protocol, version) != version:
            raise UserError(
                f"{self.root} has results of {protocol} version {held.protocols[protocol]}, this bench runs version "
                f"{version}; the two are never mixed: name another folder with --results"
            )

    def _marker(self) -> Marker | None:
        """Marker of the folder; None if it is missing or damaged."""
        try:
            return read_marker(self.root / MARKER)
        except (DamagedFile, NotADirectoryError):
            return None

    def _without_records(self, create: bool) -> Marker:
        if not create:
            raise UserError(
                f"{self.root} contains no results; `bench run` creates some, or name the folder with --results"
            )
        if self.root.is_dir() and not self._is_begun():
            raise UserError(f"{self.root} is not empty and not a results folder; name another with --results")
        return Marker(schema_version=SCHEMA_VERSION, protocols={})

    def _is_begun(self) -> bool:
        """Check if nothing is there but what needs no records, or a run was here, whose folder of claims stays."""
        found = {path.name for path in self.root.glob("[!.]*")}
        return (self.root / DRIVERS).is_dir() or not found - {MARKER, REPRODUCED}

    def mark(self, protocol: str, version: int) -> None:
        """Note in the folder's marker file (``store.json``) that it has results of a protocol; call :meth:`open` first.

        A marker that is missing or damaged is made again from the records.
        """
        path, held = self.root / MARKER, self._marker()
        if held is None and path.exists():
            self.on_damage(Damage(path, f"{path} is damaged"))
        found = held or self.marker_of_records() or Marker(schema_version=SCHEMA_VERSION, protocols={})
        protocols = {**found.protocols, protocol: version}
        if held is None or protocols.keys() != held.protocols.keys():
            write_atomic(path, Marker(schema_version=found.schema_version, protocols=protocols).to_json())

    def keep_experiment(self, text: str) -> None:
        """Keep the TOML text of an experiment, once, under a name of its content."""
        data = text.encode()
        path = self.root / EXPERIMENTS / f"{sha256(data)[:8]}.toml"
        if not path.exists():
            write_atomic(path, data)

    def marker_of_records(self) -> Marker | None:
        """Marker (schema and protocol versions) that follows from the records in the folder; None without records."""
        versions: dict[str, int] = {}
        for path in self._paths("*/*/*", f"t*-*/{RECORD}"):
            train = path.parent.name.startswith("train-")
            record = self._read(path, TrainRecord) if train else self._read(path, TestRecord)
            if record is not None:
                protocol, version = record.cell.protocol, record.spec.protocol_version
                if versions.setdefault(protocol, version) != version:
                    raise UserError(
                        f"{self.root} has results of {protocol} versions {versions[protocol]} and {version}; "
                        "the two are never mixed: name another folder with --results"
                    )
        return Marker(schema_version=SCHEMA_VERSION, protocols=versions) if versions else None

    def _read(self, path: Path, kind: type[R]) -> R | None:
        """A record, or None if it is missing or damaged."""
        state = file_state(path) if self.remembered else None
        if self.remembered and state and (known := self.remembered.get(path, state, kind)):
            return known
        try:
            record = kind.from_json(self.text(path))
        except FileNotFoundError:
            return None
        except DamagedRecord as error:
            self.on_damage(Damage(path, str(error)))
            return None
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EISDIR):
                raise
            self.on_damage(Damage(path, str(error.strerror)))
            return None
        if path.parts[-len(record.place) :] != record.place:
            self.on_damage(Damage(path, f"it belongs at {'/'.join(record.place)}"))
            return None
        if self.remembered and state:
            self.remembered.add(path, state, record)
        return record

    def keep_in_mind(self) -> None:
        """Write what was read for the next command, if this store remembers and it is worth it."""
        if self.remembered:
            self.remembered.write()

    def _each(self, kind: type[R], cells: str, name: str) -> Iterator[R]:
        """Yield the whole records of some cells, in the order of their paths."""
        for path in self._paths(cells, name):
            record = self._read(path, kind)
            if record is not None:
                yield record

    def text(self, path: Path) -> bytes:
        """The content of the file of a record, which may be archived."""
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            archived = self._archived().get(path.relative_to(self.root).as_posix())
            if archived is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
            return archived[1]

    @property
    def is_archive(self) -> bool:
        """Whether it is no folder, but the archive of one, which is read only."""
        return self.root.name.endswith(ARCHIVE) and self.root.is_file()

    def _archived(self) -> Mapping[str, tuple[Path, bytes]]:
        """Archive and content of each archived file by its place; of two, that of the first archive."""
        paths = [self.root] if self.is_archive else sorted(self.root.glob(f"*{ARCHIVE}"))
        states = [(path, path.stat()) for path in paths]
        signature = tuple((path, state.st_size, state.st_mtime_ns, state.st_ino) for path, state in states)
        if self._archives[0] != signature:
            found: dict[str, tuple[Path, bytes]] = {}
            for path in reversed(paths):
                try:
                    found |= {place: (path, text) for place, text in read_archive(path).items()}
                except DamagedFile as error:
                    self.on_damage(Damage(path, str(error).removeprefix(f"{path} ")))
            self._archives = signature, found
        return self._archives[1]

    def archive_of(self, cell: Cell, kind: Kind, unit: str) -> Path | None:
        """The archive that has the record of a training, test or rescoring; None if it has a file of its own."""
        path = self.unit_dir(cell, kind, unit) / RECORD
        archived = self._archived().get(path.relative_to(self.root).as_posix())
        return None if archived is None or path.exists() else archived[0]

    def texts(self) -> dict[str, bytes]:
        """Contents of all records, of the experiments that made them and of the marker, by place in the folder."""
        marker = self.marker_of_records()
        if marker is None:
            raise UserError(f"{self.root} has no finished training or test yet; `bench run` makes some")
        paths = [*self._paths("*/*/*", "*-*/*.json"), *self._paths(EXPERIMENTS, "*.toml")]
        found = {path.relative_to(self.root).as_posix(): self.text(path) for path in paths}
        return {place: text for place, text in found.items() if PLACE.fullmatch(place)} | {MARKER: marker.to_json()}

    def _paths(self, cells: str, name: str) -> list[Path]:
        """Paths of the records of some cells, sorted; that of an archived one is where its own file would be."""
        pattern = f"{cells}/{name}"
        start = pattern.partition("*")[0]  # a study asks for the trials of one cell among those of hundreds
        archived = {
            self.root / place for place in self._archived() if place.startswith(start) and fnmatchcase(place, pattern)
        }
        return sorted(archived | set(self.root.glob(pattern)))

    def units(self, kind: Kind, cells: str = "*/*/*") -> list[Path]:
        """Folders of all units of a kind, finished or not; that of a packed one need not exist."""
        there = {path for path in self.root.glob(f"{cells}/{kind}-*") if path.is_dir()}
        return sorted(there | {path.parent for path in self._paths(cells, f"{kind}-*/*.json")})

    def copy_of_queries(self, record: TestRecord) -> Path | None:
        """Compressed copy of the file of queries of an archived test, if there is one."""
        folder = self.unit_dir(record.cell, "test", record.unit)
        path = folder.with_name(f"{folder.name}{COPY}")
        return path if path.is_file() and self.archive_of(record.cell, "test", record.unit) else None

    def set_aside(self, damage: Damage) -> Path | None:
        """Move a damaged file to the subfolder ``.damaged``, which nothing reads."""
        place = self.root / SET_ASIDE / damage.path.relative_to(self.root)
        place.parent.mkdir(parents=True, exist_ok=True)
        number = 1
        while (target := place.with_name(f"{place.name}.{number}")).exists():
            number += 1
        try:
            damage.path.replace(target)
        except FileNotFoundError:
            return None
        return target

    def unit_dir(self, cell: Cell, kind: Kind, unit: str) -> Path:
        """Folder of a training, test, study or rescoring."""
        return self.root.joinpath(*map(part_of_path, (*cell, f"{kind}-{unit}")))

    def weights(self, cell: Cell, unit: str) -> Path:
        """Path of the weights of a training; they are not kept for tuning trials that lost."""
        return self.unit_dir(cell, "train", unit) / WEIGHTS

    def write(self, record: TrainRecord | TestRecord | RescoreRecord) -> None:
        """Write the record of a finished training, test or rescoring."""
        write_atomic(self.unit_dir(record.cell, record.kind, record.unit) / RECORD, record.to_json())

    def write_study(self, record: StudyRecord) -> None:
        """Write the record of a tuning study that begins, unless it is there."""
        if self.study(record.cell, record.unit) is None:
            write_atomic(self.unit_dir(record.cell, "study", record.unit) / STUDY, record.to_json())

    def write_trial(self, cell: Cell, record: TrialRecord) -> None:
        """Write the record of a finished tuning trial into the folder of its study."""
        folder = self.unit_dir(cell, "study", record.study)
        write_atomic(folder / f"trial-{record.number:04d}.json", record.to_json())

    def trained(self, cell: Cell, unit: str) -> TrainRecord | None:
        """Record of a finished training; None if it is missing or damaged."""
        return self._read(self.unit_dir(cell, "train", unit) / RECORD, TrainRecord)

    def tested(self, cell: Cell, unit: str) -> TestRecord | None:
        """Record of a finished test; None if it is missing or damaged."""
        return self._read(self.unit_dir(cell, "test", unit) / RECORD, TestRecord)

    def study(self, cell: Cell, unit: str) -> StudyRecord | None:
        """Record of a study that was begun, or None."""
        return self._read(self.unit_dir(cell, "study", unit) / STUDY, StudyRecord)

    def trial(self, cell: Cell, study: str, number: int) -> TrialRecord | None:
        """Record of a finished tuning trial; None if it is missing or damaged."""
        return self._read(self.unit_dir(cell, "study", study) / f"trial-{number:04d}.json", TrialRecord)

    def trials(self, cell: Cell) -> Iterator[TrialRecord]:
        """Yield the records of all finished tuning trials of a protocol, data set and method, sorted by path."""
        return self._each(TrialRecord, "/".join(cell), "study-*/trial-*.json")

    def whole_files(self, record: TrainRecord | TestRecord) -> frozenset[str]:
        """Names of the array files (weights, embeddings) of a training or test that have the recorded SHA-256."""
        folder = self.unit_dir(record.cell, record.kind, record.unit)
        return frozenset(name for name, digest in record.files.items() if self._is_whole(folder / name, digest))

    def _is_whole(self, path: Path, digest: str) -> bool:
        try:
            found = file_sha256(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EISDIR):
                raise
            found = ""
        if found != digest:
            self.on_damage(Damage(path, "its SHA-256 is not that of its record"))
        return found == digest

    def check_caches(self, cell: Cell, *units: str) -> None:
        """Check the checkpoints and the cached features of trainings, and pass each damaged file to ``on_damage``."""
        for unit in units:
            folder = self.unit_dir(cell, "train", unit)
            try:
                read_sealed(folder / CHECKPOINT, unit)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except (DamagedFile, IsADirectoryError):
                self.on_damage(Damage(folder / CHECKPOINT, "it is damaged, or of another training"))
            self._check_names(folder.glob(f"{FEATURES}*-{64 * '?'}.safetensors"))  # earlier ones have no digest

    def features(self, content: str) -> Path:
        """Folder of the cached features of a backbone at its starting weights."""
        return self.root / FROZEN_FEATURES / part_of_path(content)

    def check_features(self) -> None:
        """Check all cached features of backbones at their starting weights; damaged files go to ``on_damage``."""
        self._check_names(self.root.glob(f"{FROZEN_FEATURES}/*/[!.]*-*.safetensors"))

    def _check_names(self, caches: Iterable[Path]) -> None:
        for path in sorted(caches):
            if not is_whole_cache(path):
                self.on_damage(Damage(path, "its SHA-256 is not that of its name"))

    def trainings(self) -> Iterator[TrainRecord]:
        """Yield the records of all finished trainings, in the order of their paths."""
        return self._each(TrainRecord, "*/*/*", f"train-*/{RECORD}")

    def tests(self, cell: Cell | None = None) -> Iterator[TestRecord]:
        """Yield the records of all finished tests, in the order of their paths."""
        return self._each(TestRecord, "/".join(cell or "***"), f"test-*/{RECORD}")

    def rescored(self, cell: Cell, unit: str) -> RescoreRecord | None:
        """Record of a rescoring; None if it is missing or damaged."""
        return self._read(self.unit_dir(cell, "rescore", unit) / RECORD, RescoreRecord)

    def rescorings(self, cell: Cell | None = None) -> Iterator[RescoreRecord]:
        """Yield the records of all rescorings, in the order of their paths."""
        return self._each(RescoreRecord, "/".join(cell or "***"), f"rescore-*/{RECORD}")

    def studies(self) -> Iterator[tuple[StudyRecord, list[TrialRecord]]]:
        """Yield the record of each tuning study with those of its trials, sorted by path and by number of the trial."""
        for study in self._each(StudyRecord, "*/*/*", f"study-*/{STUDY}"):
            yield study, list(self._each(TrialRecord, "/".join(study.cell), f"study-{study.unit}/trial-*.json"))

    def remove(self, cell: Cell, kind: Kind, unit: str) -> None:
        """Delete the folder of a training, test or study with everything in it, and with a test its rescorings."""
        if kind == "test":
            for path in self.units("rescore", "/".join(cell)):
                record = self.rescored(cell, path.name.removeprefix("rescore-"))
                if record is not None and record.spec.test == unit:
                    shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(self.unit_dir(cell, kind, unit), ignore_errors=True)


def checked_training(folder: Path, name: str = "") -> TrainRecord:
    """Record of the training in a folder, whose weights must be those of the record; messages call it ``name``.

    Raises:
        UserError: If there is no such training, or it is damaged.
    """
    name = name or str(folder)
    try:
        record = TrainRecord.from_json((folder / RECORD).read_bytes())
        digest = file_sha256(folder / WEIGHTS)
    except OSError as error:
        lacks = Path(error.filename or folder).name
        raise UserError(
            f"{name} has no {lacks}: it is no training with its weights, which tuning trials do not keep; `bench"
            " status` shows what exists"
        ) from None
    except DamagedRecord as error:
        raise UserError(f"{name}: {RECORD} is not a record of a training ({first_line(error)})") from None
    if digest != record.files.get(WEIGHTS):
        raise UserError(
            f"{name}: {WEIGHTS} has another SHA-256 than {RECORD} says; it was changed or damaged; the same command"
            " makes it again"
        )
    return record
