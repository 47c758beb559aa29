"""What commands have read of the records of a large results folder, for the next one: a copy of no authority.

An entry counts if its record's file has the size, times and inode that it had before it was read. The copy is sealed: a
damaged one, or one of another version, is passed over and made again.
"""

from __future__ import annotations

import contextlib
import json
import sys
from array import array
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from .._version import __version__
from .files import DamagedFile, State, read_sealed, sealed_file
from .records import SCHEMA_VERSION, Layout, RescoreRecord, Rows, StudyRecord, TestRecord, TrainRecord, TrialRecord

FILE = ".records"
MANY = 200
"""Number of records that are not in the copy from which it is written again."""
VERSION = f"records of schema {SCHEMA_VERSION}, bench {__version__}, {sys.byteorder} endian"

R = TypeVar("R", TrainRecord, TestRecord, StudyRecord, TrialRecord, RescoreRecord)

Entry = tuple[State, bytes | memoryview, Layout, bytes | memoryview]
"""State of a file, the fields of its record but for the rows as JSON, and layout and values of the rows."""


class Remembered:
    """Records of a folder by their place in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._new: dict[str, Entry] = {}

    @cached_property
    def _old(self) -> dict[str, Entry]:
        try:
            index, _, blob = read_sealed(self.root / FILE, VERSION).partition(b"\n")
        except (OSError, DamagedFile):
            return {}
        held, data, end = json.loads(index), memoryview(blob), 0
        layouts = [Layout(tuple(map(tuple, keys))) for keys in held["layouts"]]
        found: dict[str, Entry] = {}
        for place, state, fields, layout, values in held["records"]:
            start, middle, end = end, end + fields, end + fields + values
            found[place] = tuple(state), data[start:middle], layouts[layout], data[middle:end]
        return found

    def get(self, path: Path, state: State, kind: type[R]) -> R | None:
        """The record of a file if that is in this state, as it was read; else None."""
        known = self._old.get(str(path.relative_to(self.root)))
        if known is None or known[0] != state:
            return None
        _, fields, layout, values = known
        held = from_json(bytes(fields))
        if kind in (TestRecord, RescoreRecord):
            held["rows"] = Rows(layout, array("d", bytes(values)))
        with contextlib.suppress(ValidationError):
            return kind.model_validate(held)
        return None

    def add(self, path: Path, state: State, record: R) -> None:
        """Remember a record whose file was in this state before it was read."""
        fields = record.model_dump_json(exclude={"rows"}).encode()
        rows = Rows.of(record.rows if isinstance(record, TestRecord | RescoreRecord) else ())
        self._new[str(path.relative_to(self.root))] = state, fields, rows.layout, rows.values.tobytes()

    def write(self) -> None:
        """Write the copy again if many records are not in it; a folder that is gone or read-only has none."""
        if len(self._new) < MANY or not self.root.is_dir():
            return
        every = {place: each for place, each in {**self._old, **self._new}.items() if (self.root / place).exists()}
        layouts = {layout: at for at, layout in enumerate(dict.fromkeys(layout for _, _, layout, _ in every.values()))}
        held = {
            "layouts": [layout.keys for layout in layouts],
            "records": [
                [place, s, len(fields), layouts[of], len(values)] for place, (s, fields, of, values) in every.items()
            ],
        }
        with contextlib.suppress(OSError), sealed_file(self.root / FILE, VERSION) as file:
            file.write(json.dumps(held).encode() + b"\n")
            for _, fields, _, values in every.values():
                file.write(bytes(fields) + bytes(values))
        self._new.clear()
