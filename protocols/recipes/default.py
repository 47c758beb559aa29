"""Recipe of data sets without their own: that of ``ndigit``, for small images, with embedding size 128."""

from __future__ import annotations

from dataclasses import replace

from .ndigit import RECIPE as NDIGIT

RECIPE = replace(NDIGIT, dim=128)
