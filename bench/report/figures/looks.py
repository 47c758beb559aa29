"""Colour, marker and line of each method, the same in every figure, whichever other methods there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from itertools import count

from ...registry import Registry
from .style import PALETTE

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
"""Markers; a prime number of them, so that steps of any length visit all."""
LINES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1)))
"""Lines: a dash pattern that matplotlib names, or ``(offset, lengths of dashes and gaps)``."""
FILLS = ("full", "none", "left", "right", "top", "bottom")
"""Fills of markers, by which settings of one method differ."""

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
    return dict(zip(own, count()))


def look_of(method: str) -> Look:
    """Look of a method by its name alone.

    Methods of this package have slots by their place in the list of methods. Others, of plug-ins and installed
    packages, have one of the slots that are left, by a hash of their name.
    """
    built_in = _built_in()
    if method in built_in:
        return look_at(built_in[method])
    left = max(1, SLOTS - len(built_in))
    digest = int.from_bytes(blake2b(method.encode(), digest_size=8).digest(), "big")
    return look_at(len(built_in) + digest % left)


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
