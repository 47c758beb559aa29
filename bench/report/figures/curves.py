"""Curves of contenders: few in one panel; of many, a panel each or the chosen few, with the rest in grey."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from .style import FULL_PAGE, HALF_PAGE, Look, panels

MOST_CURVES = 6
"""Contenders (methods at one setting) that have a colour in one panel, at most."""
MOST_LINES = 12
"""Coloured lines in one panel, at most; contenders with controls have three each."""
MOST_PANELS = 30
"""Panels of a figure with a panel per contender, at most: 6 rows of 5, a page."""
REST = "0.8"
"""Grey of the contenders that have no colour."""
CONTROLS = {"random": (":", 1.0), "oracle": ("--", 0.8)}
"""Line and width of control curves."""
WRAPPED = 24
"""Letters in a line of the title of a small panel."""


@dataclass(frozen=True)
class Curve:
    """Curve of a contender: points ``x`` and ``y``, and a band ``low`` to ``high`` (empty without one), ``[P]`` each.

    ``controls`` are further curves by name, in the colour of the contender but thin; names that are in :data:`CONTROLS`
    have lines of their own.
    """

    label: str
    look: Look
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray = field(default_factory=lambda: np.empty(0))
    high: np.ndarray = field(default_factory=lambda: np.empty(0))
    controls: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


def mean_curve(
    label: str,
    look: Look,
    table: pd.DataFrame,
    x: np.ndarray,
    controls: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
) -> Curve:
    """Curve of means with a band of one standard deviation; one seed has no band."""
    mean, sd = table["mean"].to_numpy(), table["std"].fillna(0.0).to_numpy()
    return Curve(label, look, x, mean, mean - sd, mean + sd, controls or {})


def chosen_few(curves: Sequence[Curve], count: int) -> list[int]:
    """Positions of the coloured curves: all if there are no more than ``count``, else those with the highest means.

    Example:
        >>> look, x = Look("k", "o"), np.arange(2.0)
        >>> chosen_few([Curve(str(y), look, x, x + y) for y in (1, 3, 2)], 2)
        [1, 2]
    """
    if len(curves) <= count:
        return list(range(len(curves)))
    means = [float(np.nanmean(curve.y)) if np.isfinite(curve.y).any() else -np.inf for curve in curves]
    order = sorted(range(len(curves)), key=lambda place: (-means[place], place))
    return sorted(order[:count])


def most_coloured(curves: Sequence[Curve]) -> int:
    """Number of contenders that may have a colour in one panel, by the number of lines of each."""
    lines = max((1 + len(curve.controls) for curve in curves), default=1)
    return min(MOST_CURVES, MOST_LINES // lines)


def plot_curves(axis: Axes, curves: Sequence[Curve], coloured: Collection[int]) -> None:
    """Draw curves in one panel: some in their own look, with bands and controls, the others thin and grey below."""
    rest = [np.column_stack([curve.x, curve.y]) for place, curve in enumerate(curves) if place not in coloured]
    if rest:
        axis.add_collection(LineCollection(rest, colors=REST, linewidths=0.8, zorder=1))
    for curve in (curves[place] for place in sorted(coloured)):
        look = curve.look
        if len(curve.low):
            axis.fill_between(curve.x, curve.low, curve.high, color=look.colour, alpha=0.15, lw=0)
        for name, (x, y) in curve.controls.items():
            style, width = CONTROLS.get(name, ("-", 1.0))
            axis.plot(x, y, style, lw=width, color=look.colour)
        axis.plot(
            curve.x,
            curve.y,
            ls=look.line,
            lw=1.6,
            color=look.colour,
            marker=look.marker,
            fillstyle=look.fill,
            ms=3.5,
            markevery=max(1, len(curve.x) // 10),
            label=curve.label,
        )
    axis.autoscale_view()


def legend_below(figure: Figure, axes: Sequence[Axes], rest: int) -> None:
    """Put one legend below all panels, with the number of contenders in grey."""
    shown = {text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels())}
    handles, labels = list(shown.values()), list(shown)
    if rest:
        handles, labels = [*handles, Line2D([], [], color=REST, lw=1.2)], [*labels, f"{rest} others"]
    if handles:
        width = max(len(line) for label in labels for line in label.split("\n"))
        room = int(figure.get_figwidth() * 13)  # letters of 8 points
        columns = max(1, min(len(labels), 4, room // (width + 8)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, handlelength=3.0)


def contender_figure(
    curves: Sequence[Curve],
    *,
    x: str,
    y: str,
    title: str,
    limits: tuple[float, float] | None = None,
    whole_x: bool = False,
    y_scale: str = "linear",
) -> Figure:
    """Plot one curve per contender: in one panel, or with a panel each if they are many.

    Each of the small panels shows one contender in its own look, and all others in grey. If there are more than
    :data:`MOST_PANELS`, those with the highest mean over the points have a panel, as the title says.
    """
    if len(curves) <= most_coloured(curves):
        figure = Figure(figsize=(HALF_PAGE, 3.2 + 0.18 * len(curves)), layout="constrained")
        axes: Sequence[Axes] = [figure.subplots()]
        axes[0].set(xlabel=x, ylabel=y)
        axes[0].set_title(textwrap.fill(title, 60))
        plot_curves(axes[0], curves, range(len(curves)))
        legend_below(figure, axes, 0)
    else:
        shown = chosen_few(curves, MOST_PANELS)
        grey = "all others" if len(shown) == len(curves) else f"all but the {len(shown)} with the highest mean"
        titles = [curves[place].label for place in shown]
        figure, axes = small_panels(titles, x=x, y=y, title=f"{title}; grey: {grey}")
        for axis, place in zip(axes, shown):
            plot_curves(axis, curves, [place])
    for axis in axes:
        axis.set(ylim=limits, yscale=y_scale)
        if whole_x:
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    return figure


def small_panels(titles: Sequence[str], *, x: str, y: str, title: str) -> tuple[Figure, Sequence[Axes]]:
    """Make a page of small panels that share their ranges, with the labels of the axes outside of all."""
    columns = min(5, max(2, len(titles) // 2)) if len(titles) > 1 else 1
    figure, axes = panels(
        len(titles), columns, (FULL_PAGE / columns, 1.45 if columns > 2 else 2.4), share_x=True, share_y=True
    )
    for place, (axis, text) in enumerate(zip(axes, titles)):
        # Matplotlib would look for room for titles and labels among the ticks of every panel, at every draw.
        axis.set_title("\n".join(textwrap.fill(line, WRAPPED) for line in text.split("\n")), fontsize=7.5, y=1.0)
        axis.xaxis.set_label_coords(0.5, 0)
        axis.yaxis.set_label_coords(0, 0.5)
        axis.tick_params(labelsize=7.5, labelleft=place % columns == 0, labelbottom=place + columns >= len(titles))
    if x:
        figure.supxlabel(x, fontsize=9)
    figure.supylabel(y, fontsize=9)
    figure.suptitle(textwrap.fill(title, 100))
    return figure, axes
