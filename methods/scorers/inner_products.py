"""Scores of the means: cosine and squared distance."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.point import PointMass
from ..distributions.von_mises_fisher import VonMisesFisher
from .bounds import DistanceBound, InnerBound
from .layout import Layout
from .spec import ScorerSpec


def unit_mean(d: Distribution) -> Tensor:
    """Direction of the mean, ``[N, D]``. A zero vector stays zero."""
    loc = d.loc if isinstance(d, VonMisesFisher) else d.mean
    return F.normalize(loc, dim=-1, eps=1e-30)


def inner_of_means(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    """Inner product of the means."""
    return layout.inner(a.mean, b.mean)


def _unit_point(d: Distribution, seed: int = 0) -> PointMass:
    return PointMass(unit_mean(d), validate_args=False)


def _l2(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    return -layout.squared_distance(a.mean, b.mean)


SPECS = (
    ScorerSpec("cosine", "cos(E[z1], E[z2])", inner_of_means, _unit_point, bound=InnerBound),
    ScorerSpec("l2", "-||E[z1] - E[z2]||^2", _l2, bound=DistanceBound),
)
