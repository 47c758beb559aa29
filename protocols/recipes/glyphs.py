"""Tight glyphs, 2 to 12 images a class."""

from __future__ import annotations

from .ndigit import RECIPE

__all__ = ["RECIPE"]
