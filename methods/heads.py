"""Heads between pooled features and distribution parameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LOG_RANGE = 30.0
"""Log-spreads stay within this distance of their initial value, which only keeps float32 from overflowing.

A tighter bound is a trap: beyond it the gradient is zero, so a regulariser cannot bring a variance back that one large
step threw out (at 12, DUL-cls on ``ndigit`` with a KL weight of 3e-4 ended with one constant variance).
"""


class MeanHead(nn.Linear):
    """One linear layer from pooled features ``[B, F]`` to the raw embedding ``[B, D]``, bias zero at the start.

    The same for every method, so that a comparison of methods is not a comparison of necks.
    """

    def __init__(self, in_features: int, dim: int) -> None:
        super().__init__(in_features, dim)
        nn.init.zeros_(self.bias)


class SpreadHead(nn.Sequential):
    """Three linear layers with ReLU from features ``[B, F]`` to raw log-spreads ``[B, out]``, F -> F/2 -> F/4 -> out.

    PER's public code leaves the ReLUs out, its text and SCF have them. The last layer starts small, so that the
    spread starts near its initial value for every image while its gradient is not zero.
    """

    def __init__(self, in_features: int, out: int = 1) -> None:
        wide, narrow = max(8, in_features // 2), max(8, in_features // 4)
        super().__init__(
            nn.Linear(in_features, wide), nn.ReLU(), nn.Linear(wide, narrow), nn.ReLU(), nn.Linear(narrow, out)
        )
        last = self[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.zero_()


def variance_from_raw(raw: Tensor, dim: int) -> Tensor:
    """Variance ``(2 / dim) * exp(raw)``.

    At ``2 / dim`` a sample's noise has squared norm 2 beside a unit mean: the cosine between a sample and its mean
    is about 0.58 in any dimension, where PER's initial variance of 1 gives 1/sqrt(dim + 1), no signal at all at 128.

    Args:
        raw: Any shape, unbounded; clamped to +-:data:`LOG_RANGE`.
        dim: Embedding size.
    """
    return torch.exp(raw.clamp(-LOG_RANGE, LOG_RANGE) + math.log(2.0 / dim))
