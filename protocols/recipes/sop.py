"""Stanford Online Products: as In-shop, one pass to an epoch (PER)."""

from __future__ import annotations

from dataclasses import replace

from .inshop import RECIPE as INSHOP

RECIPE = replace(INSHOP, epoch_repeats=1.0)
