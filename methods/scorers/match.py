"""Match probability of hedged instance embeddings (HIB, Oh et al., ICLR 2019, Eq. 2-3)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.normal import IsotropicNormal
from ..distributions.point import PointMass
from .layout import Layout
from .spec import ScorerSpec

_ALONG, _ACROSS = 10, 6
_BLOCK_ELEMENTS = 1 << 18


def _golub_welsch(diagonal: Tensor, off_diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights (summing to 1) of the Gauss rule with this Jacobi matrix."""
    jacobi = torch.diag(diagonal) + torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
    nodes, vectors = torch.linalg.eigh(jacobi)
    return nodes, vectors[0].square()


@lru_cache(maxsize=64)
def _rule(dim: int) -> tuple[tuple[float, float, float], ...]:
    """Nodes (n, c) and weights: n standard normal, c chi-square with dim - 1 degrees of freedom."""
    i = torch.arange(1, _ALONG, dtype=torch.float64)
    along, along_weight = _golub_welsch(torch.zeros(_ALONG, dtype=torch.float64), i.sqrt())
    if dim == 1:
        return tuple((n, 0.0, w) for n, w in zip(along.tolist(), along_weight.tolist()))
    alpha = (dim - 3) / 2
    j = torch.arange(_ACROSS, dtype=torch.float64)
    across, across_weight = _golub_welsch(2 * j + 1 + alpha, (j[1:] * (j[1:] + alpha)).sqrt())
    return tuple(
        (n, 2.0 * c, wn * wc)
        for n, wn in zip(along.tolist(), along_weight.tolist())
        for c, wc in zip(across.tolist(), across_weight.tolist())
    )


def match_probability(
    a: Distribution, b: Distribution, layout: Layout, scale: float | Tensor = 1.0, bias: float | Tensor = 0.0
) -> Tensor:
    """Match probability E sigmoid(-scale |z_a - z_b| + bias) of independent draws.

    The difference of two isotropic normals has v = v_a + v_b, and |z_a - z_b|^2 = (delta + sqrt(v) n)^2 + v c with n
    standard normal and c chi-square: a two-dimensional Gauss rule replaces HIB's 8 x 8 draws per pair.

    Args:
        a: Isotropic normals or points, D >= 2 (in one dimension the distance has a kink that the rule cannot follow).
        b: Distributions of the same kinds.
        layout: Matrix or pairs.
        scale: HIB's a, the slope of the match probability in the distance.
        bias: HIB's b.

    Raises:
        ValueError: If a distribution is neither an isotropic normal nor a point.
    """
    for d in (a, b):
        if not isinstance(d, (IsotropicNormal, PointMass)):
            raise ValueError(f"the match probability needs isotropic normals or points, not {type(d).__name__}")
    variance = [d.variance if isinstance(d, IsotropicNormal) else d.mean.new_zeros(d.mean.shape[:-1]) for d in (a, b)]
    u, v = layout.outer(variance[0], variance[1])
    squared = layout.squared_distance(a.mean, b.mean)
    total = (u + v).expand(squared.shape)
    rule = _rule(a.mean.shape[-1])
    parts = []
    for s, t in zip(squared.reshape(-1).split(_BLOCK_ELEMENTS), total.reshape(-1).split(_BLOCK_ELEMENTS)):
        delta, sigma = s.clamp_min(1e-24).sqrt(), t.clamp_min(1e-24).sqrt()
        value = torch.zeros_like(s)
        for n, c, weight in rule:
            distance = ((delta + sigma * n).square() + t * c).clamp_min(1e-24).sqrt()
            value = value + weight * torch.sigmoid(bias - scale * distance)
        parts.append(value)
    return torch.cat(parts).reshape(squared.shape) if parts else squared


SPECS = (
    ScorerSpec(
        "match",
        "HIB's match probability E sigmoid(-scale ||z1 - z2|| + bias) by quadrature, trained scale and bias",
        match_probability,
        options=("scale", "bias"),
    ),
)
