"""Recipe of Stanford Online Products: as In-shop, but one pass to an epoch (as in PER)."""

from __future__ import annotations

from dataclasses import replace

from .inshop import RECIPE as INSHOP

RECIPE = replace(INSHOP, epoch_repeats=1.0)
