"""Dropout of features."""

from __future__ import annotations

import torch
from torch import Tensor

from ._base import Corruption, Draw


def feature_dropout(features: Tensor, severity: float, draw: Draw) -> Tensor:
    """Set each feature to 0 with the severity as probability; what is 0 at a severity is so at any greater one."""
    return features * (torch.from_numpy(draw(len(features))) >= severity)


CORRUPTION = Corruption(
    "feature_dropout", "each feature is 0 with the severity as probability", 0.0, 0.9, feature_dropout, of="features"
)
