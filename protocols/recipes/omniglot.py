"""Recipe of Omniglot: that of ``scans`` with six epochs and lower rates, chosen on validation classes."""

from __future__ import annotations

from dataclasses import replace

from ._base import Range
from .scans import RECIPE as SCANS

RECIPE = replace(
    SCANS,
    end_to_end=replace(
        SCANS.end_to_end,
        epochs=6,
        lr=4e-3,
        lr_objective=1.5e-2,
        search={"lr": Range(1e-3, 2e-2, log=True), "lr_objective": Range(2e-3, 2e-1, log=True)},
    ),
    # Whole drawings of 105 pixels would take 640 MB of the cache.
    view={**SCANS.view, "cache_side": 64},
)
