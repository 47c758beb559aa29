"""Tables: columns that are defined once, and cells, which every renderer writes in its own format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import printable

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R")
K = TypeVar("K")

GAP = "-"
"""Text of a value that does not exist."""

EVERYWHERE = ("text", "page", "terminal")
"""Places where readers see a column: Markdown and LaTeX, a page, and a terminal."""


@dataclass(frozen=True)
class Cell:
    """Cell of a table: its text as it is, which is escaped when it is written, and its marks.

    ``value`` is what to sort by, if it is not the text; ``mark`` are further classes of its style on a page, ``note``
    an explanation that a page shows on request, and ``href`` the id on the page that the text leads to.
    """

    text: str
    value: float | str | None = None
    bold: bool = False
    underlined: bool = False
    mark: str = ""
    note: str = ""
    href: str = ""

    @property
    def is_gap(self) -> bool:
        """True if there is nothing in it."""
        return self.text in ("", GAP)

    @property
    def sort(self) -> str:
        """Text to sort by on a page; gaps come last."""
        if self.is_gap or self.value != self.value:
            return ""
        if self.value is None:
            return self.text
        return f"{self.value:.10g}" if isinstance(self.value, float) else str(self.value)


@dataclass(frozen=True)
class Column(Generic[R]):
    """Column of a table, defined once for every format.

    Attributes:
        title: Heading in the formats for readers; empty for a column of CSV files alone.
        cell: Text or cell of a row in the formats for readers; by default the text of the only value of ``fields``.
        fields: Values of a row in CSV files, by heading there; None for a column that CSV files do not have.
        label: Whether it says what a row is about: such columns are aligned to the left, and LaTeX has those with
            one text in all rows in its caption.
        number: Whether its cells are numbers, by which a page aligns and sorts them, and which a terminal never breaks.
        note: Explanation of the heading on a page.
        whole: Whether a terminal never breaks its texts; None if it does not break numbers alone.
        places: Where readers see it (:data:`EVERYWHERE`).
    """

    title: str
    cell: Callable[[R], Cell | str] | None = None
    fields: Callable[[R], Mapping[str, object]] | None = None
    label: bool = False
    number: bool = True
    note: str = ""
    whole: bool | None = None
    places: tuple[str, ...] = ("text", "page")

    def of(self, row: R) -> Cell:
        """Cell of a row."""
        if self.cell is not None:
            return _cell(self.cell(row))
        assert self.fields is not None, self.title
        (value,) = self.fields(row).values()
        return _cell(GAP if value is None or value != value else str(value))


def _cell(found: Cell | str) -> Cell:
    """A text is one line, whoever wrote it; only a cell may have several."""
    return found if isinstance(found, Cell) else Cell(printable(found))


def label(title: str, cell: Callable[[R], Cell | str] | None = None, note: str = "", **more: Any) -> Column[R]:
    """Column of texts that say what a row is about."""
    return Column(title, cell, label=True, number=False, note=note, **more)


def held(name: str, of: Callable[[R], object] | None = None) -> Callable[[R], Mapping[str, object]]:
    """Function that reads one value of a row for CSV files: that of ``of``, or else the attribute of this name."""
    return lambda row: {name: getattr(row, name) if of is None else of(row)}


def headings(*titles: str, labels: int = 1) -> tuple[Column[Any], ...]:
    """Columns of a table of cells: the first ones are labels, the others numbers."""
    return tuple(Column(title, label=place < labels, number=place >= labels) for place, title in enumerate(titles))


@dataclass(frozen=True)
class Row:
    """Row of a table; its id on a page is empty if nothing leads to it."""

    cells: tuple[Cell, ...]
    anchor: str = ""


@dataclass(frozen=True)
class Table:
    """A table, ready to be written in every format.

    ``title`` is the heading in Markdown, the beginning of the caption in LaTeX (``caption`` is its rest), and the title
    on a terminal and a page; ``notes`` are paragraphs below it. On a page it may have an id (``anchor``); ``small`` are
    the classes of one that is not sorted.
    """

    title: str
    columns: tuple[Column[Any], ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    caption: str = ""
    anchor: str = ""
    small: str = ""

    def only(self, keep: Callable[[Column[Any]], bool]) -> Table:
        """The table with some of its columns."""
        places = [place for place, column in enumerate(self.columns) if keep(column)]
        rows = [replace(row, cells=tuple(row.cells[place] for place in places)) for row in self.rows]
        return replace(self, columns=tuple(self.columns[place] for place in places), rows=tuple(rows))

    def shared(self, always: Collection[str] = ()) -> dict[str, str]:
        """Labels that all rows have in common, by heading, except some."""
        found = {}
        for place, column in enumerate(self.columns):
            texts = {row.cells[place].text for row in self.rows}
            if column.label and column.title not in always and len(texts) == 1:
                found[column.title] = texts.pop()
        return found

    def without_shared(self, always: Collection[str] = ()) -> Table:
        """The table without labels that all rows have in common, which the caption says instead."""
        shared = self.shared(always)
        said = "; ".join(f"{title} {text}" for title, text in shared.items() if text not in ("", GAP))
        caption = f"{self.caption} In all rows: {said}." if said else self.caption
        return replace(self.only(lambda column: column.title not in shared), caption=caption.strip())


def table_of(
    columns: Iterable[Column[R]],
    rows: Iterable[R],
    title: str,
    *,
    place: str = "text",
    anchors: Iterable[str] = (),
    **more: Any,
) -> Table:
    """Make a table of rows for readers at a place: ``text``, ``page`` or ``terminal``."""
    shown = tuple(column for column in columns if column.title and place in column.places)
    return cells_table(title, shown, ([column.of(row) for column in shown] for row in rows), anchors=anchors, **more)


def cells_table(
    title: str,
    columns: Sequence[Column[Any]],
    rows: Iterable[Iterable[Cell | str]],
    *,
    anchors: Iterable[str] = (),
    **more: Any,
) -> Table:
    """Make a table of cells, or of their texts."""
    made = tuple(Row(tuple(map(_cell, row)), anchor) for row, anchor in zip(rows, chain(anchors, repeat(""))))
    return Table(title, tuple(columns), made, **more)


def frame_of(columns: Iterable[Column[R]], rows: Iterable[R], **types: Any) -> pd.DataFrame:
    """Numbers of rows, with the columns that CSV files have; some may have a type of their own."""
    fields = [column.fields for column in columns if column.fields is not None]
    return lines_frame(({name: value for read in fields for name, value in read(row).items()} for row in rows), **types)


def lines_frame(lines: Iterable[Mapping[str, object]], **types: Any) -> pd.DataFrame:
    """A table of numbers, of which some columns may have a type of their own."""
    import pandas as pd

    frame = pd.DataFrame(list(lines))
    return frame if frame.empty else frame.astype(types)


def grouped(items: Iterable[R], key: Callable[[R], K]) -> dict[K, list[R]]:
    """Items by a value that some have in common, such as the rows of each table; everything in the order of the items.

    Example:
        >>> grouped(["pfe", "cosface", "pce"], len)
        {3: ['pfe', 'pce'], 7: ['cosface']}
    """
    found: dict[K, list[R]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


@dataclass(frozen=True)
class Document:
    """Tables about one question, which become the files ``NAME.csv``, ``NAME.md`` and ``NAME.tex``.

    Attributes:
        name: Name of the files.
        heading: Heading in Markdown.
        introduction: Paragraph below it, in Markdown.
        tables: The tables, each with a heading and a caption of its own; without any there is no Markdown and LaTeX.
        numbers: The numbers of all of them; without any row there is no CSV.
        always: In LaTeX, labels that all rows have in common are left out, except these; None leaves out none.
    """

    name: str
    heading: str = ""
    introduction: str = ""
    tables: tuple[Table, ...] = ()
    numbers: pd.DataFrame = field(default_factory=lambda: frame_of((), ()), compare=False)
    always: tuple[str, ...] | None = None


def number(value: float | None, digits: int = 2, sign: str = "") -> str:
    """Text of a number; a dash for None and nan.

    Example:
        >>> number(0.126), number(None), number(3.0, 1, "+")
        ('0.13', '-', '+3.0')
    """
    return GAP if value is None or value != value else f"{value:{sign}.{digits}f}"


def named_by_reason(pairs: Iterable[tuple[str, str]]) -> str:
    """Names by the reason that several may share, as text, from pairs of both; names without a reason are left out.

    Example:
        >>> named_by_reason([("a", "one seed"), ("b", "no seed 3"), ("c", "one seed"), ("d", "")])
        'a, c (one seed); b (no seed 3)'
    """
    reasons = grouped(pairs, lambda pair: pair[1])
    return "; ".join(f"{', '.join(name for name, _ in own)} ({reason})" for reason, own in reasons.items() if reason)


def percent(value: float | None, digits: int = 2, sign: str = "") -> str:
    """Text of a share in percent; a dash for None and nan.

    Example:
        >>> percent(0.126), percent(float("nan"))
        ('12.60', '-')
    """
    return number(None if value is None else 100 * value, digits, sign)


def interval(mean: str, low: str, high: str) -> str:
    """Text of a mean with the ends of its interval, if it has one.

    Example:
        >>> interval("+1", "+0", "+2"), interval("+1", "-", "-")
        ('+1 [+0, +2]', '+1')
    """
    return mean if low == GAP else f"{mean} [{low}, {high}]"
