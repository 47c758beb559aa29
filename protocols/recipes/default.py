"""Data sets without a recipe of their own: small images, embedding size 128."""

from __future__ import annotations

from dataclasses import replace

from .ndigit import RECIPE as NDIGIT

RECIPE = replace(NDIGIT, dim=128)
