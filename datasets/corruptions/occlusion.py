"""Occlusion by a patch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._base import Corruption, Draw


def occlusion(image: Tensor, severity: float, draw: Draw) -> Tensor:
    """Cover a patch of the image's aspect ratio with the mean colour; the severity is its share of the area."""
    from torchvision.transforms.v2 import functional as F

    height, width = image.shape[1:]
    h, w = (round(math.sqrt(severity) * side) for side in (height, width))
    u, v = draw(2).tolist()
    grey = image.double().mean((1, 2), keepdim=True).round_().to(torch.uint8)
    covered: Tensor = F.erase(image, math.floor(u * (height - h + 1)), math.floor(v * (width - w + 1)), h, w, grey)
    return covered


CORRUPTION = Corruption(
    "occlusion", "a patch of the image's mean colour; severity is its share of the area", 0.0, 0.5, occlusion
)
