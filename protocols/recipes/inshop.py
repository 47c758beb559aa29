"""In-shop: as CUB-200-2011, with CosFace as the base, longer, and two passes to an epoch (PER)."""

from __future__ import annotations

from dataclasses import replace

from .cub200 import RECIPE as CUB

RECIPE = replace(CUB, base="cosface", end_to_end=replace(CUB.end_to_end, epochs=128), epoch_repeats=2.0)
