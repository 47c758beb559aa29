"""Style of all figures: palette, fonts, bands, and how a figure is saved."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...errors import printable
from ...store.files import write_atomic

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that people with any form of colour blindness tell apart (Okabe and Ito 2008), without their yellow."""
RIGHT, WRONG = PALETTE[0], PALETTE[1]
"""Colours of right and wrong answers."""
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
            "figure.dpi": 150.0,
            "figure.titlesize": 10.0,
            "svg.hashsalt": "bench",  # equal records give equal bytes
            "svg.fonttype": "none",
            "legend.frameon": False,
        }
    )


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and SVG, and return their paths; equal figures give equal bytes.

    Dollar signs in texts of users start no formulas.
    """
    for text in figure.findobj(mpl.text.Text):
        shown = text.get_text()
        text.set_text("\n".join(map(printable, shown.split("\n"))))
        if "\\mathdefault" not in shown:  # as in the labels of a logarithmic axis
            text.set_parse_math("$" not in shown)
    figure.draw_without_rendering()
    # The layout is made, and its extent measured, once and not for each of the two files.
    figure.set_layout_engine("none")
    box = figure.get_tightbbox().padded(0.05)
    written = []
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], metadata=metadata, bbox_inches=box)
        target = path.with_name(path.name + suffix)
        write_atomic(target, buffer.getvalue())
        written.append(target)
    return written


def colour(index: int) -> tuple[float, float, float]:
    """RGB colour, in [0, 1], of what has no method: one of few curves, by its number; from the eighth on they repeat.

    Example:
        >>> colour(0) == colour(7), colour(0) == colour(1)
        (True, False)
    """
    red, green, blue = mpl.colors.to_rgb(PALETTE[index % len(PALETTE)])
    return red, green, blue


def panels(
    count: int, columns: int, size: tuple[float, float], *, share_x: bool = False, share_y: bool = False
) -> tuple[Figure, Sequence[Axes]]:
    """Make a figure with a number of panels of some size in inches, arranged in rows."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y).ravel()
    for axis in axes[count:]:
        axis.set_visible(False)
    for axis in axes[:count]:
        axis.tick_params(labelbottom=True, labelleft=True)
    return figure, list(axes[:count])
