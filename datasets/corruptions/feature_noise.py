"""Additive Gaussian noise on features."""

from __future__ import annotations

import torch
from scipy.special import ndtri
from torch import Tensor

from ._base import Corruption, Draw


def feature_noise(features: Tensor, severity: float, draw: Draw) -> Tensor:
    """Add Gaussian noise whose SD is the severity times the root mean square of the image's features."""
    normal = torch.from_numpy(ndtri(draw(len(features)))).to(features.dtype)
    return features + severity * features.square().mean().sqrt() * normal


CORRUPTION = Corruption(
    "feature_noise", "additive Gaussian, SD severity x root mean square of the features", 0.0, 1.0, feature_noise,
    of="features",
)  # fmt: skip
