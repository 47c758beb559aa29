"""Additive Gaussian noise."""

from __future__ import annotations

import torch
from scipy.special import ndtri
from torch import Tensor

from ._base import Corruption, Draw

NOISE_SD = 0.4
"""Standard deviation of the strongest noise, for pixels in [0, 1]."""


def noise(image: Tensor, severity: float, draw: Draw) -> Tensor:
    """Add Gaussian noise whose pattern does not depend on the severity."""
    # torchvision's gaussian_noise takes its numbers from the global generator.
    normal = torch.from_numpy(ndtri(draw(image.numel()))).view(image.shape)
    noisy: Tensor = image + 255 * NOISE_SD * severity * normal
    return noisy.round_().clamp_(0, 255).to(torch.uint8)


CORRUPTION = Corruption("noise", f"additive Gaussian, SD {NOISE_SD:g} x severity of the grey range", 0.0, 1.0, noise)
