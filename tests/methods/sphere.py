"""Integration over the sphere in three dimensions."""

import math

import numpy as np
import torch


def sphere(heights, around):
    """Nodes ``[N, 3]`` and weights ``[N]``: a Gauss-Legendre rule for the height, equal steps around the axis."""
    height, weight = map(torch.from_numpy, np.polynomial.legendre.leggauss(heights))
    angle = torch.arange(around, dtype=torch.float64) * (2 * math.pi / around)
    ring = (1 - height**2).sqrt()[:, None]
    nodes = torch.stack([ring * angle.cos(), ring * angle.sin(), height[:, None].expand(heights, around)], -1)
    return nodes.flatten(0, 1), weight.repeat_interleave(around) * (2 * math.pi / around)
