"""In-shop with queries and gallery merged: as In-shop."""

from __future__ import annotations

from .inshop import RECIPE

__all__ = ["RECIPE"]
