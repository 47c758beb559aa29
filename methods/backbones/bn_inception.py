"""BN-Inception (Ioffe and Szegedy, ICML 2015), with the layer names of its public Caffe port.

The usual backbone of deep metric learning. A checkpoint of the port loads by name; its input is BGR in 0..255 minus
the mean (104, 117, 128).
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .pretrained import InputFormat, Photographs, check_colour
from .pretrained import load_weights as load_weights

# Channels of each block: 1x1, 3x3 reduce, 3x3, double 3x3 reduce, double 3x3, projection after the pool, pool.
# A block without a projection halves the resolution.
BLOCKS = {
    "3a": (64, 64, 64, 64, 96, 32, "avg"),
    "3b": (64, 64, 96, 64, 96, 64, "avg"),
    "3c": (0, 128, 160, 64, 96, 0, "max"),
    "4a": (224, 64, 96, 96, 128, 128, "avg"),
    "4b": (192, 96, 128, 96, 128, 128, "avg"),
    "4c": (160, 128, 160, 128, 160, 128, "avg"),
    "4d": (96, 128, 192, 160, 192, 128, "avg"),
    "4e": (0, 128, 192, 192, 256, 0, "max"),
    "5a": (352, 192, 320, 160, 224, 128, "avg"),
    "5b": (352, 192, 320, 192, 224, 128, "max"),
}


class BNInception(nn.Module):
    """BN-Inception network from images ``[B, 3, H, W]`` to feature maps ``[B, 1024, H/32, W/32]``.

    The images must be normalised as in the pretraining of the weights that it is given.
    """

    num_features = 1024

    def __init__(self) -> None:
        super().__init__()
        self._conv("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._conv("conv2_3x3_reduce", 64, 64, 1)
        self._conv("conv2_3x3", 64, 192, 3)
        channels = 192
        for block, (one, reduce, three, reduce2, double, project, _) in BLOCKS.items():
            name, stride = f"inception_{block}", 1 if project else 2
            if one:
                self._conv(f"{name}_1x1", channels, one, 1)
            self._conv(f"{name}_3x3_reduce", channels, reduce, 1)
            self._conv(f"{name}_3x3", reduce, three, 3, stride)
            self._conv(f"{name}_double_3x3_reduce", channels, reduce2, 1)
            self._conv(f"{name}_double_3x3_1", reduce2, double, 3)
            self._conv(f"{name}_double_3x3_2", double, double, 3, stride)
            if project:
                self._conv(f"{name}_pool_proj", channels, project, 1)
            channels = one + three + double + (project or channels)

    def _conv(self, name: str, inside: int, outside: int, size: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inside, outside, size, stride, padding=size // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outside))

    def _apply_conv(self, name: str, x: Tensor) -> Tensor:
        return F.relu(getattr(self, f"{name}_bn")(getattr(self, name)(x)))

    def forward(self, images: Tensor) -> Tensor:
        """Feature maps ``[B, 1024, H/32, W/32]`` of images ``[B, 3, H, W]``, normalised as in the pretraining."""
        x = F.max_pool2d(self._apply_conv("conv1_7x7_s2", images), 3, 2, ceil_mode=True)
        x = self._apply_conv("conv2_3x3", self._apply_conv("conv2_3x3_reduce", x))
        x = F.max_pool2d(x, 3, 2, ceil_mode=True)
        for block, (one, *_, project, pool) in BLOCKS.items():
            name = f"inception_{block}"
            three = self._apply_conv(f"{name}_3x3", self._apply_conv(f"{name}_3x3_reduce", x))
            double = self._apply_conv(f"{name}_double_3x3_1", self._apply_conv(f"{name}_double_3x3_reduce", x))
            double = self._apply_conv(f"{name}_double_3x3_2", double)
            if not project:
                pooled = F.max_pool2d(x, 3, 2, ceil_mode=True)
            else:
                pooled = F.avg_pool2d(x, 3, 1, padding=1) if pool == "avg" else F.max_pool2d(x, 3, 1, padding=1)
                pooled = self._apply_conv(f"{name}_pool_proj", pooled)
            parts = [self._apply_conv(f"{name}_1x1", x)] if one else []
            x = torch.cat([*parts, three, double, pooled], 1)
        return x


CAFFE = InputFormat("BGR", 255.0, (104.0, 117.0, 128.0), (1.0, 1.0, 1.0))
"""Input format of the public weights."""


def build(name: str, in_channels: int, freeze_norm: str, pooling: str | None, image_size: int | None) -> Photographs:
    """Build BN-Inception for photographs in colour, with random weights; see :func:`.pretrained.build`."""
    check_colour(name, in_channels)
    return Photographs(BNInception(), CAFFE, freeze_norm, pooling or "avg_max")


def cached_weights(name: str) -> Path | None:
    """Return None in place of a file: neither timm nor torch caches the public weights of BN-Inception."""
    return None
