"""Stand-in for the backbone of a data set of features: it divides them by a constant."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn


class GivenFeatures(nn.Module):
    """Features ``[B, F]`` that are given, divided by a constant, as those of a frozen backbone are."""

    feature_scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out_features = width
        self.register_buffer("feature_scale", torch.ones(()))

    @torch.no_grad()
    def calibrate(self, features: Tensor) -> None:
        """Set the constant so that the root mean square of these features is 1."""
        self.feature_scale.copy_(features.float().square().mean().sqrt().clamp_min(1e-6))

    def forward(self, features: Tensor) -> Tensor:
        """The features ``[B, F]``, divided by the constant."""
        return features / self.feature_scale


def build(name: str, in_channels: int, freeze_norm: str, pooling: str | None, image_size: int | None) -> GivenFeatures:
    """Build :class:`GivenFeatures`, whose width is the number of input channels; it has no norms and pools nothing."""
    return GivenFeatures(in_channels)


def load_weights(network: GivenFeatures, path: Path) -> None:
    """Refuse with a ValueError: features have no weights."""
    raise ValueError("features that are given have no weights")
