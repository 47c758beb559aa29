"""Cars196: as CUB-200-2011."""

from __future__ import annotations

from .cub200 import RECIPE

__all__ = ["RECIPE"]
