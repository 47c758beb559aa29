"""The tidy table: one value per row, a pure function of the test records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ..store.files import write_atomic
from ..store.folder import Store
from ..store.records import COLUMNS, KEYS, ROW_KEYS, Role, TestRecord
from .escape import csv_text

ROLE_COLUMNS = ("unit", *Role.model_fields)


@dataclass(frozen=True)
class Results:
    """The finished tests of a results folder.

    If the same method, setting and seed was tested several times (with other code or other tests), only the latest test
    counts.

    Attributes:
        tests: The records that count, in the order of their paths.
        superseded: Number of records that do not count, because there is a later one.
        frame: Tidy table of results (``metrics.csv``), one row per measured value: method, setting, metric, value and
            so on.
        roles: Table with one row per test: its id (``unit``) and its :class:`~bench.store.records.Role` (the method's
            own scorer, default confidence and so on).
    """

    tests: tuple[TestRecord, ...]
    superseded: int
    frame: pd.DataFrame
    roles: pd.DataFrame

    @classmethod
    def of(cls, tests: tuple[TestRecord, ...], superseded: int = 0) -> Results:
        """Tabulate test records: one table with one measured value per row, one with the role of each test.

        Args:
            tests: The records.
            superseded: Number of older records of the same settings that were left out.
        """
        return cls(tests, superseded, _tidy(tests), _roles(tests))


def collect(*stores: Store) -> Results:
    """Read the records of all finished tests of results folders and tabulate them.

    If the same method, setting and seed was tested several times, only the latest test counts.

    Args:
        stores: One results folder or several, whose records are taken together.
    """
    latest: dict[tuple[object, ...], TestRecord] = {}
    count = 0
    for record in (record for store in stores for record in store.tests()):
        count += 1
        key = tuple(getattr(record.columns, name) for name in KEYS)
        if key not in latest or record.finished > latest[key].finished:
            latest[key] = record
    tests = tuple(latest.values())
    return Results.of(tests, count - len(tests))


def _tidy(tests: tuple[TestRecord, ...]) -> pd.DataFrame:
    # By column: a dictionary per row takes several times the memory of the table.
    table: dict[str, list[object]] = {
        name: [getattr(record.columns, name) for record in tests for _ in record.rows] for name in KEYS
    }
    for name in (*ROW_KEYS, "value", "n_queries", "n_lone"):
        table[name] = [row.get(name) for record in tests for row in record.rows]
    table["unit"] = [record.unit for record in tests for _ in record.rows]
    frame = pd.DataFrame(table, columns=list(COLUMNS)).astype({"value": float, "fraction": float})
    return frame.sort_values([*KEYS, *ROW_KEYS], kind="stable", ignore_index=True)


def _roles(tests: tuple[TestRecord, ...]) -> pd.DataFrame:
    rows = [{"unit": record.unit, **record.role.model_dump()} for record in tests]
    return pd.DataFrame(rows, columns=list(ROLE_COLUMNS))


def tested_splits(frame: pd.DataFrame) -> list[str]:
    """Splits of test images in a tidy table, clean ones first, then corrupted ones by name; no validation images.

    Example:
        >>> tested_splits(pd.DataFrame({"split": ["val", "test_crop", "train", "test", "test_blur"]}))
        ['test', 'test_blur', 'test_crop']
    """
    return sorted(split for split in set(frame["split"]) if split == "test" or split.startswith("test_"))


def plain_rows(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Rows of a table as dictionaries for JSON, with None in place of nan."""
    return [
        {str(key): None if isinstance(value, float) and value != value else value for key, value in line.items()}
        for line in frame.to_dict("records")
    ]


def write_metrics(results: Results, root: Path) -> Path | None:
    """Write the tidy table (one measured value per row) as ``metrics.csv`` to the folder ``root``.

    Returns:
        The file, or None if no test is finished.
    """
    if results.frame.empty:
        return None
    path = root / "metrics.csv"
    write_atomic(path, csv_text(results.frame).encode())
    return path
