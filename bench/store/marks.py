"""Marks of contributed results: which of them were run again with equal values, and by whom."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .files import DamagedFile, sha256, write_atomic
from .folder import RECORD, Store
from .pack import Text
from .records import TestRecord

VERIFIED = "verified.csv"
"""File of a folder of contributed results with the results that maintainers have run again."""

State = Literal["own", "claimed", "verified"]


class Mark(BaseModel):
    """A result that was run again, on another machine or with other code, and gave the same values.

    Attributes:
        unit: Id of the test.
        record: SHA-256 of its record, so that a changed record loses the mark.
        by: Who ran it again.
        where: Machine that it was run on again.
        commit: Git commit of the code of the second run.
        values: Number of values that both runs have.
        largest_difference: Largest absolute difference of these.
        tolerance: Largest difference that was accepted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: str = Field(pattern="^[0-9a-f]{16}$")
    record: str = Field(pattern="^[0-9a-f]{64}$")
    by: Text
    where: Text
    commit: Text
    values: int = Field(gt=0)
    largest_difference: float = Field(ge=0, le=1)
    tolerance: float = Field(ge=0, le=1)


def read_marks(root: Path) -> dict[str, Mark]:
    """Marks of a folder by the id of the test; none without a file of them.

    Raises:
        DamagedFile: If the file is no table of marks, or a difference exceeds its tolerance.
    """
    path = root / VERIFIED
    try:
        table = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
        if table.fieldnames != list(Mark.model_fields):
            raise ValueError
        marks = [Mark.model_validate(row) for row in table]
    except FileNotFoundError:
        return {}
    except (ValueError, ValidationError, csv.Error, OSError):
        raise DamagedFile(f"{path} is no table of {', '.join(Mark.model_fields)}") from None
    for mark in marks:
        if mark.largest_difference > mark.tolerance:
            raise DamagedFile(f"{path}: the difference of {mark.unit} exceeds its tolerance")
    return {mark.unit: mark for mark in marks}


def write_marks(root: Path, marks: Iterable[Mark]) -> None:
    """Write the marks of a folder, sorted by the id of the test."""
    text = io.StringIO()
    table = csv.DictWriter(text, tuple(Mark.model_fields), lineterminator="\n")
    table.writeheader()
    table.writerows(mark.model_dump() for mark in sorted(marks, key=lambda mark: mark.unit))
    write_atomic(root / VERIFIED, text.getvalue().encode())


def digest_of(store: Store, record: TestRecord) -> str:
    """SHA-256 of the record of a test as its file or pack has it."""
    return sha256(store.text(store.unit_dir(record.cell, "test", record.unit) / RECORD))


def state_of(store: Store, record: TestRecord, marks: dict[str, Mark]) -> State:
    """State of a result: ``own`` if it is not packed, else ``claimed``, or ``verified`` if its mark fits its record.

    Args:
        store: The results folder.
        record: Record of the test.
        marks: Marks of the folder (:func:`read_marks`).
    """
    if store.provenance(record.cell, "test", record.unit) is None:
        return "own"
    mark = marks.get(record.unit)
    return "verified" if mark is not None and mark.record == digest_of(store, record) else "claimed"


def largest_difference(one: TestRecord, other: TestRecord, keys: tuple[str, ...]) -> tuple[int, float]:
    """Number of values that two tests have both, and the largest absolute difference; nan without any.

    Args:
        one: Record of a test.
        other: Record of a test of the same setting and seed.
        keys: Columns that identify a row.
    """
    values, others = _values(one, keys), _values(other, keys)
    pairs = [(values.get(key), value) for key, value in others.items()]
    found = [abs(first - second) for first, second in pairs if first is not None and second is not None]
    return len(found), max(found, default=math.nan)


def lacking(one: TestRecord, other: TestRecord, keys: tuple[str, ...]) -> int:
    """Number of values that the first of two tests has and the second has not.

    Args:
        one: Record of a test.
        other: Record of a test of the same setting and seed.
        keys: Columns that identify a row.
    """
    others = _values(other, keys)
    return sum(value is not None and others.get(key) is None for key, value in _values(one, keys).items())


def _values(record: TestRecord, keys: tuple[str, ...]) -> dict[tuple[object, ...], float | None]:
    return {tuple(row.get(key) for key in keys): row["value"] for row in record.rows}
