"""JPEG compression."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor

from ._base import Corruption, Draw

JPEG_QUALITY = (95, 5)
"""JPEG quality as severity approaches 0, and at severity 1."""


def jpeg(image: Tensor, severity: float, draw: Draw) -> Tensor:
    """Compress an image as JPEG, in colour if it has three channels, else channel by channel, and decode it again."""
    from PIL import Image

    best, worst = JPEG_QUALITY
    # torchvision's jpeg is deprecated; both call libjpeg.
    parts = []
    for part in [image] if len(image) == 3 else image.split(1):
        file = io.BytesIO()
        pixels = part.permute(1, 2, 0).numpy()
        Image.fromarray(pixels if len(part) == 3 else pixels[:, :, 0]).save(
            file, "jpeg", quality=round(best + (worst - best) * severity)
        )
        with Image.open(file) as read:
            parts.append(torch.from_numpy(np.array(read)).view(*image.shape[1:], len(part)).permute(2, 0, 1))
    return torch.cat(parts)


CORRUPTION = Corruption("jpeg", "JPEG, quality 95 to 5", 0.0, 1.0, jpeg)
