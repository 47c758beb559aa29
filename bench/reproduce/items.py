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
"""Rule by which a value follows from others: ``first - second``, ``100 (first - second) / |second|``, a column over its
first row, or the smallest of some rows."""

Where = Mapping[str, str]
"""Values of columns of a file of published numbers."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Reads(_Entry):
    """Selection of the measured values that make up a cell of a paper's table, one value per seed.

    Attributes:
        metric: Name of the metric.
        split: Test images, such as ``test`` or ``test_crop``.
        variant: Variants of the metric; the first that was measured counts.
        scorer: Similarity that ranks; ``own`` is that of the method, or none if the metric depends on no scorer.
        confidence: Confidence that is judged; ``own`` is the method's default one.
        fraction: Share of images removed, for a point of a filter-out curve.
    """

    metric: str = ""
    split: str = "test"
    variant: tuple[str, ...] = ("",)
    scorer: str = "own"
    confidence: str = ""
    fraction: float | None = None


class Column(_Entry):
    """A column of a paper's table: measured values, or values that are computed from other columns.

    Attributes:
        title: Heading, by which other columns refer to it.
        reads: Selection of the measured values; None if the column is computed from others.
        of: Titles of the columns it is computed from.
        how: Formula by which it is computed from them: ``difference`` (first minus second), ``relative change``
            (100 (first - second) / abs(second)), ``ratio to the first row`` or ``smallest``; empty for measured values.
        where: Entries, by name of the CSV column, that select its lines in the file of the paper's published numbers.
        factor: Factor from our unit to the paper's, such as 100 for percent.
        digits: Digits after the decimal point; None for the default.
        not_on: Data sets for which the paper has no such column.
        x: Position on the horizontal axis, if the table is drawn as curves.
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
        """Digits after the decimal point: ``digits``, else two for percentages and computed columns, else three."""
        return self.digits if self.digits is not None else (2 if self.factor == 100.0 or self.how else 3)


class Row(_Entry):
    """A row of a paper's table: a run of ours, or values that are computed from other rows.

    Attributes:
        title: Name in the paper, by which other rows refer to it.
        method: Name of our method; empty for a row without a run. ``$base`` is the first-stage method of two-stage
            methods, which the settings of the data set name.
        set: Settings to fix, ``KEY=VALUE``, as for ``bench run --set``.
        set_photographs: Settings to fix on data sets of photographs only.
        set_on: Settings to fix on single data sets, by name of the data set.
        select_by: Scorer (similarity) whose validation MAP@R selects the model; the method's own if empty.
        network: ``BACKBONE/DIM``; that of the table or figure if empty.
        reads: Fields of the columns' :class:`Reads` to replace for this row, such as another ``scorer``, with their
            values.
        of: Titles of the rows it is computed from.
        how: Formula by which it is computed from them: ``difference`` (first minus second), ``relative change``
            (100 (first - second) / abs(second)) or ``smallest``; empty for a run.
        columns: Titles of the columns it has a value in; all if empty.
        where: Entries, by name of the CSV column, that select its lines in the file of the paper's published numbers;
            None if it has no line there.
        quoted: Numbers from the text of the paper, by data set and title of the column.
        differs: Remark on what our run does differently from the paper's; may be empty.
        x: Position on the horizontal axis, if the table is drawn as a sweep of a setting.
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
    """Definition of a table or figure of a paper: the runs of ours that reproduce it, and its layout.

    Attributes:
        key: Name within the paper, such as ``table5``.
        title: Heading.
        asks: The question that the table or figure answers.
        kind: Work to do: ``runs`` trains and tests; ``timings`` measures run times; ``drawing`` draws a figure that
            needs neither data nor results.
        datasets: Our names of its data sets.
        where: Entries, by name of the CSV column, that select its lines in the file of the paper's published numbers.
        network: ``BACKBONE/DIM`` on photographs; that of the paper if empty.
        rows_of: Name of a list of rows that tables of the paper share; they come before ``row``.
        columns_of: Name of a list of columns that tables of the paper share; they come before ``column``.
        row: Its own rows.
        column: Its own columns.
        scorers: Scorers (similarities) to test with, in addition to each method's own.
        set_photographs: Settings to fix in every row on data sets of photographs, ``KEY=VALUE``.
        figure: Figure to draw: ``curves``, ``sweep`` or ``points`` of the table's values, or the name of a kind of
            figure of ``bench report``; none if empty.
        differences: Reasons not to compare our values directly with the paper's, in addition to those of the whole
            paper.
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
    """Definition of a paper to reproduce: its protocol in our terms, its published numbers, its tables and figures.

    Attributes:
        key: Short name, the first part of the names of its tables and figures.
        title: Full name.
        published: Name of the CSV file of its published numbers.
        where: Entries, by name of the CSV column, that all lines of the paper have in this file.
        protocol: Name of our protocol.
        preset: Name of the preset, a bundle of that protocol's settings.
        fidelity: Form of methods that have several: ``corrected``, or that of the papers' released code.
        network: ``BACKBONE/DIM`` on photographs.
        seeds: Number of seeds.
        differences: Reasons not to compare any of our numbers directly with the paper's.
        datasets: Names of data sets in the file of published numbers, by our names.
        item: Tables and figures of the paper.
        rows: Lists of rows that several tables or figures share, by name.
        columns: Lists of columns that several tables or figures share, by name.
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
    """A table or figure together with its paper, which gives the first part of its name and default settings.

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
        of_rows: dict[str, list[str]] = {}
        for row in self.rows:
            if row.differs:
                of_rows.setdefault(row.differs, []).append(row.title)
        told = (f"{', '.join(titles)}: {text}" for text, titles in of_rows.items())
        return (*self.paper.differences, *self.item.differences, *told)


@cache
def papers() -> tuple[Paper, ...]:
    """Read the definitions of all papers with their tables and figures, sorted by file name."""
    folder = files("bench.results.published").joinpath("reproduce")
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(Paper.model_validate(tomllib.loads(file.read_text())) for file in found)


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
    if name not in known:
        raise UnknownName("table or figure", name, known)
    return known[name]
