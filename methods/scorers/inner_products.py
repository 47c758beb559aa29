"""Scores of the means or of the raw embeddings: cosine and squared distance."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.point import PointMass
from ..distributions.von_mises_fisher import VonMisesFisher
from .bounds import DistanceBound, InnerBound
from .layout import Layout
from .spec import ScorerSpec


def _mode(d: Distribution) -> Tensor:
    return d.loc if isinstance(d, VonMisesFisher) else d.mean


def unit_mean(d: Distribution) -> Tensor:
    """Direction of the mean of N distributions, ``[N, D]``. A zero vector stays zero."""
    return F.normalize(_mode(d), dim=-1, eps=1e-30)


def modes_of(d: Distribution) -> PointMass:
    """Modes of N distributions, as points ``[N, D]``.

    They have unit length for points, of which only directions are compared, and for von Mises-Fisher distributions.
    """
    return PointMass(unit_mean(d) if isinstance(d, PointMass) else _mode(d), validate_args=False)


def inner_of_means(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    """Inner products of the means of two batches of distributions, as scores."""
    return layout.inner(a.mean, b.mean)


def _unit_point(d: Distribution, seed: int = 0) -> PointMass:
    return PointMass(unit_mean(d), validate_args=False)


def _raw_point(d: Distribution, seed: int = 0) -> PointMass:
    """Raw embeddings: points as they are, and k mu of a von Mises-Fisher, which is raw if the norm gives its k.

    Raises:
        ValueError: If the distribution does not say what its raw embedding was.
    """
    if isinstance(d, VonMisesFisher):
        return PointMass(d.concentration.unsqueeze(-1) * d.loc, validate_args=False)
    if isinstance(d, PointMass):
        return d
    raise ValueError(
        f"raw_l2 needs points or von Mises-Fisher distributions; {type(d).__name__} does not keep the raw embedding"
        " (use l2)"
    )


def _l2(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    return -layout.squared_distance(a.mean, b.mean)


SPECS = (
    ScorerSpec("cosine", "cos(E[z1], E[z2])", inner_of_means, _unit_point, bound=InnerBound),
    ScorerSpec("l2", "-||E[z1] - E[z2]||^2", _l2, bound=DistanceBound),
    ScorerSpec(
        "raw_l2",
        "-||z1 - z2||^2 of raw embeddings with their norms: points, or k mu of a von Mises-Fisher whose concentration"
        " is the norm (EL-nivMF, Supplement J)",
        _l2,
        _raw_point,
        bound=DistanceBound,
    ),
)
