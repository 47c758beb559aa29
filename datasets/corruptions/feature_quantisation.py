"""Quantisation of features to few levels."""

from __future__ import annotations

from torch import Tensor

from ._base import Corruption, Draw


def feature_quantisation(features: Tensor, severity: float, draw: Draw) -> Tensor:
    """Round features to 2^(8 (1 - severity)) levels, at least 2, from the least to the greatest of the image."""
    low, high = features.min(), features.max()
    if low == high:
        return features
    steps = max(2, round(2 ** (8 * (1 - severity)))) - 1
    return low + ((features - low) / (high - low) * steps).round() / steps * (high - low)


CORRUPTION = Corruption(
    "feature_quantisation", "2^(8 (1 - severity)) levels, at least 2", 0.0, 1.0, feature_quantisation, of="features"
)
