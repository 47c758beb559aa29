"""Tables and figures of the papers as data: what is run for them, and how their cells are read.

The definitions are the files ``results/published/reproduce/*.toml``, one per paper.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ..errors import UnknownName

How = Literal["", "difference", "relative change", "ratio to the first row", "smallest"]
"""How a value follows from others: ``first - second``, ``100 (first - second) / |second|``, a column over its first
row, or the smallest of some rows."""

Where = Mapping[str, str]
"""Values of columns of a file of published numbers."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Reads(_Entry):
    """The rows of the tidy table that a cell is the mean of.

    Attributes:
        metric: Metric.
        split: Its split.
        variant: Its variant; of several, the first that there is.
        scorer: Scorer; ``own`` is the method's, and stands for none where the metric has none.
        confidence: Confidence; ``own`` is the one that is quoted for the method.
        fraction: Share removed, of filter-out curves.
    """

    metric: str = ""
    split: str = "test"
    variant: tuple[str, ...] = ("",)
    scorer: str = "own"
    confidence: str = ""
    fraction: float | None = None


class Column(_Entry):
    """A column: a value that is read, or one that follows from other columns.

    Attributes:
        title: Heading, by which other columns refer to it.
        reads: What is read; None if the column follows from others.
        of: Titles of the columns it follows from.
        how: How.
        where: What the published numbers of this column have in common.
        factor: From our unit to the paper's.
        digits: Digits after the point.
        not_on: Data sets for which the paper has no such column.
        x: Place on the axis of a figure of curves.
    """

    title: str
    reads: Reads | None = None
    of: tuple[str, ...] = ()
    how: How = ""
    where: Where = Field(default_factory=dict)
    factor: float = 1.0
    digits: int | None = None
    not_on: tuple[str, ...] = ()
    x: float | None = None

    @property
    def decimals(self) -> int:
        """Digits after the point: of percentages two, of the rest three, if nothing else is said."""
        return self.digits if self.digits is not None else (2 if self.factor == 100.0 or self.how else 3)


class Row(_Entry):
    """A row: a run, or something that follows from other rows.

    Attributes:
        title: Name in the paper, by which other rows refer to it.
        method: Our method; ``$base`` is the recipe's base of two-stage methods.
        set: Values to pin, as for ``--set``.
        set_photographs: Values to pin on photographs only.
        set_on: Values to pin on single data sets.
        select_by: Scorer whose validation MAP@R selects; the method's own if empty.
        network: ``BACKBONE/DIM``, if not the item's.
        reads: What the cells of this row read differently: ``scorer``, ``confidence``.
        of: Titles of the rows it follows from.
        how: How.
        columns: Titles of the only columns it has a value in; all if empty.
        where: Which published numbers are about it; None if none is.
        quoted: Numbers of the paper's text, by data set and title of the column.
        differs: What differs from the paper in this row.
        x: Place on the axis of a figure of a sweep.
    """

    title: str
    method: str = ""
    set: tuple[str, ...] = ()
    set_photographs: tuple[str, ...] = ()
    set_on: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    select_by: str = ""
    network: str = ""
    reads: Mapping[str, str] = Field(default_factory=dict)
    of: tuple[str, ...] = ()
    how: How = ""
    columns: tuple[str, ...] = ()
    where: Where | None = None
    quoted: Mapping[str, Mapping[str, float]] = Field(default_factory=dict)
    differs: str = ""
    x: float | None = None


class Item(_Entry):
    """A table or figure.

    Attributes:
        key: Name within the paper, such as ``table5``.
        title: Heading.
        asks: The question it answers.
        kind: ``runs`` trains and tests; ``timings`` times steps; ``drawing`` needs no data.
        datasets: Our names of its data sets.
        where: What its published numbers have in common.
        network: ``BACKBONE/DIM`` on photographs, if not the paper's.
        rows_of: Name of a list of rows, in front of ``row``.
        columns_of: Name of a list of columns, in front of ``column``.
        row: Its own rows.
        column: Its own columns.
        scorers: Scorers to test with.
        set_photographs: Values to pin in every row, on photographs only.
        figure: Kind of figure to draw; none if empty.
        differences: What forbids a direct comparison, in addition to what holds for the whole paper.
    """

    key: str
    title: str
    asks: str
    kind: Literal["runs", "timings", "drawing"] = "runs"
    datasets: tuple[str, ...] = ()
    where: Where = Field(default_factory=dict)
    network: str = ""
    rows_of: str = ""
    columns_of: str = ""
    row: tuple[Row, ...] = ()
    column: tuple[Column, ...] = ()
    scorers: tuple[str, ...] = ()
    set_photographs: tuple[str, ...] = ()
    figure: str = ""
    differences: tuple[str, ...] = ()


class Paper(_Entry):
    """A paper: its protocol in our terms, its published numbers, its tables and figures.

    Attributes:
        key: Short name.
        title: Full name.
        published: File of its published numbers.
        where: What these have in common.
        protocol: Protocol.
        preset: Preset.
        fidelity: Form of the methods that have several.
        network: ``BACKBONE/DIM`` on photographs.
        seeds: Replicates.
        differences: What forbids a direct comparison of anything.
        datasets: Our names of data sets, with those in the file.
        item: Tables and figures.
        rows: Lists of rows that several items have.
        columns: Lists of columns that several items have.
    """

    key: str
    title: str
    published: str
    where: Where = Field(default_factory=dict)
    protocol: str
    preset: str
    fidelity: str
    network: str
    seeds: int
    differences: tuple[str, ...]
    datasets: Mapping[str, str]
    item: tuple[Item, ...]
    rows: Mapping[str, tuple[Row, ...]] = Field(default_factory=dict)
    columns: Mapping[str, tuple[Column, ...]] = Field(default_factory=dict)


class Named(_Entry):
    """An item with its paper.

    Attributes:
        paper: The paper.
        item: The table or figure.
    """

    paper: Paper
    item: Item

    @property
    def name(self) -> str:
        """Name on the command line, such as ``per/table5``."""
        return f"{self.paper.key}/{self.item.key}"

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, in order."""
        return (*self.paper.rows.get(self.item.rows_of, ()), *self.item.row)

    def columns(self, dataset: str) -> tuple[Column, ...]:
        """Columns that the paper has for a data set."""
        every = (*self.paper.columns.get(self.item.columns_of, ()), *self.item.column)
        return tuple(column for column in every if dataset not in column.not_on)

    def network(self, row: Row) -> tuple[str, int]:
        """Backbone and embedding size of a row, on photographs."""
        backbone, _, dim = (row.network or self.item.network or self.paper.network).partition("/")
        return backbone, int(dim)

    @property
    def differences(self) -> tuple[str, ...]:
        """What forbids a direct comparison, whatever is run: of the paper, of the item, of single rows."""
        of_rows: dict[str, list[str]] = {}
        for row in self.rows:
            if row.differs:
                of_rows.setdefault(row.differs, []).append(row.title)
        told = (f"{', '.join(titles)}: {text}" for text, titles in of_rows.items())
        return (*self.paper.differences, *self.item.differences, *told)


@cache
def papers() -> tuple[Paper, ...]:
    """Every paper with its tables and figures, in the order of their files."""
    folder = files("bench.results.published").joinpath("reproduce")
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(Paper.model_validate(tomllib.loads(file.read_text())) for file in found)


def every_item() -> dict[str, Named]:
    """Every table and figure by name."""
    named = (Named(paper=paper, item=item) for paper in papers() for item in paper.item)
    return {each.name: each for each in named}


def find_item(name: str) -> Named:
    """A table or figure by name.

    Raises:
        UnknownName: With the nearest name that exists.
    """
    known = every_item()
    if name not in known:
        raise UnknownName("table or figure", name, known)
    return known[name]
