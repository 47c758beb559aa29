"""``ndigit`` at 10 x 26 px with 300 classes of 8 images: the same recipe."""

from __future__ import annotations

from .ndigit import RECIPE

__all__ = ["RECIPE"]
