"""Figures of curves: of many, few keep their look, and the others are grey."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .registry import Shown
from .style import FULL_PAGE, HALF_PAGE, Look, panels

MOST_CURVES = 6
"""Curves that keep their look in one panel, at most."""
REST = "0.8"
"""Grey of the other curves."""
CONTROLS = {"random": ":", "oracle": "--"}
"""Lines of control curves."""


@dataclass(frozen=True)
class Curve:
    """Curve: points ``x`` and ``y``, and a band ``low`` to ``high`` (empty without one), ``[P]`` each.

    ``controls`` are points ``[P, 2]`` or more columns, in the colour of the curve, by names in :data:`CONTROLS`.
    """

    label: str
    look: Look
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray = field(default_factory=lambda: np.empty(0))
    high: np.ndarray = field(default_factory=lambda: np.empty(0))
    controls: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Mean of its values, by which the highest curves are found."""
        known = self.y[np.isfinite(self.y)]
        return float(known.mean()) if len(known) else -np.inf


class Panel(NamedTuple):
    """Panel of a figure: title, curves, label of the vertical axis, and curves that are grey."""

    title: str
    curves: Sequence[Curve]
    y: str
    rest: Sequence[Curve] = ()


NO_POINTS = np.empty((0, 3))
"""Points of a curve that has none."""


def seed_points(
    contenders: Sequence[Shown], by: Sequence[str], x: str, y: str = "value"
) -> dict[tuple[object, ...], np.ndarray]:
    """Points of curves, place, mean and SD over seeds, ``[P, 3]``, by number of the contender and values of columns."""
    table = pd.concat({each.number: each.rows[[*by, x, y]] for each in contenders}, names=["contender"])
    points = table.groupby(["contender", *by, x], observed=True)[y].agg(["mean", "std"]).reset_index()
    found: dict[tuple[object, ...], list[tuple[float, ...]]] = {}
    for *key, at, mean, sd in points.itertuples(index=False):
        found.setdefault(tuple(key), []).append((at, mean, sd))
    return {key: np.array(own, dtype=float) for key, own in found.items()}


def seed_curve(label: str, look: Look, points: np.ndarray, *, band: bool = True, **more: Any) -> Curve:
    """Curve of :func:`seed_points`, with a band of one standard deviation; one seed has none."""
    x, mean, sd = points.T
    sd = np.nan_to_num(sd)
    return Curve(label, look, x, mean, *((mean - sd, mean + sd) if band else ()), **more)


def curve_figure(
    shown: Sequence[Panel],
    *,
    x: str,
    title: str,
    columns: int = 3,
    most: int = MOST_CURVES,
    share_y: bool | str = True,
    **axes: Any,
) -> Figure:
    """Draw panels of curves with one legend; of more than ``most`` curves, the highest in the first panel keep a look.

    Axes are shared: the horizontal one by all panels, the vertical one too, or only by each row (``share_y="row"``).
    """
    means: dict[str, float] = {}
    for curve in (curve for panel in shown for curve in panel.curves):
        means.setdefault(curve.label, curve.mean)
    kept = sorted(means, key=lambda label: -means[label])[:most]
    grey = len(means) - len(kept)
    title += f"\ncoloured: the {most} with the highest mean" if grey else ""
    columns = min(columns, len(shown))
    size = (HALF_PAGE, 3.6) if len(shown) == 1 else (FULL_PAGE / columns, 2.7)
    figure, drawn = panels(len(shown), columns, size, sharey="row" if share_y == "row" else False)
    for axis, panel in zip(drawn, shown):
        _draw(axis, panel, kept)
        axis.set(xlabel=x, ylabel=panel.y, **axes)
        axis.set_title("\n".join(textwrap.fill(line, 60) for line in panel.title.split("\n")), y=1.0)
    # Axes that Matplotlib shares ask one another at every step.
    _share(drawn, "x")
    if share_y is True:
        _share(drawn, "y")
    figure.suptitle("\n".join(textwrap.fill(line, 60 if len(shown) == 1 else 100) for line in title.split("\n")))
    _legend_below(figure, drawn, grey)
    return figure


def _share(axes: Sequence[Axes], side: str) -> None:
    """Give all panels the range that has what each of them shows."""
    ends = np.array([getattr(axis, f"get_{side}lim")() for axis in axes])
    for axis in axes:
        getattr(axis, f"set_{side}lim")(ends[:, 0].min(), ends[:, 1].max())


def _draw(axis: Axes, panel: Panel, kept: Sequence[str]) -> None:
    grey = [*panel.rest, *(curve for curve in panel.curves if curve.label not in kept)]
    lines = [np.column_stack([curve.x, curve.y]) for curve in grey]
    axis.add_collection(LineCollection(lines, colors=REST, linewidths=0.8, zorder=1))
    for curve in (curve for curve in panel.curves if curve.label in kept):
        look = curve.look
        if len(curve.low):
            axis.fill_between(curve.x, curve.low, curve.high, color=look.colour, alpha=0.15, lw=0)
        for name, values in curve.controls.items():
            axis.plot(values[:, 0], values[:, 1], CONTROLS[name], lw=1.0, color=look.colour)
        width, every = 1.6 if look.marker else 1.1, max(1, len(curve.x) // 10)
        (line,) = axis.plot(curve.x, curve.y, ls=look.line, lw=width, color=look.colour, label=curve.label)
        line.set(marker=look.marker, fillstyle=look.fill, ms=3.5, markevery=every)
    axis.autoscale_view()


def _legend_below(figure: Figure, axes: Sequence[Axes], grey: int) -> None:
    """Put one legend below all panels, with the number of grey curves."""
    shown = {text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels())}
    if grey:
        shown[f"{grey} others"] = Line2D([], [], color=REST, lw=1.2)
    if shown:
        width = max(len(line) for label in shown for line in label.split("\n"))
        columns = max(1, min(len(shown), 4, int(figure.get_figwidth() * 13) // (width + 8)))  # letters of 8 points
        handles, names = list(shown.values()), list(shown)
        legend = figure.legend(handles, names, ncols=columns, loc="outside lower center", fontsize=8, handlelength=3.0)
        # The panels give it half an inch; a higher one would leave them nothing.
        more = legend.get_tightbbox().height / figure.dpi - 0.5  # type: ignore[union-attr]
        figure.set_figheight(figure.get_figheight() + max(0.0, more))
