"""Checked pairs of vectors for statistics in NumPy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def as_vectors(a: Tensor, b: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Check that two tensors are finite vectors of one length, and convert them to float64 NumPy arrays."""
    if a.shape != b.shape or a.dim() != 1:
        raise ValueError(f"expected two vectors of one length, got {tuple(a.shape)} and {tuple(b.shape)}")
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise ValueError("values must be finite")
    return a.double().numpy(), b.double().numpy()
