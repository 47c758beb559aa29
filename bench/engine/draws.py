"""Random generators, seeded by what their draws may depend on."""

from __future__ import annotations

import torch

from ..seeds import seed_for


def generator(*axes: str | int) -> torch.Generator:
    """Random generator on the CPU, seeded by the given names and numbers alone, such as data set and seed."""
    return torch.Generator().manual_seed(seed_for(*axes))
