"""Recipe of In-shop: as CUB-200-2011, but CosFace as the base, 128 epochs, two passes to an epoch (as in PER)."""

from __future__ import annotations

from dataclasses import replace

from .cub200 import RECIPE as CUB

RECIPE = replace(CUB, base="cosface", end_to_end=replace(CUB.end_to_end, epochs=128), epoch_repeats=2.0)
