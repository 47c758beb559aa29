"""From the feature maps of a backbone to distribution parameters: global pooling and heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def pooled(maps: Tensor, pooling: str) -> Tensor:
    """Global pooling of feature maps ``[B, F, h, w]`` to features ``[B, F]``.

    ``avg`` is the mean over the positions, ``avg_max`` the mean plus the maximum. The latter is the pooling of
    Probabilistic Embeddings Revisited and the "double" pooling of NIR (Roth et al., CVPR 2022); EL-nivMF (Kirchhof et
    al., ECCV 2022) and the other results of NIR take the mean alone.
    """
    mean = maps.mean((2, 3))
    return mean + maps.amax((2, 3)) if pooling == "avg_max" else mean


class MeanHead(nn.Linear):
    """One linear layer from pooled features ``[B, F]`` to the raw embedding ``[B, D]``, bias zero at the start.

    Every method has this head, so that differences between methods do not come from different heads.
    """

    def __init__(self, in_features: int, dim: int) -> None:
        super().__init__(in_features, dim)
        nn.init.zeros_(self.bias)


class FewOutputs(nn.Linear):
    """Linear layer from ``[B, F]`` to few numbers ``[B, out]``, as products and sums.

    Libraries round products of so small matrices differently for processors with other instruction sets, and a training
    magnifies a last bit: after some epochs, the networks differ as those of two seeds do.
    """

    def forward(self, features: Tensor) -> Tensor:
        """Outputs ``[B, out]`` of features ``[B, F]``."""
        return (features[:, None] * self.weight).sum(-1) + self.bias


class SpreadHead(nn.Sequential):
    """Three linear layers with leaky ReLU from features ``[B, F]`` to raw spreads ``[B, out]``, F -> F/2 -> F/4 -> out.

    A raw spread is an unbounded number that is mapped to a variance or a concentration elsewhere. Plain ReLUs, as in
    the papers, die under large learning rates: every image gets the same confidence, for the rest of the training. A
    slope of 0.01 below zero keeps the gradient. The last layer starts small, so that the spread starts near its initial
    value for every image while its gradient is not zero. ``linear`` leaves out the activations and the small start, as
    the public code of Probabilistic Embeddings Revisited does.
    """

    DEVIATION = "the variance head has leaky ReLUs (slope 0.01): plain ones die (the papers: ReLU; PER's code: none)"

    def __init__(self, in_features: int, out: int = 1, *, linear: bool = False) -> None:
        wide, narrow = max(8, in_features // 2), max(8, in_features // 4)
        super().__init__(
            nn.Linear(in_features, wide),
            nn.Identity() if linear else nn.LeakyReLU(0.01),
            nn.Linear(wide, narrow),
            nn.Identity() if linear else nn.LeakyReLU(0.01),
            # Products of many outputs would take a lot of memory before they are summed.
            FewOutputs(narrow, out) if out <= 8 else nn.Linear(narrow, out),
        )
        last = self[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            if not linear:
                last.weight.mul_(0.1)
            last.bias.zero_()


def positive_from_raw(raw: Tensor) -> Tensor:
    """Map from real to positive numbers with a continuous slope: phi(r) = 1 / (1 - r) for r < 0, else 1 + r.

    It is the map of Probabilistic Embeddings Revisited.

    Example:
        >>> positive_from_raw(torch.tensor([-3.0, 0.0, 3.0]))
        tensor([0.2500, 1.0000, 4.0000])
    """
    return torch.where(raw < 0, 1.0 / (1.0 + raw.clamp(max=0).abs()), 1.0 + raw)


def variance_from_raw(raw: Tensor, dim: int) -> Tensor:
    """Variance ``(2 / dim) * phi(raw)`` from unbounded numbers of any shape (:func:`positive_from_raw`).

    The map has a continuous slope and needs no clamp: however far one large step throws a raw value out, its gradient
    stays of the order of 1/r and a regulariser can bring it back. With a clamped exponential the gradient beyond the
    clamp is zero, and a variance that gets there stays constant.

    At ``2 / dim`` a sample's noise has squared norm 2 against a unit mean: the cosine between a sample and its mean is
    about 0.58 in any dimension. An initial variance of 1, as in Probabilistic Embeddings Revisited, gives 1/sqrt(dim +
    1), hardly any signal at dim = 128.

    Example:
        >>> variance_from_raw(torch.tensor([-3.0, 0.0, 3.0]), dim=2)
        tensor([0.2500, 1.0000, 4.0000])
    """
    return (2.0 / dim) * positive_from_raw(raw)
