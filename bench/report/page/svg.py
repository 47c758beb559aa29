"""Pictures of a page as SVG texts, whose colours ``svg.css`` has: forest plots and curves.

A drawing unit is a pixel at the default width, which fits a phone, and letters are 12 units high.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

import numpy as np
from numpy.typing import ArrayLike

from ...errors import printable, shortened

WIDTH = 360
"""Width of a drawing, in units."""

MARKS = {
    "better": "M-4-5 5 0-4 5Z",
    "worse": "M4-5-5 0 4 5Z",
    "equivalent": "M-4-4H4V4H-4Z",
    "undecided": "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0-4 0Z",
    "depends on tuning": "M0-5 5 0 0 5-5 0Z",
    "no verdict": "M-4-4 4 4M-4 4 4-4",
}
"""Marker of each outcome: a path around (0, 0)."""

COLOURED = 12
"""Curves with a look of their own: pairs of colour and dashes. The next ones are thin and grey."""

ADJUSTED = " adjusted"
"""End of an outcome that holds after the adjustment for many comparisons: its marker is filled."""

Row = tuple[str, float, float, float, str, str]
"""Row of a forest plot: label, mean, both ends of its interval (nan without one), outcome, link (may be empty)."""

Line = tuple[str, ArrayLike, ArrayLike, ArrayLike, ArrayLike]
"""Curve: name, and arrays ``[N]`` of places, of values, and of both ends of a band (nan, one for all, without it)."""

_LETTER, _LINE, _EDGE, _HEIGHT = 6.8, 18.0, 10.0, 220.0


def forest(
    rows: Sequence[tuple[str, Sequence[Row]]],
    *,
    width: float = WIDTH,
    label: str = "forest plot",
    x_label: str = "",
    limits: tuple[float, float] | None = None,
    region: float = 0.0,
) -> str:
    """Draw differences with their intervals: a panel for each group of rows, all on one scale, with a line at 0.

    Args:
        rows: Heading and rows of each group.
        width: Width of the drawing, in units.
        label: What it shows, for readers who do not see it.
        x_label: Meaning and unit of a difference.
        limits: Range of the axis, by default :func:`range_of` the rows.
        region: Half the width of a grey band around 0, such as a region of equivalence.

    Returns:
        An ``<svg>`` element. Each row has the class of its outcome and a ``<title>`` with its
        numbers. An interval that leaves the range ends in an arrow; a mean outside has no marker.

    Raises:
        KeyError: A mean is in the range and its outcome is none of :data:`MARKS`, with or without :data:`ADJUSTED`.
    """
    every = [row for _, own in rows for row in own]
    low, high = limits or range_of(every)
    room = _LETTER * max((len(row[0]) for row in every), default=0) + _EDGE
    left, step = (room, _LINE) if room < 0.42 * width else (_EDGE, 2 * _LINE)
    x = _scale(low, high, left, width - _EDGE)
    parts, y = [], 0.0
    for heading, own in rows:
        top, y = y + 22, y + 22 + step * max(len(own), 1)
        parts.append(_text(0, top - 8, heading, "heading", 0.9 * width))
        if not own:
            parts.append(_text(0, top + 9, "nothing to compare", "tick"))
            continue
        left_of, right_of = x(-region), x(region)
        parts.append(f'<path class="region" d="M{left_of:.1f} {top:.1f}H{right_of:.1f}V{y:.1f}H{left_of:.1f}Z"/>')
        for tick in (tick for tick in _ticks(low, high) if low <= tick <= high):
            parts.append(f'<path class="{"grid" if tick else "zero"}" d="M{x(tick):.1f} {top:.1f}V{y:.1f}"/>')
            parts.append(_text(x(tick), y + 13, f"{tick:+g}" if tick else "0", "tick middle"))
        for place, row in enumerate(own, 1):
            middle = top + step * place - _LINE / 2
            at = (_EDGE, middle - 14, row[0], "", width) if left == _EDGE else (left - 6, middle + 4, row[0], "end")
            parts.append(_forest_row(row, middle, x, (low, high), _text(*at)))
        y += 22
    parts.append(_text(width, y + 10, x_label, "tick end", width))
    return _svg(width, y + 16, label, parts)


def _forest_row(row: Row, y: float, x: Callable[[float], float], limits: tuple[float, float], name: str) -> str:
    label, mean, low, high, outcome, href = row
    numbers = "no value" if mean != mean else f"{mean:+.2f}" + (f" [{low:+.2f}, {high:+.2f}]" if low <= high else "")
    parts = [f"<title>{_escaped(f'{label}: {numbers}, {outcome}')}</title>", name]
    if low <= high:
        parts.append(f'<path class="interval" d="M{x(low):.1f} {y:.1f}H{x(high):.1f}"/>')
        for end, back, cut in ((x(low), 5, low < limits[0]), (x(high), -5, high > limits[1])):
            parts += [f'<path class="arrow" d="M{end + back:.1f} {y - 4:.1f}l{-back} 4 {back} 4"/>'] if cut else []
    if limits[0] <= mean <= limits[1]:
        mark = MARKS[outcome.removesuffix(ADJUSTED)]
        parts.append(f'<path class="mark" transform="translate({x(mean):.1f} {y:.1f})" d="{mark}"/>')
    elif mean != mean:
        parts.append(_text(x(limits[0]) + 6, y + 4, numbers, "tick"))
    drawn = f'<g class="{outcome}">{"".join(parts)}</g>'
    return f'<a href="{escape(href)}">{drawn}</a>' if href else drawn


def legend(outcomes: Iterable[str] = MARKS) -> str:
    """Draw the markers of outcomes with their names, for a forest plot."""
    mark = '<g class="{}"><path class="mark" transform="translate(14 0)" d="{}"/></g>'
    parts, end = _samples([(mark.format(name, MARKS[name.removesuffix(ADJUSTED)]), name) for name in outcomes], 0)
    return _svg(WIDTH, end, "legend", parts)


def curves(lines: Sequence[Line], *, x_label: str, y_label: str, percent: bool, label: str = "curves") -> str:
    """Draw named curves with their bands, and a legend below.

    Args:
        lines: The curves. Those after the first :data:`COLOURED` are grey, without a band, and do not set the range:
            they are cut where they leave it.
        x_label: Meaning and unit of a place.
        y_label: Meaning and unit of a value.
        percent: Whether places and values are shares, which are shown in percent.
        label: What it shows, for readers who do not see it.

    Returns:
        An ``<svg>`` element. Each curve has a ``<title>`` with its name and at most eleven of its values; its class is
        ``c0`` to ``c11``, or ``rest``.
    """
    made = [(line[0], np.stack(np.broadcast_arrays(*line[1:])) * (100 if percent else 1)) for line in lines]
    values = np.concatenate([arrays[1:].ravel() for _, arrays in made[:COLOURED]] or [np.empty(0)])
    if not np.isfinite(values).any():
        return _svg(WIDTH, 20, label, [_text(0, 14, "nothing to draw", "tick")])
    places = np.concatenate([arrays[0] for _, arrays in made])
    x_ticks, y_ticks = (_ticks(np.nanmin(each), np.nanmax(each)) for each in (places, values))
    x, y = _scale(x_ticks[0], x_ticks[-1], 44, WIDTH - _EDGE), _scale(y_ticks[0], y_ticks[-1], _HEIGHT, 24)
    parts = [_text(0, 12, y_label, "tick", WIDTH), _text(WIDTH, _HEIGHT + 32, x_label, "tick end", WIDTH)]
    for tick in y_ticks:
        parts.append(f'<path class="grid" d="M44 {y(tick):.1f}H{WIDTH - _EDGE:.1f}"/>')
        parts.append(_text(38, y(tick) + 4, f"{tick:g}", "tick end"))
    parts += [_text(x(tick), _HEIGHT + 15, f"{tick:g}", "tick middle") for tick in x_ticks]
    looks = [f"c{place}" if place < COLOURED else "rest" for place in range(len(made))]
    for look, (name, (across, up, low, high)) in reversed(list(zip(looks, made))):
        inside = np.where((up >= y_ticks[0]) & (up <= y_ticks[-1]), up, np.nan)
        numbers = "; ".join(f"{at:.4g}: {up:.4g}" for at, up in list(zip(across, up))[:: -(-len(up) // 11) or 1])
        drawn = _path(across, inside, x, y)
        band = np.isfinite(low) & np.isfinite(high) & (look != "rest")
        around = _path(np.r_[across[band], across[band][::-1]], np.r_[low[band], high[band][::-1]], x, y)
        parts.append(
            f'<g class="{look}"><title>{_escaped(f"{name}: {numbers}")}</title><path class="band" d="{around}"/>'
        )
        parts.append(f'<path class="line" d="{drawn}"/><path class="reach" d="{drawn}"/></g>')
    names = [*(name for name, *_ in made[:COLOURED]), f"{len(made) - COLOURED} others"][: len(made)]
    key = '<g class="{}"><path class="line" d="M0 0H24"/></g>'
    below, end = _samples([(key.format(look), name) for look, name in zip(looks, names)], _HEIGHT + 40)
    return _svg(WIDTH, end, label, parts + below)


def standalone(picture: str, style: str) -> str:
    """A picture as the text of a file, with the style sheet that a page has once."""
    start, rest = picture.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1).split(">", 1)
    return f"{start}><style>{style}</style>{rest}"


def _samples(samples: Iterable[tuple[str, str]], top: float) -> tuple[list[str], float]:
    """Samples with their names, in as many lines as it takes, and the place below them."""
    parts, x, y = [], 0.0, top + _LINE
    for sample, name in samples:
        wide = min(46 + _LETTER * len(name), WIDTH)
        x, y = (x, y) if x + wide <= WIDTH + 12 else (0.0, y + _LINE)
        parts.append(f'<g transform="translate({x:.1f} {y - 4:.1f})">{sample}{_text(29, 4, name, "", WIDTH - 29)}</g>')
        x += wide
    return parts, y + 6


def range_of(rows: Iterable[Row]) -> tuple[float, float]:
    """Range of an axis for rows: with 0, every mean, and the ends of all intervals but one in 21 on either side."""
    columns = ([mean, low, high] for _, mean, low, high, *_ in rows)
    means, lows, highs = (sorted(filter(math.isfinite, column)) for column in zip([math.nan] * 3, *columns))
    cut = len(lows) // 21
    ticks = _ticks(min([0.0, *means, *lows[cut:]]), max([0.0, *means, *highs[: len(highs) - cut]]))
    return ticks[0], ticks[-1]


def _ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values from at most ``low`` to at least ``high``, with few steps.

    Example:
        >>> _ticks(-0.3, 2.1)
        [-0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    """
    span = (high - low) / most or abs(high) / most or 1.0
    power = 10.0 ** math.floor(math.log10(span))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * place, 12) for place in range(first, max(last, first + 1) + 1)]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: float(np.interp(value, (low, high), (start, end)))


def _path(across: np.ndarray, up: np.ndarray, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    """Line through points, with gaps at values that do not exist."""
    parts, pen = [], "M"
    for place, value in zip(across, up, strict=True):
        there = math.isfinite(place) and math.isfinite(value)
        parts += [f"{pen}{x(place):.1f} {y(value):.1f}"] if there else []
        pen = "L" if there else "M"
    return "".join(parts)


def _escaped(text: str) -> str:
    return escape(printable(text))


def _text(x: float, y: float, text: str, look: str, room: float = 1000) -> str:
    """A text, cut to the room that there is, in units."""
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}">{escape(shortened(text, int(room / _LETTER)))}</text>'


def _svg(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'<svg class="plot" {size} role="group" aria-label="{_escaped(label)}">{"".join(parts)}</svg>'
