"""The numbers that the papers published, and which of them belong to which cell."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from .items import Column, Named, Row, Where


@dataclass(frozen=True)
class Published:
    """A number that a paper published, one line of the CSV file of its numbers.

    Attributes:
        number: Number of its line in the file, from 0.
        mean: Mean, in the paper's unit.
        sd: Standard deviation; nan if there is none.
        note: Remark on how to read the number; may be empty.
        columns: Entries of its line as text, by name of the column.
    """

    number: int
    mean: float
    sd: float
    note: str
    columns: Mapping[str, str]

    @property
    def text(self) -> str:
        """Text ``mean ± SD`` with the digits of the paper; the mean alone if there is no SD."""
        sd = self.columns["std"]
        return f"{self.columns['mean']} ± {sd}" if sd else self.columns["mean"]

    def fits(self, where: Where) -> bool:
        """Return whether its line of the CSV file has the wanted values.

        Args:
            where: Wanted values by name of the column.
        """
        return all(self.columns[key] == value for key, value in where.items())


@cache
def numbers(name: str) -> tuple[Published, ...]:
    """Read the numbers that a paper published, in the order of the lines.

    Args:
        name: Name of the CSV file in the package ``bench.results.published``.
    """
    text = files("bench.results.published").joinpath(name).read_text()
    return tuple(
        Published(
            number,
            float(line["mean"]),
            float(line["std"]) if line["std"] else float("nan"),
            line["note"],
            line,
        )
        for number, line in enumerate(csv.DictReader(text.splitlines()))
    )


def published_value(named: Named, row: Row, column: Column, dataset: str) -> Published | None:
    """Published number that belongs to a cell of a paper's table; None if there is none.

    Args:
        named: The table, with its paper.
        row: Row of the cell.
        column: Column of the cell.
        dataset: Our name of the data set.

    Raises:
        ValueError: If several published numbers match the cell.
    """
    paper, item = named.paper, named.item
    if row.where is None or dataset not in item.datasets or (row.columns and column.title not in row.columns):
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
    """Published numbers of a paper's table that no row of ours reproduces.

    These are the numbers that the paper quotes from the literature.

    Args:
        named: The table, with its paper.
        dataset: Our name of the data set.

    Returns:
        Numbers by title of the row (method and network), then by title of the column.
    """
    paper, item = named.paper, named.item
    if dataset not in item.datasets:
        return {}
    columns = named.columns(dataset)
    own = {
        value.number
        for row in named.rows
        for column in columns
        if (value := published_value(named, row, column, dataset)) is not None
    }
    where = {**paper.where, **item.where, "dataset": paper.datasets[dataset]}
    rows: dict[str, dict[str, Published]] = {}
    for number in numbers(paper.published):
        if number.fits(where) and number.number not in own:
            column = next(column for column in columns if column.where and number.fits(column.where))
            rows.setdefault(_quoted_title(number), {})[column.title] = number
    return rows


def _quoted_title(number: Published) -> str:
    network = "/".join(filter(None, (number.columns.get("arch"), number.columns.get("dim"))))
    return f"{number.columns['method']}, {network}" if network else number.columns["method"]
