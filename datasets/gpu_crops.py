"""Boxes of decoded images, cut out and resized on a GPU, many at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

AT_ONCE = 1 << 23
"""Most pixels that are gathered at once: 24 bytes of memory each."""


def resized_boxes(pixels: Tensor, boxes: Tensor, most: Sequence[int], size: int, interpolation: str) -> Tensor:
    """Cut boxes out of images and resize them with antialiasing, as ``torch.nn.functional.interpolate`` does to one.

    A change of size is a linear map of each axis, so that a batch is two batched matrix products. Values are those of
    ``interpolate`` up to two levels of 255, whose weights are rounded.

    Args:
        pixels: uint8 ``[P, 3]``, the pixels of all images, row by row.
        boxes: int64 ``[B, 6]``: number of the first pixel of an image, its width, and top, left, height and width of a
            box in it.
        most: Height and width of the highest and of the widest box.
        size: Side S of the result.
        interpolation: ``bilinear`` or ``bicubic``.

    Returns:
        uint8 ``[B, 3, S, S]``, channels last in memory, on the device of the pixels.
    """
    height, width = most
    made = []
    for part in boxes.split(max(1, AT_ONCE // (height * width))):
        first, row, top, left, *sides = part.unbind(1)
        # Beyond its box, a smaller one repeats its last pixels, whose weights are 0.
        down, across = (
            torch.minimum(torch.arange(most, device=pixels.device), side[:, None] - 1)
            for most, side in zip(most, sides)
        )
        rows = (first + top * row + left)[:, None] + down * row[:, None]
        found = pixels[rows[:, :, None] + across[:, None]]  # [b, height, width, 3]
        down, across = (_weights(side, most, size, interpolation) for side, most in zip(sides, most))
        found = found.transpose(1, 2).reshape(-1, width, 3 * height).float()
        found = torch.bmm(across, found).round_().clamp_(0, 255).view(-1, size, height, 3)
        found = torch.bmm(down, found.transpose(1, 2).reshape(-1, height, 3 * size)).round_().clamp_(0, 255)
        made.append(found.to(torch.uint8).view(-1, size, size, 3))
    return torch.cat(made).permute(0, 3, 1, 2)


def _weights(lengths: Tensor, most: int, size: int, interpolation: str) -> Tensor:
    """Weights ``[B, S, most]`` of the pixels of an axis in the S pixels that axes of such lengths ``[B]`` become."""
    scale = lengths[:, None, None] / size
    centre = (torch.arange(size, device=lengths.device)[:, None] + 0.5) * scale
    place = torch.arange(most, device=lengths.device)
    distance = ((place + 0.5 - centre) / scale.clamp_min(1)).abs()
    if interpolation == "bilinear":
        weights = (1 - distance).clamp_min(0)
    else:  # Keys 1981 with a = -1/2, as in Pillow
        near = (1.5 * distance - 2.5) * distance * distance + 1
        far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
        weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0))
    weights = weights.masked_fill(place >= lengths[:, None, None], 0)
    return weights / weights.sum(2, keepdim=True)
