"""Style of all figures: palette, fonts, the look of each method, panels, and how a figure is saved."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ...errors import printable
from ...registry import Registry
from ..render import write_file

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that people with any form of colour blindness tell apart (Okabe and Ito 2008), without their yellow."""
RIGHT, WRONG = PALETTE[0], PALETTE[1]
"""Colours of right and wrong answers."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
"""Markers; a prime number of them, so that steps of any length visit all."""
LINES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1)))
"""Lines: a dash pattern that matplotlib names, or ``(offset, lengths of dashes and gaps)``."""
FILLS = ("full", "none", "left", "right", "top", "bottom")
"""Fills of markers, by which settings of one method differ."""
HALF_PAGE = 4.4
"""Width in inches of a figure for half a page: printed at 3.3 inches, its 9 points become 7."""
FULL_PAGE = 8.0
"""Width in inches of a figure for a whole page."""


def figure_style() -> AbstractContextManager[None]:
    """Context manager that sets the style in which all figures are drawn and saved."""
    return mpl.rc_context(
        {
            "font.size": 9.0,
            "axes.titlesize": 9.0,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.alpha": 0.25,
            "figure.autolayout": False,  # a layout of ours is made once
            "figure.constrained_layout.use": False,
            "figure.dpi": 150.0,
            "figure.titlesize": 10.0,
            "svg.hashsalt": "bench",  # equal records give equal bytes
            "svg.fonttype": "none",
            "legend.frameon": False,
            "legend.title_fontsize": 9.0,
        }
    )


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and SVG, and return their paths; equal figures give equal bytes.

    Dollar signs in texts of users start no formulas.
    """
    for text in _texts(figure):
        shown = text.get_text()
        text.set_text("\n".join(map(printable, shown.split("\n"))))
        text.set_parse_math("$" not in shown)
    # The layout is made, and its extent measured, once and not for each of the two files.
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    figure.set_layout_engine(None)  # "none" leaves a placeholder, for which savefig draws twice
    # Of a layout, titles and legends alone may be larger than the figure; to measure everything is a tenth of the time.
    found = filter(None, [each.get_tightbbox() for each in (*figure.texts, *figure.legends)])
    box = Bbox.union([figure.bbox, *found]).transformed(figure.dpi_scale_trans.inverted())
    written = []
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], metadata=metadata, bbox_inches=box)
        target = path.with_name(path.name + suffix)
        write_file(target, buffer.getvalue())
        written.append(target)
    return written


def _texts(figure: Figure) -> Iterator[Text]:
    """Texts of a figure but for the numbers of its axes: to look for them among those takes as long as to draw it."""
    yield from figure.texts
    legends = [*figure.legends, *(legend for axis in figure.axes if (legend := axis.get_legend()))]
    yield from (text for legend in legends for text in (*legend.get_texts(), legend.get_title()))
    for axis in figure.axes:
        yield from (axis.title, axis.xaxis.label, axis.yaxis.label, *axis.texts)


def panels(count: int, columns: int, size: tuple[float, float], **share: Any) -> tuple[Figure, Sequence[Axes]]:
    """Make a figure with a number of panels of some size in inches, in rows, that may share axes (``sharex``, ..)."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **share).ravel()
    for place, axis in enumerate(axes):
        axis.set_visible(place < count)
        axis.tick_params(labelbottom=True, labelleft=True)
        axis.spines[:].set_in_layout(False)  # they end where the axes do
    return figure, list(axes[:count])


Line = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Look:
    """Look of the curves and points of a contender, of which colour and marker depend on the method alone."""

    colour: str
    marker: str
    line: Line = "-"
    fill: str = "full"


def look_at(slot: int) -> Look:
    """Look of a numbered slot. Each of the first 77 has a pair of colour and marker of its own.

    Slots of one colour, which are seven apart, differ in marker and line; neighbours differ in colour and marker.

    Example:
        >>> look_at(7)
        Look(colour='#0072B2', marker='D', line='--', fill='full')
    """
    lap, hue = divmod(slot, len(PALETTE))
    return Look(PALETTE[hue], MARKERS[(hue + 3 * lap) % len(MARKERS)], LINES[lap % len(LINES)])


SLOTS = len(PALETTE) * len(MARKERS)
"""Number of slots that differ in colour or marker."""


@cache
def _built_in() -> dict[str, int]:
    own = (entry.name for entry in Registry("methods") if entry.entry_point is None)
    return {name: place for place, name in enumerate(own)}


def look_of(method: str) -> Look:
    """Look of a method by its name alone.

    Methods of this package have slots by their place in the list of methods. Others, of plug-ins and installed
    packages, have one of the slots that are left, by a hash of their name.
    """
    built_in = _built_in()
    digest = int.from_bytes(blake2b(method.encode(), digest_size=8).digest(), "big")
    return look_at(built_in.get(method, len(built_in) + digest % max(1, SLOTS - len(built_in))))


def looks(methods: Sequence[str]) -> list[Look]:
    """Looks of contenders, each given by its method: those of one method differ in line and fill of their markers.

    Example:
        >>> first, second = looks(["of a plug-in", "of a plug-in"])
        >>> (first.colour, first.marker) == (second.colour, second.marker), first.line == second.line
        (True, False)
    """
    found = []
    for place, method in enumerate(methods):
        number = methods[:place].count(method)
        base = look_of(method)
        line = LINES[(LINES.index(base.line) + number) % len(LINES)]
        found.append(replace(base, line=line, fill=FILLS[number % len(FILLS)]))
    return found
