"""Conditional normalising flow of NIR: permutations and affine couplings (GLOW couplings without ActNorm)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

SQUASH = 0.636
"""FrEIA's approximation of 2/pi: |log scale| stays below 1.998 at clamp 2."""


def _subnet(inputs: int, outputs: int, depth: int, width: int) -> nn.Sequential:
    sizes = [inputs, *[width] * (depth - 1), outputs]
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Coupling(nn.Module):
    """Layer of a normalising flow: a fixed permutation of the dimensions, then a two-sided affine coupling.

    Each half of the dimensions is scaled and shifted by the outputs of a small network, the subnet of ``depth`` linear
    layers of ``width`` units, that reads the other half and a condition of the given size (0 for none). The absolute
    values of log scales stay below about 0.999 times ``clamp``.
    """

    permutation: Tensor
    inverse_permutation: Tensor

    def __init__(self, dim: int, condition: int, depth: int, width: int, clamp: float, permutation: Tensor) -> None:
        super().__init__()
        self.first = round(dim / 2)
        self.second = dim - self.first
        self.clamp, self.conditioned = clamp, condition > 0
        self.register_buffer("permutation", permutation)
        self.register_buffer("inverse_permutation", permutation.argsort())
        # ``to_second`` scales the second half given the first, ``to_first`` the first half given the second.
        self.to_second = _subnet(self.first + condition, 2 * self.second, depth, width)
        self.to_first = _subnet(self.second + condition, 2 * self.first, depth, width)

    def _affine(self, subnet: nn.Sequential, x: Tensor, condition: Tensor | None, size: int) -> tuple[Tensor, Tensor]:
        inputs = torch.cat([x, condition], 1) if self.conditioned and condition is not None else x
        out = subnet(inputs)
        return self.clamp * SQUASH * torch.atan(out[:, :size]), out[:, size:]

    def forward(self, x: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        """Output ``[B, D]`` of the layer for inputs ``[B, D]``, and the log determinant log |det J| ``[B]``."""
        x = x[:, self.permutation]
        x1, x2 = x[:, : self.first], x[:, self.first :]
        s2, t2 = self._affine(self.to_first, x2, condition, self.first)
        y1 = s2.exp() * x1 + t2
        s1, t1 = self._affine(self.to_second, y1, condition, self.second)
        y2 = s1.exp() * x2 + t1
        return torch.cat([y1, y2], 1), s2.sum(1) + s1.sum(1)

    def inverse(self, y: Tensor, condition: Tensor | None) -> Tensor:
        """Inputs ``[B, D]`` for which :meth:`forward` gives the outputs ``y [B, D]`` under the same ``condition``."""
        y1, y2 = y[:, : self.first], y[:, self.first :]
        s1, t1 = self._affine(self.to_second, y1, condition, self.second)
        x2 = (y2 - t1) * (-s1).exp()
        s2, t2 = self._affine(self.to_first, x2, condition, self.first)
        x1 = (y1 - t2) * (-s2).exp()
        return torch.cat([x1, x2], 1)[:, self.inverse_permutation]


class ConditionalFlow(nn.Module):
    """Normalising flow from embeddings to a standard normal latent, conditioned on the proxies of their classes.

    It is a stack of affine couplings (NIR, Roth et al., CVPR 2022, Eq. 7-9; :class:`Coupling`), of which all see the
    condition, or only the one at the ``start``, ``mid`` or ``end``.
    """

    def __init__(
        self, dim: int, blocks: int = 5, depth: int = 8, width: int = 128, clamp: float = 2.0, conditioned: str = "all"
    ) -> None:
        super().__init__()
        chosen = {"all": set(range(blocks)), "start": {0}, "mid": {blocks // 2}, "end": {blocks - 1}}[conditioned]
        # Fixed permutations, the same in every run: they are architecture, not initialisation.
        orders = [torch.randperm(dim, generator=torch.Generator().manual_seed(k)) for k in range(blocks)]
        self.blocks = nn.ModuleList(
            Coupling(dim, dim if k in chosen else 0, depth, width, clamp, orders[k]) for k in range(blocks)
        )

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Latent ``[B, D]`` and log |det J| ``[B]`` of embeddings ``[B, D]`` given conditions ``[B, D]``."""
        total = x.new_zeros(len(x))
        for block in self.blocks:
            x, log_det = block(x, condition)
            total = total + log_det
        return x, total

    def inverse(self, latent: Tensor, condition: Tensor) -> Tensor:
        """Embeddings ``[B, D]`` of latents ``[B, D]`` given conditions ``[B, D]``: the inverse of :meth:`forward`."""
        for block in reversed(self.blocks):
            latent = block.inverse(latent, condition)  # type: ignore[operator]
        return latent

    def negative_log_likelihood(self, x: Tensor, condition: Tensor) -> Tensor:
        """Negative log likelihood ``[B]`` of embeddings ``[B, D]`` given conditions ``[B, D]``, up to a constant.

        It is 1/2 |latent|^2 - log |det J| (NIR, Roth et al., CVPR 2022, Eq. 10); D/2 log 2 pi is left out.
        """
        latent, log_det = self(x, condition)
        nll: Tensor = 0.5 * latent.square().sum(1) - log_det
        return nll
