"""The tidy table: one value per row, a pure function of the test records, and the tables that regroup its rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..errors import UserError
from ..protocols.rows import SplitRow, cost_of, kind_of
from ..store.files import atomic_file
from ..store.folder import Store
from ..store.records import COLUMNS, KEYS, LAYOUT, ROW_KEYS, Columns, Layout, RescoreRecord, Role, Rows, TestRecord
from ..store.specs import Pinned, versions_text
from .contender import CONTENDER_KEYS, Contender
from .render import csv_text
from .table import grouped


class Measured(NamedTuple):
    """Values of a test and of its rescorings; ``units`` measured them: one for each row, or one for all."""

    columns: Columns
    role: Role
    rows: Rows
    units: tuple[str, ...]

    @classmethod
    def of(cls, record: TestRecord, rescorings: Sequence[RescoreRecord]) -> Measured:
        """Values of a test, with those of its rescorings in their place if they differ."""
        if not rescorings:
            return cls(record.columns, record.role, Rows.of(record.rows), (record.unit,))
        held = {_key(row): (row, record.unit) for row in record.rows}
        for each in rescorings:
            for row in each.rows:
                known = held.get(_key(row))
                if known is None or known[0]["value"] != row["value"]:  # equal ones keep the unit that measured them
                    held[_key(row)] = row, each.unit
        rows, units = zip(*held.values()) if held else ((), ())
        return cls(record.columns, record.role, Rows.of(rows), units)


def _key(row: SplitRow) -> tuple[object, ...]:
    return tuple(row.get(name) for name in ROW_KEYS)


@dataclass(frozen=True)
class Results:
    """The finished tests of a results folder; of several tests of a method, setting and seed, only the latest counts.

    Attributes:
        superseded: Number of records that do not count: there is a later one, or they froze a source of randomness.
        rescorings: Rescorings of the tests that count, also on class splits, the earliest first.
        splits: Records of runs on class splits that are not a data set's own, which table ``splits`` compares.
    """

    tests: tuple[TestRecord, ...]
    superseded: int = 0
    rescorings: tuple[RescoreRecord, ...] = ()
    splits: tuple[TestRecord, ...] = ()

    @cached_property
    def measured(self) -> tuple[Measured, ...]:
        """Values of the tests, sorted by :data:`~bench.store.records.KEYS`."""
        by_test = grouped(self.rescorings, lambda record: record.spec.test)
        every = [Measured.of(record, by_test.get(record.unit, ())) for record in self.tests]
        return tuple(sorted(every, key=lambda each: tuple(getattr(each.columns, name) for name in KEYS)))

    @property
    def trained(self) -> frozenset[str]:
        """Ids of the tested trainings."""
        return frozenset(unit for test in (*self.tests, *self.splits) for unit in test.spec.train)

    @property
    def frame(self) -> pd.DataFrame:
        """Tidy table of results (``metrics.csv``), one row per measured value."""
        return self.rows()[list(COLUMNS)]

    @cached_property
    def heads(self) -> pd.DataFrame:
        """What is measured, a line each, sorted, of every layout."""
        keys = [layout.keys[at] for layout in self._starts for at in layout.order]
        columns = zip(*keys) if keys else [()] * len(LAYOUT)
        return pd.DataFrame(dict(zip(LAYOUT, map(_column, columns)))).astype({"fraction": float})

    @cached_property
    def _starts(self) -> dict[Layout, int]:
        """Number of the first line of each layout."""
        layouts = list(dict.fromkeys(each.rows.layout for each in self.measured))
        return dict(zip(layouts, accumulate((len(layout.keys) for layout in layouts), initial=0)))

    def choose(self, wanted: str, dataset: str = "") -> tuple[np.ndarray, ...]:
        """Values of a data set or of all for which an expression in columns of ``heads`` holds.

        Four arrays: numbers of their tests, their lines in ``heads``, their places in the rows of their tests, values.
        """
        kept = np.array(self.heads.eval(wanted, engine="python"), dtype=bool)
        of_layout = {}
        for layout, start in self._starts.items():
            lines = np.flatnonzero(kept[start : start + len(layout.keys)])
            of_layout[layout] = lines + start, np.array(layout.order, dtype=int)[lines]
        found = [(np.empty(0, int), np.empty(0, int), np.empty(0, int), np.empty(0))]
        for at, each in enumerate(self.measured):
            if dataset in ("", each.columns.dataset):
                lines, places = of_layout[each.rows.layout]
                found.append((np.full(len(lines), at), lines, places, np.asarray(each.rows.values)[places]))
        return tuple(map(np.concatenate, zip(*found)))

    def rows(self, wanted: str = "metric == metric", dataset: str = "") -> pd.DataFrame:
        """Rows of the tidy table with the columns of the roles of their tests; most uses want a small part of it."""
        of, lines, at, values = self.choose(wanted, dataset)
        names = {unit: at for at, unit in enumerate(sorted({unit for each in self.measured for unit in each.units}))}
        places = np.cumsum([0, *(len(each.units) for each in self.measured)])
        single = np.array([len(each.units) == 1 for each in self.measured], dtype=bool)
        codes = np.array([names[unit] for each in self.measured for unit in each.units], dtype=int)
        made = codes[places[of] + np.where(single[of], 0, at)]
        tests = {name: _column(getattr(each.columns, name) for each in self.measured) for name in KEYS}
        roles = {name: _column(getattr(each.role, name) for each in self.measured) for name in Role.model_fields}
        table = {name: column.iloc[of].array for name, column in tests.items()}
        table |= {name: self.heads[name].iloc[lines].array for name in LAYOUT}
        table |= {"value": values, "unit": pd.Categorical.from_codes(made, pd.Index(list(names), dtype="str"))}
        table |= {name: column.iloc[of].array for name, column in roles.items()}
        return pd.DataFrame(table)[[*COLUMNS, *Role.model_fields]]


def rescorings(stores: Iterable[Store], tests: Collection[TestRecord]) -> tuple[RescoreRecord, ...]:
    """Rescorings of some tests, the earliest first, without those of other arrays: another machine's of the same id.

    Models side by side have the arrays of the test of the same models one by one; without these all rescorings count.
    """
    kept = {test.spec.train: test.files for test in tests if test.files}
    files = {test.unit: test.files or kept.get(test.spec.train, {}) for test in tests}
    found = (each for store in stores for each in store.rescorings() if each.spec.test in files)
    own = (each for each in found if {**each.spec.arrays, **files[each.spec.test]}.items() >= each.spec.arrays.items())
    return tuple(sorted(own, key=lambda each: (each.finished, each.unit)))


def collect(*stores: Store) -> Results:
    """Read the records of all finished tests of results folders, taken together, and tabulate them.

    If the same method, setting and seed was tested several times, only the latest test counts. Values of rescorings
    join those of their test if they were made from its arrays; of two, the later counts.

    Raises:
        UserError: If records of one data set were tested on different images, or a value is infinite.
    """
    latest: dict[tuple[object, ...], TestRecord] = {}
    different: set[tuple[object, ...]] = set()
    for record in (record for store in stores for record in store.tests()):
        different.add((record.cell, record.unit, record.finished))  # a folder may be a copy of another
        if record.columns.pinned.frozen_source:
            continue  # no table compares these with results in which everything varies
        key = tuple(getattr(record.columns, name) for name in KEYS)
        if key not in latest or record.finished > latest[key].finished:
            latest[key] = record
    _check_images(latest.values())
    kinds = grouped(latest.values(), lambda record: record.columns.pinned.class_seed > 0)
    tests, splits = (tuple(kinds.get(of_split, ())) for of_split in (False, True))
    results = Results(tests, len(different) - len(latest), rescorings(stores, latest.values()), splits)
    for columns, _, rows, _ in results.measured:
        if np.isinf(rows.values).any():
            metric = next(row["metric"] for row in rows if row["value"] in (float("inf"), -float("inf")))
            raise UserError(
                f"{columns.method} on {columns.dataset}, seed {columns.seed}: {metric} is infinite, which no test"
                " writes; remove that test and run it again"
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


def _column(values: Iterable[object]) -> pd.Series[Any]:
    """A column of the tidy table: texts and fixed settings are categories, in sorted order."""
    every = list(values)
    if not every or not isinstance(every[0], str | Pinned):
        return pd.Series(every)
    kinds = {kind: place for place, kind in enumerate(sorted(set(every)))}  # type: ignore[type-var]
    return pd.Series(pd.Categorical.from_codes([kinds[each] for each in every], pd.Index(list(kinds))))


def as_texts(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy of some rows of the tidy table with texts in place of categories, as users have it."""
    held = {name: kind.categories for name, kind in frame.dtypes.items() if isinstance(kind, pd.CategoricalDtype)}
    return frame.astype({name: "str" if isinstance(of.dtype, pd.StringDtype) else object for name, of in held.items()})


def tested_splits(splits: Iterable[str]) -> list[str]:
    """Splits of test images among others, clean ones first, then corrupted ones by name; no validation images.

    Example:
        >>> tested_splits(["val", "test_crop", "train", "test", "test_blur", "test"])
        ['test', 'test_blur', 'test_crop']
    """
    return sorted(split for split in set(splits) if split == "test" or split.startswith("test_"))


def _over_seeds(results: Results, wanted: str, *columns: str) -> pd.DataFrame:
    """Mean, SD and number of seeds of every contender by these columns."""
    (of, at, _, values), heads = results.choose(wanted), results.heads
    every = [Contender.of_columns(each.columns) for each in results.measured]
    contenders = {contender: at for at, contender in enumerate(sorted(set(every)))}
    kinds = heads.groupby(list(columns), observed=True, dropna=False).ngroup()
    owner = np.array([contenders[each] for each in every], dtype=int)
    cells = owner[of] * len(heads) + kinds.to_numpy()[at]
    found = pd.Series(values).groupby(cells).agg(mean="mean", sd="std", seeds="count")
    owners, kind = np.divmod(found.index.to_numpy(dtype=int), max(len(heads), 1))
    table = {name: _column(getattr(each, name) for each in contenders) for name in CONTENDER_KEYS}
    table = {name: column.iloc[owners].array for name, column in table.items()}
    lines = heads[~kinds.duplicated()].set_index(kinds[~kinds.duplicated()]).loc[kind]
    return pd.DataFrame({**table, **{name: lines[name].array for name in columns}, **found.reset_index(drop=True)})


def scorers(results: Results) -> pd.DataFrame:
    """Table of retrieval and verification metrics by contender and scorer, over the seeds that have a value."""
    wanted = "scorer != '' and confidence == '' and fraction != fraction"
    return _over_seeds(results, wanted, "split", "scorer", "variant", "metric")


def confidences(results: Results) -> pd.DataFrame:
    """Table of the metrics that judge a confidence, for every one of every contender, with its kind and its cost."""
    wanted = f"split in {tested_splits(results.heads['split'])!r} and confidence != '' and fraction != fraction"
    table = _over_seeds(results, wanted, "split", "scorer", "confidence", "variant", "metric")
    for name, of in (("cost", cost_of), ("kind", kind_of)):
        table.insert(list(table.columns).index("confidence") + 1, name, table["confidence"].map(of))
    return table


def provenance(results: Results, codes: Mapping[str, str]) -> pd.DataFrame:
    """Table with where, when, and with which code and data each test was made, and each rescoring of it.

    ``codes`` are those of the trainings by their ids; column ``trained_by`` has those of the tested networks.
    """
    tests = {test.unit: test for test in results.tests}
    rows = [_origin(test, test, " ".join(test.files[name] for name in sorted(test.files))) for test in tests.values()]
    for each in results.rescorings:
        arrays = " ".join(each.spec.arrays.values())
        rows += [_origin(tests[each.spec.test], each, arrays)] if each.spec.test in tests else []
    for row in rows:
        trained = tests[str(row["rescored"] or row["unit"])].spec.train
        row["trained_by"] = "; ".join(dict.fromkeys(codes[unit] for unit in trained if unit in codes))
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
    if not any(len(each.rows) for each in results.measured):
        return None
    root.stat()  # a folder that was deleted meanwhile is not made again; see write_file
    path = root / "metrics.csv"
    with atomic_file(path) as file:
        file.write(f"{','.join(COLUMNS)}\n".encode())
        for test in _csv_lines(results.measured):
            file.write(test.encode())
    return path


def _csv_lines(measured: Iterable[Measured]) -> Iterator[str]:
    """Lines of the tidy table, test by test: the whole table would take gigabytes."""
    cell_text = lru_cache(maxsize=None, typed=True)(csv_text)  # a million keys of a few thousand cells

    @cache
    def texts(layout: Layout) -> list[tuple[str, str]]:
        keys = (layout.keys[at] for at in layout.order)
        cells = ([cell_text("" if each is None else each) for each in key] for key in keys)
        return [(f"{','.join(cell[: len(ROW_KEYS)])},", f",{','.join(cell[len(ROW_KEYS) :])},") for cell in cells]

    for columns, _, rows, units in measured:
        start = "".join(f"{csv_text(getattr(columns, name))}," for name in KEYS)
        order = rows.layout.order
        values = ("" if value != value else repr(value) for value in map(rows.values.__getitem__, order))
        ends = [f"{csv_text(unit)}\n" for unit in units]
        ends = [ends[at] for at in order] if len(ends) > 1 else ends * len(order)
        yield "".join([f"{start}{a}{value}{b}{end}" for (a, b), value, end in zip(texts(rows.layout), values, ends)])
