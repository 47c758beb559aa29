"""Distance in the Poincare ball of curvature -1, as a score."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.normal import PointMass
from .spec import Layout, ScorerSpec


def _in_the_ball(d: Distribution, seed: int = 0) -> PointMass:
    """Points as they are.

    Raises:
        ValueError: If they are no points of the open unit ball.
    """
    if not isinstance(d, PointMass):
        raise ValueError(f"poincare needs points; {type(d).__name__} is none (use l2)")
    if not torch.compiler.is_compiling() and not bool((d.loc.detach().square().sum(-1) < 1).all()):
        raise ValueError("poincare needs points of norms below 1; scale them, or use l2")
    return d


def poincare_distance(x: Tensor, y: Tensor, layout: Layout) -> Tensor:
    """Distances, in the ball of curvature -1, of two batches of points of norm below 1, for a layout.

    It is 2 arsinh(|x - y| / sqrt((1 - |x|^2) (1 - |y|^2))), which loses no digits of small distances.
    """
    u, v = layout.outer(1.0 - x.square().sum(-1), 1.0 - y.square().sum(-1))
    # The root has an infinite slope at a distance of zero.
    ratio = (layout.squared_distance(x, y) / (u * v)).clamp_min(torch.finfo(x.dtype).tiny)
    return 2.0 * ratio.sqrt().arcsinh()


def _score(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    return -poincare_distance(a.mean, b.mean, layout)


SPECS = (ScorerSpec("poincare", "-distance in the Poincare ball, of points of norms below 1", _score, _in_the_ball),)
