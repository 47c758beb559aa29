"""Our values of a table next to the published ones, with remarks on everything that differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from ..report.seeds import SeedStatistics
from .cells import Cells, derived
from .items import Column, Named, Row
from .published import Published, published_value, quoted_rows
from .rows import PlannedItem, PlannedRow

NOTHING = "-"

UNPUBLISHED = "no published value"
"""Text for a value of ours that the paper has no number for."""


@dataclass(frozen=True)
class Quoted:
    """A published number as a cell of a reproduced table shows it.

    Attributes:
        mean: Mean, in the unit of the paper.
        text: Text as printed, with its standard deviation.
        sd: Standard deviation; nan if there is none.
        note: Remark on how to read the number; may be empty.
    """

    mean: float
    text: str
    sd: float = float("nan")
    note: str = ""

    @classmethod
    def of(cls, number: Published) -> Self:
        """Convert a number from a CSV file of published numbers."""
        return cls(number.mean, number.text, number.sd, number.note)


@dataclass(frozen=True)
class Cell:
    """A cell of a reproduced table: our value next to the number that the paper published.

    Attributes:
        ours: Our mean and SD over seeds, in the paper's unit; None if there is no value.
        published: The published number; None if there is none.
        decimals: Digits after the decimal point of our value.
    """

    ours: SeedStatistics | None
    published: Quoted | None
    decimals: int

    @property
    def our_text(self) -> str:
        """Our value as ``mean ± SD``, with ``[defined/seeds]`` if some seeds have no value; ``-`` if there is none."""
        ours = self.ours
        if ours is None or not ours.defined:
            return NOTHING
        missing = f" [{ours.defined}/{ours.seeds}]" if ours.defined < ours.seeds else ""
        sd = f" ± {ours.sd:.{self.decimals}f}" if ours.sd == ours.sd else ""
        return f"{ours.mean:.{self.decimals}f}{sd}{missing}"

    @property
    def published_text(self) -> str:
        """The published ``mean ± SD``; ``-`` if there is none."""
        return NOTHING if self.published is None else self.published.text


@dataclass(frozen=True)
class Line:
    """A line of a reproduced table: a row of the paper with its cells.

    Attributes:
        title: Name of the row in the paper.
        run: Our run that reproduces the row; None if the row is computed from other rows, is only quoted from the paper
            or was left out.
        cells: Cells of the line, one per column.
    """

    title: str
    run: PlannedRow | None
    cells: tuple[Cell, ...]

    @property
    def ours(self) -> str:
        """Name of our method and source of its hyper-parameters, such as ``METHOD (BASE) [FIDELITY], published``.

        The base model of a two-stage method and the fidelity (form of the method) are left out for a one-stage method
        and for the form ``corrected``. The text is empty for a line without a run.
        """
        if self.run is None:
            return ""
        contender = self.run.contender
        return f"{contender.label}, {contender.hparams}"


@dataclass(frozen=True)
class Table:
    """A reproduced table or figure of a paper on one data set: our values next to the published numbers.

    Attributes:
        named: The table or figure, with its paper.
        dataset: Name of the data set.
        columns: Columns that the paper has for the data set.
        lines: Lines of the table, from top to bottom.
        differs: Differences of set-up between these runs and the paper's (:func:`what_differs`), on one line.
        left_out: Rows that were not run, each as text ``TITLE: REASON``.
    """

    named: Named
    dataset: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    differs: str
    left_out: tuple[str, ...]

    @property
    def compared(self) -> bool:
        """True if the table has at least one published number to compare with."""
        return any(cell.published is not None for line in self.lines for cell in line.cells)

    @property
    def remarks(self) -> list[str]:
        """Lines to print below the table, which say what to keep in mind when comparing with the paper.

        They are: differences of set-up between these runs and the paper's, other reasons not to compare directly, notes
        on published numbers, and rows that were left out.
        """
        notes = dict.fromkeys(
            f"published {line.title}, {column.title}: {cell.published.note}"
            for line in self.lines
            for column, cell in zip(self.columns, line.cells)
            if line.run is not None and cell.published is not None and cell.published.note
        )
        return [self.differs, *self.named.differences, *notes, *(f"left out: {text}" for text in self.left_out)]


def build_table(planned: PlannedItem, cells: Cells) -> Table:
    """Build a reproduced table: our values next to the published ones.

    Args:
        planned: The table or figure on one data set, with the plans of its runs.
        cells: Measured cells: keys ``(row title, column title)``, each with a dictionary of values by seed.
    """
    named, dataset = planned.named, planned.dataset
    columns = named.columns(dataset)
    runs = {each.row.title: each for each in planned.rows}
    every = derived(cells, named.rows, columns)
    lines = [
        Line(row.title, runs.get(row.title), tuple(_cell(planned, row, column, every) for column in columns))
        for row in named.rows
    ]
    for title, by_column in quoted_rows(named, dataset).items():
        lines.append(Line(title, None, tuple(_quoted(by_column, column) for column in columns)))
    shown = tuple(line for line in lines if line.run or any(cell.ours or cell.published for cell in line.cells))
    left_out = tuple(f"{title}: {reason}" for title, reason in planned.left_out.items())
    return Table(named, dataset, columns, shown, what_differs(planned), left_out)


def _quoted(by_column: Mapping[str, Published], column: Column) -> Cell:
    number = by_column.get(column.title)
    return Cell(None, None if number is None else Quoted.of(number), column.decimals)


def _cell(planned: PlannedItem, row: Row, column: Column, cells: Cells) -> Cell:
    values = cells.get((row.title, column.title))
    number = published_value(planned.named, row, column, planned.dataset)
    quoted = row.quoted.get(planned.dataset, {}).get(column.title)
    published = None
    if number is not None:
        published = Quoted.of(number)
    elif quoted is not None:
        published = Quoted(quoted, str(quoted))
    return Cell(SeedStatistics.of(values) if values else None, published, 2 if row.how else column.decimals)


def what_differs(planned: PlannedItem) -> str:
    """Describe on one line how the planned runs differ from the paper's: data set, network, settings and seeds.

    Batches that are smaller because the data set is small are part of it.

    Args:
        planned: The table or figure on one data set, with the plans of its runs.
    """
    parts = list(_differences(planned))
    if not parts:
        return "data set, network, settings and seeds are the paper's"
    return f"not what the paper did: {'; '.join(parts)}"


def _differences(planned: PlannedItem) -> Iterator[str]:
    named, dataset, options = planned.named, planned.dataset, planned.options
    if dataset not in named.item.datasets:
        yield f"no value was published for {dataset} ({named.name} has {', '.join(named.item.datasets)})"
    yield from dict.fromkeys(text for each in planned.rows for text in _of_run(named, each))
    yield from dict.fromkeys(plan.adapted for each in planned.rows for plan in each.plans if plan.adapted)
    defaults = [each.row.title for each in planned.rows if each.fallback]
    if defaults:
        which = "every row" if len(defaults) == len(planned.rows) else ", ".join(defaults)
        yield f"the recipe's settings for {which} (none were published for this data set and network)"
    elif planned.rows[0].plan.hparams != "published":
        yield f"settings: {planned.rows[0].plan.hparams}, not the published ones"
    seeds = planned.rows[0].plan.seeds
    if seeds != named.paper.seeds and named.item.kind == "runs":
        yield f"{seeds} seed{'s' if seeds > 1 else ''}, not {named.paper.seeds}"
    if options.pins:
        yield f"set by hand: {', '.join(options.pins)}"


def _of_run(named: Named, each: PlannedRow) -> Iterator[str]:
    """Differences in network, weights and data of a run."""
    template = each.plan.template
    backbone, dim = named.network(each.row)
    if (template.backbone, template.dim) != (backbone, dim):
        yield f"{template.backbone}/{template.dim} instead of {backbone}/{dim}"
    if template.weights is None:
        yield "random starting weights"
    if template.partial:
        yield f"a part of the data ({template.partial})"
