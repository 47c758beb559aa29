"""Tables and figures of the papers as data: what is run for them, how their cells are read, what was published.

The definitions are the files ``results/published/reproduce/*.toml``, one per paper; docs/reproduce.md explains them.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ..errors import require_known

FOLDER = files("bench.published")

UNPUBLISHED = "no published value"
"""Text for a value of ours that the paper has no number for."""

How = Literal["", "difference", "relative change", "ratio to the first row", "smallest"]
"""Rule by which a value follows from others: ``first - second``, ``100 (first - second) / |second|``, a column over its
first row, or the smallest of some rows."""

Where = Mapping[str, str]
"""Wanted entries of a line of published numbers, by column of their CSV file."""


class Entry(BaseModel):
    """Part of a TOML file, in which every key is known."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class Reads(Entry):
    """Selection of the measured values that make up a cell of a paper's table, one value per seed."""

    metric: str = ""
    split: str = "test"
    variant: tuple[str, ...] = ("",)  # the first that was measured counts
    scorer: str = "own"  # that of the method, or none if the metric depends on no scorer
    confidence: str = ""  # "own" is the method's default one
    fraction: float | None = None  # share of images removed, for a point of a filter-out curve


class Column(Entry):
    """A column of a paper's table: measured values, or values that are computed from other columns."""

    title: str
    reads: Reads | None = None  # None if it is computed from others
    of: tuple[str, ...] = ()  # titles of the columns it is computed from
    how: How = ""
    where: Where = Field(default_factory=dict)
    factor: float = 1.0  # from our unit to the paper's
    digits: int | None = None
    not_on: tuple[str, ...] = ()  # data sets for which the paper has no such column
    x: float | None = None  # place on the horizontal axis, if the table is drawn as curves

    @property
    def decimals(self) -> int:
        """Digits after the decimal point: ``digits``, else two for percentages and computed columns, else three."""
        return self.digits if self.digits is not None else (2 if self.factor == 100.0 or self.how else 3)


class Row(Entry):
    """A row of a paper's table: a run of ours, or values that are computed from other rows."""

    title: str
    method: str = ""  # empty for a row without a run; "$base" is the recipe's base of two-stage methods
    set: tuple[str, ...] = ()  # settings to fix, as for ``bench run --set``
    set_photographs: tuple[str, ...] = ()
    set_on: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)  # by data set
    select_by: str = ""  # scorer whose validation MAP@R selects the model; the method's own if empty
    network: str = ""  # BACKBONE/DIM; that of the item if empty
    reads: Mapping[str, str] = Field(default_factory=dict)  # what replaces parts of the columns' ``reads``
    of: tuple[str, ...] = ()
    how: How = ""
    columns: tuple[str, ...] = ()  # titles of the columns it has a value in; all if empty
    where: Where | None = None  # None if no published number belongs to it
    quoted: Mapping[str, Mapping[str, float]] = Field(default_factory=dict)  # from the text, by data set and column
    differs: str = ""  # what our run does differently from the paper's
    x: float | None = None  # place on the horizontal axis, if a setting is swept

    def has(self, column: Column) -> bool:
        """Whether the row has a value in a column."""
        return not self.columns or column.title in self.columns


class Item(Entry):
    """Definition of a table or figure of a paper: the runs of ours that reproduce it, and its layout."""

    key: str
    title: str
    asks: str
    kind: Literal["runs", "timings", "drawing"] = "runs"  # timings measures steps, a drawing needs no results
    datasets: tuple[str, ...] = ()
    where: Where = Field(default_factory=dict)
    network: str = ""  # BACKBONE/DIM on photographs; that of the paper if empty
    rows_of: str = ""  # list of rows that tables of the paper share, before its own
    columns_of: str = ""
    row: tuple[Row, ...] = ()
    column: tuple[Column, ...] = ()
    scorers: tuple[str, ...] = ()  # to test with, in addition to each method's own
    set_photographs: tuple[str, ...] = ()
    figure: str = ""  # curves, sweep or points of its values, or the name of a figure of ``bench report``
    differences: tuple[str, ...] = ()  # what forbids a direct comparison


class Paper(Entry):
    """Definition of a paper to reproduce: its protocol in our terms, its published numbers, its tables and figures."""

    key: str
    title: str
    published: str  # CSV file of its published numbers
    where: Where = Field(default_factory=dict)
    protocol: str
    preset: str
    fidelity: str
    network: str  # BACKBONE/DIM on photographs
    seeds: int
    differences: tuple[str, ...]
    datasets: Mapping[str, str]  # names in the file of published numbers, by our names
    item: tuple[Item, ...]
    rows: Mapping[str, tuple[Row, ...]] = Field(default_factory=dict)  # shared by several items
    columns: Mapping[str, tuple[Column, ...]] = Field(default_factory=dict)


class Named(Entry):
    """A table or figure together with its paper, which gives the first part of its name and default settings."""

    paper: Paper
    item: Item

    @property
    def name(self) -> str:
        """Name on the command line, such as ``per/table5``."""
        return f"{self.paper.key}/{self.item.key}"

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows: those shared with other tables of the paper, then its own."""
        return (*self.paper.rows.get(self.item.rows_of, ()), *self.item.row)

    def columns(self, dataset: str) -> tuple[Column, ...]:
        """Columns of the table for a data set, without those that the paper does not have for it."""
        every = (*self.paper.columns.get(self.item.columns_of, ()), *self.item.column)
        return tuple(column for column in every if dataset not in column.not_on)

    def network(self, row: Row) -> tuple[str, int]:
        """Backbone and embedding size of a row on photographs; other data sets have a network of their own."""
        backbone, _, dim = (row.network or self.item.network or self.paper.network).partition("/")
        return backbone, int(dim)

    @property
    def differences(self) -> tuple[str, ...]:
        """Reasons not to compare our values directly with the paper's: of the whole paper, this table, single rows."""
        texts = dict.fromkeys(row.differs for row in self.rows if row.differs)
        told = (f"{', '.join(row.title for row in self.rows if row.differs == text)}: {text}" for text in texts)
        return (*self.paper.differences, *self.item.differences, *told)


class Published(Entry):
    """A number that a paper published, in the paper's unit, with its text as printed; its SD is nan if there is none.

    A number that stands in the paper's text instead of a table has no line in the CSV file.
    """

    model_config = ConfigDict(str_strip_whitespace=False)

    mean: float
    text: str
    sd: float = float("nan")
    note: str = ""
    line: Where = Field(default_factory=dict)

    def fits(self, where: Where) -> bool:
        """Whether its line of the CSV file has the wanted entries."""
        return where.items() <= self.line.items()


@cache
def numbers(name: str) -> tuple[Published, ...]:
    """The published numbers of a CSV file, line by line."""
    return tuple(
        Published(
            mean=float(line["mean"]),
            text=f"{line['mean']} ± {line['std']}" if line["std"] else line["mean"],
            sd=float(line["std"] or "nan"),
            note=line["note"],
            line=line,
        )
        for line in csv.DictReader(FOLDER.joinpath(name).read_text().splitlines())
    )


def published_value(named: Named, row: Row, column: Column, dataset: str) -> Published | None:
    """Published number that belongs to a cell of a paper's table; None if there is none.

    Raises:
        ValueError: If several published numbers match the cell.
    """
    paper, item = named.paper, named.item
    if row.where is None or dataset not in item.datasets or not row.has(column):
        return None
    # A column without published numbers of its own says so by having nothing to look for.
    metric = {**item.where, **column.where, **row.where}
    if "metric" not in metric:
        return None
    where = {**paper.where, "dataset": paper.datasets[dataset], **metric}
    found = [number for number in numbers(paper.published) if number.fits(where)]
    if len(found) > 1:
        raise ValueError(f"{named.name}: {len(found)} published numbers fit {where}")
    return found[0] if found else None


def quoted_rows(named: Named, dataset: str) -> dict[str, dict[str, Published]]:
    """Numbers that a paper's table quotes from other papers, by title of the row and of the column."""
    paper, item = named.paper, named.item
    if dataset not in item.datasets:
        return {}
    columns = named.columns(dataset)
    own = [published_value(named, row, column, dataset) for row in named.rows for column in columns]
    where = {**paper.where, **item.where, "dataset": paper.datasets[dataset]}
    rows: dict[str, dict[str, Published]] = {}
    for number in numbers(paper.published):
        if number.fits(where) and not any(number is each for each in own):
            column = next(column for column in columns if column.where and number.fits(column.where))
            network = "/".join(filter(None, (number.line.get("arch"), number.line.get("dim"))))
            title = ", ".join(filter(None, (number.line["method"], network)))
            rows.setdefault(title, {})[column.title] = number
    return rows


@cache
def papers() -> tuple[Paper, ...]:
    """The definitions of all papers, sorted by file name."""
    found = (file for file in FOLDER.joinpath("reproduce").iterdir() if file.name.endswith(".toml"))
    read = (tomllib.loads(file.read_text()) for file in sorted(found, key=lambda file: file.name))
    return tuple(Paper.model_validate(table) for table in read)


def every_item() -> dict[str, Named]:
    """Every table and figure of every paper by name, such as ``per/table5``."""
    named = (Named(paper=paper, item=item) for paper in papers() for item in paper.item)
    return {each.name: each for each in named}


def find_item(name: str) -> Named:
    """Look up a table or figure by name, such as ``per/table5``.

    Raises:
        UnknownName: If there is none; the message has the nearest name that exists.
    """
    known = every_item()
    require_known("table or figure", [name], known)
    return known[name]
