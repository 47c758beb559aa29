"""Curves of a page: errors and MAP@R as the least confident queries are left out, as SVG and as data for hovering."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from ...protocols.rows import CONTROLS, OWN
from ..contender import Contender
from ..render import csv_uri
from ..seeds import SeedGroup
from ..verdicts import IMAGES
from .words import Anchors, DatasetFacts, named

WIDTH, HEIGHT = 420, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 10, 38
COLOURS = 6
"""Number of colours; the next curves have them too, dashed."""


@dataclass(frozen=True)
class Line:
    """Curve in a chart, of shares removed and values in percent.

    Its style is ``c0`` to ``c5``, the dashed ``c6`` to ``c11``, ``rest`` (grey) or ``control``.
    """

    label: str
    style: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Chart:
    """Chart of curves against the share of queries that are left out, in percent, those with a colour on top."""

    anchor: str
    title: str
    y_title: str
    lines: tuple[Line, ...]

    @property
    def legend(self) -> list[Line]:
        """Curves that are named next to the chart, in the order of their colours."""
        named_ones = [line for line in self.lines if line.style != "rest"]
        return named_ones[::-1]

    @property
    def others(self) -> int:
        """Number of grey curves."""
        return len(self.lines) - len(self.legend)

    @cached_property
    def x_ticks(self) -> list[tuple[str, float]]:
        """Texts and places of the marks of the horizontal axis."""
        return [(f"{value:g}", self._x(value)) for value in _ticks(0, self._most, 5)]

    @cached_property
    def y_ticks(self) -> list[tuple[str, float]]:
        """Texts and places of the marks of the vertical axis."""
        return [(f"{value:g}", self._y(value)) for value in self._levels]

    @cached_property
    def _levels(self) -> list[float]:
        # Of the named curves: a network at chance would leave the others a few pixels.
        values = [y for line in self.legend or self.lines for _, y in line.points]
        return _ticks(min(values), max(values), 5)

    @property
    def cut(self) -> bool:
        """True if a grey curve leaves the frame."""
        low, high = self._levels[0], self._levels[-1]
        return any(not low <= y <= high for line in self.lines for _, y in line.points)

    @cached_property
    def _most(self) -> float:
        return max(max(x for line in self.lines for x, _ in line.points), 1.0)

    def _x(self, value: float) -> float:
        return round(_LEFT + value / self._most * (WIDTH - _LEFT - _RIGHT), 1)

    def _y(self, value: float) -> float:
        low, high = self._levels[0], self._levels[-1]
        return round(HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM), 1)

    def path(self, line: Line) -> str:
        """Points of a curve, in the coordinates of the SVG."""
        return " ".join(f"{self._x(x)},{self._y(y)}" for x, y in line.points)

    @property
    def data(self) -> dict[str, object]:
        """Values for the script that shows them on hovering."""
        shares = sorted({x for line in self.lines for x, _ in line.points})
        return {
            "x": shares,
            "y_title": self.y_title,
            "range": [self._levels[0], self._levels[-1]],
            "lines": [
                {"label": line.label, "style": line.style, "y": [dict(line.points).get(x) for x in shares]}
                for line in self.lines
            ],
        }

    @property
    def csv(self) -> str:
        """Its numbers as CSV, in a data URI."""
        rows = [(line.label, x, y) for line in self.lines for x, y in line.points]
        return csv_uri(pd.DataFrame(rows, columns=["curve", "removed_percent", "value_percent"]))


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Round values from at most ``low`` to at least ``high``, about ``count`` steps."""
    span = max(high - low, 1e-6)
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * count >= span)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * place, 10) for place in range(first, max(last, first + 1) + 1)]


def charts_of(facts: DatasetFacts, leader: Contender, anchors: Anchors) -> list[Chart]:
    """Draw the curves of a data set: every method by its default confidence, and one by all its confidences."""
    found = []
    for split, images in IMAGES.items():
        for metric, title, risk in (
            ("filter_out_recall_at_1", "errors left (1 − R@1), %", True),
            ("filter_out_map_at_r", "MAP@R, %", False),
        ):
            lines = tuple(_by_method(facts, metric, split, risk))
            if lines:
                text = f"{facts.title}, {images}: {title.removesuffix(', %')} of each method by its default confidence"
                found.append(Chart(anchors.of("curve", facts.name, split, metric), text, title, lines))
        lines = tuple(_by_confidence(facts.groups[leader], split))
        if lines:
            label = facts.labels[leader]
            text = f"{facts.title}, {images}: errors left by each confidence of {label}"
            found.append(
                Chart(anchors.of("curve", facts.name, split, "leader"), text, "errors left (1 − R@1), %", lines)
            )
    return found


def _points(group: SeedGroup, metric: str, split: str, confidence: str, risk: bool) -> tuple[tuple[float, float], ...]:
    curve = group.curve(metric, split, "query_only", confidence)
    means = {share: value.mean for share, value in curve.items() if value.defined}
    return tuple((round(100 * x, 2), round(100 * (1 - y if risk else y), 3)) for x, y in means.items())


def _by_method(facts: DatasetFacts, metric: str, split: str, risk: bool) -> Iterator[Line]:
    found = []
    for row in facts.rows:
        points = _points(facts.groups[row.contender], metric, split, row.confidence, risk)
        if points:
            found.append((f"{facts.labels[row.contender]} [{row.confidence}]", points))
    yield from _styled(found, COLOURS)


def _styled(found: Sequence[tuple[str, tuple[tuple[float, float], ...]]], coloured: int) -> Iterator[Line]:
    """Curves with their styles: a colour for the first ones, which are drawn on top of the others."""
    for place, (label, points) in reversed(list(enumerate(found))):
        yield Line(label, f"c{place}" if place < coloured else "rest", points)


def _by_confidence(group: SeedGroup, split: str) -> Iterator[Line]:
    metric = "filter_out_recall_at_1"
    tested = group.rows[(group.rows["metric"] == metric) & (group.rows["split"] == split)]
    names = sorted(set(tested["confidence"]) - set(CONTROLS), key=lambda name: (name != OWN, name))
    for control in CONTROLS:
        points = _points(group, metric, split, control, True)
        if points:
            yield Line(control, "control", points)
    found = [(named(name), points) for name in names if (points := _points(group, metric, split, name, True))]
    yield from _styled(found, 2 * COLOURS)
