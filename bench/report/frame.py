"""The tidy table: one value per row, a pure function of the test records, and the tables that regroup its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import UserError
from ..protocols.rows import SplitRow, cost_of, kind_of
from ..store.files import write_atomic
from ..store.folder import Store
from ..store.records import COLUMNS, KEYS, ROW_KEYS, RescoreRecord, Role, TestRecord
from ..store.specs import Pinned, versions_text
from .contender import CONTENDER_KEYS
from .render import to_csv
from .table import grouped

ROLE_COLUMNS = ("unit", *Role.model_fields)


@dataclass(frozen=True)
class Results:
    """The finished tests of a results folder; of several tests of a method, setting and seed, only the latest counts.

    Attributes:
        superseded: Number of records that do not count: there is a later one, or they froze a source of randomness.
        splits: Records of runs on class splits that are not a data set's own, which table ``splits`` compares.
        rescorings: Rescorings of the tests that count, also on class splits, the earliest first.
        frame: Tidy table of results (``metrics.csv``), one row per measured value.
        roles: Table with one row per test and rescoring: its id and its :class:`~bench.store.records.Role`.
    """

    tests: tuple[TestRecord, ...]
    superseded: int
    frame: pd.DataFrame
    roles: pd.DataFrame
    rescorings: tuple[RescoreRecord, ...] = ()
    splits: tuple[TestRecord, ...] = ()

    @cached_property
    def merged(self) -> pd.DataFrame:
        """Tidy table, joined with the columns of the roles."""
        units = self.frame["unit"].cat
        roles = self.roles.set_index("unit").reindex(units.categories)
        roles = roles.astype({name: "category" for name, kind in roles.dtypes.items() if _is_text(kind)})
        return pd.concat([self.frame, roles.iloc[units.codes].reset_index(drop=True)], axis="columns")

    @property
    def trained(self) -> frozenset[str]:
        """Ids of the tested trainings."""
        return frozenset(unit for test in (*self.tests, *self.splits) for unit in test.spec.train)

    @classmethod
    def of(
        cls,
        tests: tuple[TestRecord, ...],
        superseded: int = 0,
        rescorings: tuple[RescoreRecord, ...] = (),
        splits: tuple[TestRecord, ...] = (),
    ) -> Results:
        """Tabulate test records: one table with one measured value per row, one with the role of each test."""
        units = {record.unit for record in tests}
        own = [record for record in rescorings if record.spec.test in units]
        return cls(tests, superseded, _tidy(tests, own), _roles(tests, own), rescorings, splits)


def _measured(record: TestRecord, rescorings: Sequence[RescoreRecord]) -> list[tuple[SplitRow, str]]:
    """Values of a test and its rescorings, each with the unit that measured it."""
    if not rescorings:
        return [(row, record.unit) for row in record.rows]
    held = {_key(row): (row, record.unit) for row in record.rows}
    for each in rescorings:
        for row in each.rows:
            known = held.get(_key(row))
            if known is None or known[0]["value"] != row["value"]:  # equal ones keep the unit that measured them
                held[_key(row)] = row, each.unit
    return list(held.values())


def _key(row: SplitRow) -> tuple[object, ...]:
    return tuple(row.get(name) for name in ROW_KEYS)


def collect(*stores: Store) -> Results:
    """Read the records of all finished tests of results folders, taken together, and tabulate them.

    If the same method, setting and seed was tested several times, only the latest test counts. Values of rescorings
    join those of their test; of two, the later counts.

    Raises:
        UserError: If records of one data set were tested on different images, or a value is infinite.
    """
    latest: dict[tuple[object, ...], TestRecord] = {}
    count = 0
    for record in (record for store in stores for record in store.tests()):
        count += 1
        if record.columns.pinned.frozen_source:
            continue  # no table compares these with results in which everything varies
        key = tuple(getattr(record.columns, name) for name in KEYS)
        if key not in latest or record.finished > latest[key].finished:
            latest[key] = record
    _check_images(latest.values())
    kinds = grouped(latest.values(), lambda record: record.columns.pinned.class_seed > 0)
    tests, splits = (tuple(kinds.get(of_split, ())) for of_split in (False, True))
    units = {record.unit for record in (*tests, *splits)}
    rescorings = (record for store in stores for record in store.rescorings() if record.spec.test in units)
    ordered = sorted(rescorings, key=lambda record: (record.finished, record.unit))
    results = Results.of(tests, count - len(latest), tuple(ordered), splits)
    infinite = results.frame[np.isinf(results.frame["value"])]
    if len(infinite):
        first = infinite.iloc[0]
        place = f"{first['method']} on {first['dataset']}, seed {first['seed']}"
        raise UserError(
            f"{place}: {first['metric']} is infinite, which no test writes; remove that test and run it again"
        )
    return results


def _check_images(records: Iterable[TestRecord]) -> None:
    first: dict[tuple[object, ...], TestRecord] = {}
    for record in records:
        pinned = record.columns.pinned
        of_data = sorted(item for item in pinned.settings.items() if item[0].startswith("data."))
        place = record.columns.dataset, pinned.partial, pinned.class_seed, str(of_data)
        other = first.setdefault(place, record)
        if other.manifests.get("test") != record.manifests.get("test"):
            named = (f"{each.columns.method} (seed {each.columns.seed})" for each in (other, record))
            raise UserError(
                f"two data sets are called {record.columns.dataset}: the test images of {' and '.join(named)} differ;"
                " keep their results in folders of their own, or run one of them again"
            )


def _tidy(tests: Iterable[TestRecord], rescorings: Iterable[RescoreRecord]) -> pd.DataFrame:
    by_test = grouped(rescorings, lambda record: record.spec.test)
    measured = [(record.columns, _measured(record, by_test.get(record.unit, ()))) for record in tests]
    # By column: a dictionary per row takes several times the memory. Texts are slower to select than their categories.
    test = np.repeat(np.arange(len(measured)), [len(values) for _, values in measured])
    table = {name: _column(getattr(columns, name) for columns, _ in measured).iloc[test] for name in KEYS}
    table = {name: column.reset_index(drop=True) for name, column in table.items()}
    rows = [row for _, values in measured for row, _ in values]
    for name in (*ROW_KEYS, "value", "n_queries", "n_lone"):
        table[name] = _column([row.get(name) for row in rows])
    table["unit"] = pd.Series([unit for _, values in measured for _, unit in values]).astype("category")
    frame = pd.DataFrame(table, columns=list(COLUMNS)).astype({"value": float, "fraction": float})
    return frame.sort_values([*KEYS, *ROW_KEYS], kind="stable", ignore_index=True)


def _column(values: Iterable[object]) -> pd.Series[Any]:
    """A column of the tidy table: texts and fixed settings are categories, in sorted order."""
    every = list(values)
    if not every or not isinstance(every[0], str | Pinned):
        return pd.Series(every)
    kinds = {kind: place for place, kind in enumerate(sorted(set(every)))}  # type: ignore[type-var]
    return pd.Series(pd.Categorical.from_codes([kinds[each] for each in every], pd.Index(list(kinds))))


def _is_text(kind: object) -> bool:
    return isinstance(kind, pd.StringDtype)


def as_texts(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy of some rows of the tidy table with texts in place of categories, as users have it."""
    held = {name: kind.categories for name, kind in frame.dtypes.items() if isinstance(kind, pd.CategoricalDtype)}
    return frame.astype({name: "str" if _is_text(kinds.dtype) else object for name, kinds in held.items()})


def _roles(tests: Iterable[TestRecord], rescorings: Iterable[RescoreRecord]) -> pd.DataFrame:
    roles = {record.unit: dict(record.role) for record in tests}
    rows = [{"unit": unit, **role} for unit, role in roles.items()]
    rows += [{"unit": record.unit, **roles[record.spec.test]} for record in rescorings]
    return pd.DataFrame(rows, columns=list(ROLE_COLUMNS))


def tested_splits(splits: Iterable[str]) -> list[str]:
    """Splits of test images among others, clean ones first, then corrupted ones by name; no validation images.

    Example:
        >>> tested_splits(["val", "test_crop", "train", "test", "test_blur", "test"])
        ['test', 'test_blur', 'test_crop']
    """
    return sorted(split for split in set(splits) if split == "test" or split.startswith("test_"))


def _over_seeds(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Mean, SD and number of seeds of every contender by these columns."""
    grouped = rows.groupby([*CONTENDER_KEYS, *columns], sort=True, dropna=False, observed=True)["value"]
    return grouped.agg(mean="mean", sd="std", seeds="count").reset_index()


def scorers(frame: pd.DataFrame) -> pd.DataFrame:
    """Table of retrieval and verification metrics by contender and scorer, over the seeds that have a value."""
    rows = frame[(frame["scorer"] != "") & (frame["confidence"] == "") & frame["fraction"].isna()]
    return _over_seeds(rows, "split", "scorer", "variant", "metric")


def confidences(frame: pd.DataFrame) -> pd.DataFrame:
    """Table of the metrics that judge a confidence, for every one of every contender, with its kind and its cost."""
    tested = frame["split"].isin(tested_splits(frame["split"]))
    rows = frame[tested & (frame["confidence"] != "") & frame["fraction"].isna()]
    rows = rows.assign(kind=rows["confidence"].map(kind_of), cost=rows["confidence"].map(cost_of))
    return _over_seeds(rows, "split", "scorer", "confidence", "kind", "cost", "variant", "metric")


def provenance(results: Results) -> pd.DataFrame:
    """Table with where, when, and with which code and data each test was made, and each rescoring of it."""
    tests = {test.unit: test for test in results.tests}
    rows = [_origin(test, test, " ".join(test.files[name] for name in sorted(test.files))) for test in tests.values()]
    for each in results.rescorings:
        arrays = " ".join(each.spec.arrays.values())
        rows += [_origin(tests[each.spec.test], each, arrays)] if each.spec.test in tests else []
    frame = pd.DataFrame(rows)
    return frame.sort_values([*KEYS, "rescored", "unit"], kind="stable", ignore_index=True) if rows else frame


def _origin(test: TestRecord, made: TestRecord | RescoreRecord, embeddings: str) -> dict[str, object]:
    """Row of a test, or of a rescoring of it: ``rescored`` is then the id of the test."""
    environment = made.environment
    rescoring = made if isinstance(made, RescoreRecord) else None
    return {
        **dict(test.columns),
        "unit": made.unit,
        "rescored": rescoring.spec.test if rescoring else "",
        "where": environment.processor,
        "commit": environment.commit,
        "code": versions_text(made.spec.versions),
        "bench": environment.bench,
        "torch": environment.torch,
        "python": environment.python,
        "device": environment.device,
        "finished": datetime.fromtimestamp(int(made.finished), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "data": test.manifests.get("test", ""),
        "embeddings": embeddings,
        "largest_difference": rescoring.largest_difference if rescoring else None,
    }


def plain_rows(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Rows of a table as dictionaries for JSON, with None in place of nan."""
    return [{str(key): _plain(value) for key, value in line.items()} for line in frame.to_dict("records")]


def _plain(value: object) -> object:
    if isinstance(value, Pinned):
        return value.text
    return None if isinstance(value, float) and value != value else value


def write_metrics(results: Results, root: Path) -> Path | None:
    """Write the tidy table as ``metrics.csv`` to the folder ``root``; None if no test is finished."""
    if results.frame.empty:
        return None
    root.stat()  # a folder that was deleted meanwhile is not made again; see write_file
    path = root / "metrics.csv"
    write_atomic(path, to_csv(results.frame).encode())
    return path
