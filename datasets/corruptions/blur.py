"""Gaussian blur."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._base import Corruption, Draw

BLUR_SIGMA = 0.08
"""Standard deviation of the strongest blur, as a fraction of the image's shorter side."""


def blur(image: Tensor, severity: float, draw: Draw) -> Tensor:
    """Blur an image with a Gaussian that is cut off at 3 standard deviations; the image is mirrored at its borders."""
    from torchvision.transforms.v2 import functional as F

    side = min(image.shape[1:])
    sigma = severity * BLUR_SIGMA * side
    # Three standard deviations; mirrored borders cannot be wider than the image.
    reach = min(max(1, math.ceil(3 * sigma)), side - 1)
    width = 2 * reach + 1
    # One axis after the other: torchvision convolves with the full square kernel, which is slow if it is wide.
    rows = F.gaussian_blur(image.float(), [width, 1], [sigma, sigma])
    both: Tensor = F.gaussian_blur(rows, [1, width], [sigma, sigma])
    return both.round_().to(torch.uint8)


CORRUPTION = Corruption("blur", f"Gaussian, sigma = {BLUR_SIGMA:g} x severity x shorter side", 0.0, 1.0, blur)
