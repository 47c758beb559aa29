"""Corruptions of the test images, and their ranges of severity."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import UserError, shortened


def corruption_ranges(
    asked: tuple[str, ...], preset: Mapping[str, tuple[float, float]]
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """Corruptions to test with their ranges of severity, and, as text, those whose severities are not the default.

    They are comma-separated ``NAME``, ``NAME:LEVEL``, ``NAME:LEVEL-LEVEL`` (level k of 1 to 5 is severity k / 5) or
    ``NAME:LOW-HIGH`` (severities in [0, 1], told from levels by a decimal point). ``all`` adds every corruption that is
    not named. The preset's are tested if nothing is asked for.
    """
    from ..datasets.corruptions.registry import CORRUPTIONS

    if not asked:
        return dict(preset), []
    usual = {name: preset.get(name, (kind.low, kind.high)) for name, kind in CORRUPTIONS.items()}
    ranges: dict[str, tuple[float, float]] = {}
    named = [part.strip() for text in asked for part in text.split(",") if part.strip()]
    if "all" in named:
        named = [text for text in named if text != "all"]
        named += [name for name in CORRUPTIONS if name not in {text.partition(":")[0] for text in named}]
    if not named:
        raise UserError(f"--corruptions names no corruption; use {', '.join(CORRUPTIONS)} or all")
    for text in named:
        name, colon, bounds = text.partition(":")
        if name in ranges:
            raise UserError(f"--corruptions {text}: {name} is named twice; one range covers all severities in between")
        ranges[name] = _severities(name, text, bounds) if colon else usual[name]
    # The order in which they were typed sets nothing apart.
    ranges = {name: ranges[name] for name in CORRUPTIONS if name in ranges}
    apart = [
        f"{name}:{low}" + (f"-{high}" if high != low else "")
        for name, (low, high) in ranges.items()
        if (low, high) != usual[name]
    ]
    return ranges, apart


def _severities(name: str, text: str, bounds: str) -> tuple[float, float]:
    from ..datasets.corruptions._base import LEVELS, check_range

    low, dash, high = bounds.partition("-")
    ends = [low, high if dash else low]
    # A decimal point distinguishes a severity from a level: 1 is the mildest of five, 1.0 the strongest there is.
    by_level = not any("." in end for end in ends)
    try:
        numbers = [int(end) / LEVELS if by_level else float(end) for end in ends]
        if by_level and not 0 < min(numbers) <= max(numbers) <= 1:
            raise ValueError
    except (ValueError, OverflowError):
        raise UserError(
            f"--corruptions {shortened(text, 60)}: expected a level from 1 to {LEVELS} ({name}:3, {name}:1-4) or"
            f" severities with a decimal point ({name}:0.2-0.8)"
        ) from None
    try:
        check_range(name, numbers[0], numbers[1])
    except ValueError as error:
        raise UserError(f"--corruptions {text}: {error}") from None
    return numbers[0], numbers[1]
