"""``ndigit`` with 200 classes of 10 images: the same recipe."""

from __future__ import annotations

from .ndigit import RECIPE

__all__ = ["RECIPE"]
