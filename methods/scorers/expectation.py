"""Scores that are expectations over two independent draws, in closed form.

The cosine of two independent draws has expectation E[u_a] . E[u_b] with u = z / |z|: the score factorises into one
vector per image, an inner product that any exact search can rank.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.bessel import LARGE, vmf_shortfall
from ..distributions.normal import DiagonalNormal, IsotropicNormal, PointMass
from ..distributions.von_mises_fisher import VonMisesFisher, legendre
from .inner_products import DistanceBound, InnerBound, inner_of_means, unit_mean
from .spec import Layout, ScorerSpec

SAMPLES = 10
"""Draws per image of the sampled score, as in PER."""


def expected_direction(d: Distribution) -> Tensor:
    """Expected direction E[z / |z|], ``[N, D]``, of N distributions.

    vMF: A(k) mu. Isotropic normal: m(lambda) mu/|mu| with lambda = |mu|/sigma and

        m(lambda) = lambda sqrt(2/pi) integral_0^{pi/2} exp(-lambda^2 sin(x)^2 / 2) cos(x)^D dx,

    from the integral form of Kummer's function (with u = sin x, which leaves no root at the end). Diagonal normal,
    with 1/|z| = 2/sqrt(pi) integral exp(-t^2 |z|^2) dt:

        E[z_i/|z|] = 2/sqrt(pi) integral_0^inf mu_i/w_i prod_j w_j^{-1/2} exp(-t^2 mu_j^2/w_j) dt,  w_j = 1 + 2 t^2 v_j.

    Point: its direction.

    Raises:
        ValueError: If the distribution is of another kind.
    """
    if isinstance(d, VonMisesFisher):
        return d.mean
    if isinstance(d, PointMass):
        return unit_mean(d)
    if isinstance(d, IsotropicNormal):
        length = d.loc.square().sum(-1)
        signal = (length / d.variance).clamp_min(torch.finfo(d.loc.dtype).tiny).sqrt()
        end = (10.0 / (signal.square() + d.dim).sqrt()).clamp_max(math.pi / 2)
        total = torch.zeros_like(signal)
        for node, weight in zip(*torch.stack(legendre(64)).tolist()):
            angle = end * node
            total = total + weight * torch.exp(-0.5 * (signal * angle.sin()).square()) * angle.cos() ** d.dim
        shrink = signal * math.sqrt(2 / math.pi) * end * total
        return shrink.unsqueeze(-1) * unit_mean(d)
    if isinstance(d, DiagonalNormal):
        scale = (d.loc.square() + d.variance).sum(-1, keepdim=True).rsqrt()
        direction = torch.zeros_like(d.loc)
        for node, weight in zip(*torch.stack(legendre(128)).tolist()):
            t = scale * node / (1.0 - node)
            spread = 1.0 + 2.0 * t.square() * d.variance
            exponent = -(t.square() * d.loc.square() / spread + 0.5 * spread.log()).sum(-1, keepdim=True)
            direction = direction + (weight / (1.0 - node) ** 2) * scale * exponent.exp() * d.loc / spread
        return direction * (2 / math.sqrt(math.pi))
    raise ValueError(f"the expected cosine is not known for {type(d).__name__}")


def sampled_direction(d: Distribution, samples: int = SAMPLES, seed: int = 0) -> Tensor:
    """Mean of ``samples`` normalised draws from each of N distributions, ``[N, D]``: a noisy E[z / |z|].

    The inner product of two images' means is the mean cosine over all pairs of their draws. The global random state
    does not change; the draws of a batch are the same in every call with the same seed.
    """
    with torch.random.fork_rng(devices=[d.mean.device] if d.mean.is_cuda else []), torch.no_grad():
        torch.manual_seed(seed)
        return F.normalize(d.sample((samples,)), dim=-1, eps=1e-30).mean(0)


def expected_l2(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    """Negative expected squared distance of independent draws: -(|E z_a - E z_b|^2 + tr Cov a + tr Cov b)."""
    u, v = layout.outer(total_variance(a), total_variance(b))
    return -(layout.squared_distance(a.mean, b.mean) + u + v)


def total_variance(d: Distribution) -> Tensor:
    """Trace of the covariance of N distributions, ``[N]``."""
    if isinstance(d, VonMisesFisher):
        length, k = d.mean_resultant_length, d.concentration
        return torch.where(k > LARGE, vmf_shortfall(k, d.dim) * (1.0 + length), 1.0 - length.square())
    if isinstance(d, IsotropicNormal):
        return d.dim * d.variance
    if isinstance(d, (DiagonalNormal, PointMass)):
        return d.variance.sum(-1)
    raise ValueError(f"the expected squared distance is not known for {type(d).__name__}")


def _expected_point(d: Distribution, seed: int = 0) -> PointMass:
    return PointMass(expected_direction(d), validate_args=False)


def _sampled_point(d: Distribution, seed: int = 0) -> PointMass:
    return PointMass(sampled_direction(d, seed=seed), validate_args=False)


SPECS = (
    ScorerSpec(
        "expected_cosine",
        "E cos(z1, z2) = E[z1/|z1|] . E[z2/|z2|], in closed form",
        inner_of_means,
        _expected_point,
        prepare_once=True,
        bound=InnerBound,
    ),
    ScorerSpec(
        "sampled_cosine",
        f"mean cosine over {SAMPLES} x {SAMPLES} draws, as in PER: a noisy expected_cosine",
        inner_of_means,
        _sampled_point,
        prepare_once=True,
        bound=InnerBound,
    ),
    ScorerSpec(
        "expected_l2",
        "-E ||z1 - z2||^2, in closed form",
        expected_l2,
        bound=partial(DistanceBound, terms=total_variance),
        invariant=True,
    ),
)
