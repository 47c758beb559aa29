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
from typing import NamedTuple, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from .._version import __version__
from .files import DamagedFile, read_sealed, sealed_file
from .records import (
    SCHEMA_VERSION,
    Layout,
    RescoreRecord,
    Rows,
    StudyRecord,
    TestRecord,
    TrainRecord,
    TrialRecord,
    layout_of,
)

FILE = ".records"
MANY = 200
"""Number of records that are not in the copy from which it is written again."""
VERSION = f"records of schema {SCHEMA_VERSION}, bench {__version__}, {sys.byteorder} endian"

R = TypeVar("R", TrainRecord, TestRecord, StudyRecord, TrialRecord, RescoreRecord)

State = tuple[int, int, int, int]


class Entry(NamedTuple):
    """State of a file, the fields of its record but for the rows as JSON, and layout and values of the rows."""

    state: State
    fields: bytes | memoryview
    layout: Layout | None = None
    values: bytes | memoryview = b""


def state_of(path: Path) -> State | None:
    """Size, times and inode of a file, some of which change if it is written; None if there is none."""
    with contextlib.suppress(OSError):
        state = path.stat()
        return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino
    return None


class Remembered:
    """Records of a folder by their place in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._new: dict[str, Entry] = {}

    @cached_property
    def _old(self) -> dict[str, Entry]:
        try:
            data = memoryview(read_sealed(self.root / FILE, VERSION))
        except (OSError, DamagedFile):
            return {}
        end = 8 + int.from_bytes(data[:8], "little")
        index = json.loads(data[8:end].tobytes())
        layouts = [None, *(layout_of(tuple(map(tuple, keys))) for keys in index["layouts"])]
        found = {}
        for place, state, fields, values, layout in index["records"]:
            middle, start, end = end + fields, end, end + fields + values
            found[place] = Entry(tuple(state), data[start:middle], layouts[layout], data[middle:end])
        return found

    def get(self, place: str, state: State | None, kind: type[R]) -> R | None:
        """The record of a place if its file is in the state that is given; else None."""
        entry = self._old.get(place)
        if entry is None or entry.state != state:
            return None
        rows = {}
        if entry.layout is not None:
            values = array("d")
            values.frombytes(entry.values)
            rows = {"rows": Rows(entry.layout, values)}
        try:
            return kind.model_validate({**from_json(bytes(entry.fields)), **rows})
        except ValidationError:
            return None

    def add(self, place: str, state: State, record: R) -> None:
        """Remember a record whose file was in this state before it was read."""
        fields = record.model_dump_json(exclude={"rows"}).encode()
        self._new[place] = Entry(state, fields)
        if isinstance(record, TestRecord | RescoreRecord):
            rows = Rows.of(record.rows)
            self._new[place] = Entry(state, fields, rows.layout, rows.values.tobytes())

    def write(self) -> None:
        """Write the copy again if many records are not in it; a folder that cannot be written to has none."""
        if len(self._new) < MANY:
            return
        every = {place: each for place, each in (self._old | self._new).items() if (self.root / place).exists()}
        layouts = {
            layout: at for at, layout in enumerate(dict.fromkeys([None, *(each.layout for each in every.values())]))
        }
        records = [
            [place, each.state, len(each.fields), len(each.values), layouts[each.layout]]
            for place, each in every.items()
        ]
        keys = [layout.keys for layout in layouts if layout is not None]
        index = json.dumps({"layouts": keys, "records": records}).encode()
        with contextlib.suppress(OSError), sealed_file(self.root / FILE, VERSION) as file:
            file.write(len(index).to_bytes(8, "little") + index)
            for each in every.values():
                file.write(each.fields)
                file.write(each.values)
        self._new.clear()
