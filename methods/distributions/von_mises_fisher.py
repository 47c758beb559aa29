"""The von Mises-Fisher distribution: the normal distribution of the unit sphere."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import constraints, register_kl

from .arrays import Located, array_form, broadcast_shapes
from .bessel import (
    LARGE,
    perhaps_large,
    vmf_log_normalizer,
    vmf_log_normalizer_ratio,
    vmf_log_peak,
    vmf_log_uniform,
    vmf_mean_resultant_length,
    vmf_shortfall,
)

PATHWISE_FROM_DIM = 64
"""From here on the pathwise gradient of a draw is used by default: its slope of E[cos] is too small by up to 0.8 / D.

That is 1.2 % at D = 64, 0.6 % at 128 and 0.15 % at 512, largest where k is about 0.7 D.
"""

_ROUNDS = 1000
PROPOSALS = {"cpu": 1}
"""Proposals of the rejection sampler that are drawn at once for each draw, by device; 32 on others than these.

At least 65 % of proposals are accepted, so that the probability of none among 32 is below 1e-14. A GPU need not be
waited for to see who goes on.
"""
_MOST_AT_ONCE = 1 << 22


@array_form("von_mises_fisher", "loc", "concentration")
class VonMisesFisher(Located):
    """Von Mises-Fisher distribution vMF(loc, concentration) on the unit sphere, with density C(k) exp(k mu.z).

    Args:
        loc: Modes mu ``[*B, D]``, D >= 2; normalised here, a zero vector raises (or stays zero without validation).
        concentration: Concentrations k ``[*B]``, >= 0; 0 is the uniform distribution.
        gradient: Gradient of draws in the concentration. ``implicit`` is exact in any dimension; ``pathwise``, which
            follows the accepted proposal of the rejection sampler only, is cheaper and too small by up to 0.8 / D
            (relative, for the mean cosine to the mode); ``auto`` is ``implicit`` below D = 64, else ``pathwise``.

    Source: Mardia and Jupp 2000, section 9.3.
    """

    arg_constraints = {"loc": constraints.real_vector, "concentration": constraints.nonnegative}  # noqa: RUF012

    def __init__(
        self, loc: Tensor, concentration: Tensor, validate_args: bool | None = None, *, gradient: str = "auto"
    ) -> None:
        if loc.shape[-1] < 2:
            raise ValueError(f"loc must have at least 2 dimensions, not {loc.shape[-1]}")
        if gradient not in ("auto", "implicit", "pathwise"):
            raise ValueError(f"gradient must be auto, implicit or pathwise, not {gradient!r}")
        batch = broadcast_shapes(loc.shape[:-1], concentration.shape)
        self.loc = on_sphere(loc).expand(*batch, loc.shape[-1])
        self.concentration = concentration.expand(batch)
        self.gradient = gradient
        super().__init__(batch, loc.shape[-1:], validate_args=validate_args)
        if self._validate_args and not (loc.square().sum(-1) > 0).all():
            raise ValueError("loc contains a zero vector, which has no direction")

    @property
    def mean_resultant_length(self) -> Tensor:
        """Mean resultant length ``[*B]``: the length of the mean, A(k) = |E z|."""
        return vmf_mean_resultant_length(self.concentration, self.dim)

    @property
    def mean(self) -> Tensor:
        """Mean ``[*B, D]``: the mode shortened by the mean resultant length, E[z] = A(k) mu."""
        return self.mean_resultant_length.unsqueeze(-1) * self.loc

    @property
    def mode(self) -> Tensor:
        """Mode mu ``[*B, D]``, a unit vector."""
        return self.loc

    def log_prob(self, value: Tensor) -> Tensor:
        """Log densities of unit vectors ``value [*, D]`` with respect to the surface measure of the sphere."""
        k = self.concentration
        cosine = (value * self.loc).sum(-1)
        density = k * cosine + vmf_log_normalizer(k, self.dim)
        if not perhaps_large(k):
            return density
        # k cos and log C both grow like k. For unit vectors |z - mu|^2 / 2 is 1 - cos.
        away = 0.5 * (value - self.loc).square().sum(-1)
        at_mode = vmf_log_peak(k, self.dim) + vmf_log_uniform(self.dim)
        return torch.where(k > LARGE, at_mode - k * away, density)

    def kl_to_uniform(self) -> Tensor:
        """KL divergence ``[*B]``, KL(vMF || uniform on the sphere) = k A(k) + log C(k) - log C(0) >= 0."""
        # k A and log C both grow like k while their sum grows like log k.
        k = self.concentration.double()
        kl = k * vmf_mean_resultant_length(k, self.dim) + vmf_log_normalizer_ratio(k, self.dim)
        if perhaps_large(k):
            kl = torch.where(k > LARGE, vmf_log_peak(k, self.dim) - k * vmf_shortfall(k, self.dim), kl)
        return kl.clamp_min(0.0).to(self.concentration.dtype)

    def entropy(self) -> Tensor:
        """Differential entropy ``[*B]``, -log C(k) - k A(k), with the normaliser C and the mean resultant length A."""
        return -vmf_log_uniform(self.dim) - self.kl_to_uniform()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws ``[*sample_shape, *B, D]`` with gradients in ``loc`` and ``concentration``.

        Wood's rejection sampler gives the cosine to the mode, and a normal draw gives the tangent direction. The
        attribute ``gradient`` chooses the kind of gradient in the concentration.
        """
        shape = self._extended_shape(torch.Size(sample_shape))
        loc = self.loc.expand(shape)
        implicit = self.gradient == "implicit" or (self.gradient == "auto" and self.dim < PATHWISE_FROM_DIM)
        cosine, sine = sample_cosine(self.concentration.expand(shape[:-1]), self.dim, implicit=implicit)
        tangent = _random_tangent(loc)
        return cosine.unsqueeze(-1) * loc + sine.unsqueeze(-1) * tangent


def on_sphere(loc: Tensor) -> Tensor:
    """Vectors ``[*, D]`` scaled to unit length; a zero vector stays zero."""
    # Scaling first: squares of very small or very large coordinates leave the range of float32.
    largest = loc.detach().abs().amax(-1, keepdim=True)
    return F.normalize(loc / torch.where(largest > 0, largest, torch.ones_like(largest)), dim=-1)


def shared_concentration(unit: Tensor, labels: Tensor) -> tuple[float, float] | None:
    """Concentration that unit vectors of all classes share, and log density at the mode above the uniform one.

    Each vector is a draw around the mean direction of the others of its class: around a mean that has it, too, classes
    of few vectors would seem too dense.

    Args:
        unit: Unit vectors, ``[N, D]``.
        labels: Their classes, ``[N]``.

    Returns:
        None if D is 1, or no class has two vectors.
    """
    dim = unit.shape[1]
    number = torch.unique(labels, return_inverse=True)[1]
    sums = torch.zeros(int(number.max()) + 1, dim, dtype=torch.float64).index_add_(0, number, unit.double())
    cosines = torch.empty(len(unit), dtype=torch.float64)
    for rows in torch.arange(len(unit)).split(1 << 12):
        cosines[rows] = cosines_to_others(unit[rows].double(), sums[number[rows]])
    paired = torch.bincount(number)[number] > 1
    return concentration_of(cosines[paired], dim) if dim > 1 and bool(paired.any()) else None


def cosines_to_others(unit: Tensor, sums: Tensor) -> Tensor:
    """Cosine ``[B]`` of unit vectors to the sums ``[B, D]`` of their classes, each without the vector itself."""
    others = sums - unit
    found: Tensor = (unit * others).sum(1) / others.norm(dim=1).clamp_min(1e-12)
    return found


def concentration_of(cosines: Tensor, dim: int) -> tuple[float, float]:
    """Concentration k of maximum likelihood, and log density at the mode above the uniform one.

    The mean resultant length A(k) is the mean R of the cosines ``[N]`` to the mode, at most 1 - 1e-6, so that equal
    vectors have a finite k, and at least 0; without any, k is 0. It is solved from R (D - R^2) / (1 - R^2) (Banerjee et
    al. 2005) by two steps of Newton (Sra 2012): to 2e-5 of k, 1e-7 if D is 8 or more.
    """
    mean = cosines.mean().clamp(0.0, 1.0 - 1e-6) if len(cosines) else cosines.new_zeros(())
    k = mean * (dim - mean**2) / (1 - mean**2)
    for _ in range(2 if mean > 0 else 0):
        near = vmf_mean_resultant_length(k, dim)
        k = k - (near - mean) / (1 - near**2 - (dim - 1) / k * near)
    return float(k), float(vmf_log_peak(k, dim))


def _random_tangent(loc: Tensor) -> Tensor:
    """Uniform random unit vectors orthogonal to ``loc``, same shape."""
    draw = torch.randn(loc.shape, dtype=loc.dtype, device=loc.device)
    # Twice: in two dimensions nearly all of the draw may lie along loc, and rounding would leave some of it.
    for _ in range(2):
        draw = draw - (draw * loc).sum(-1, keepdim=True) * loc
        draw = F.normalize(draw, dim=-1, eps=1e-30)
    return draw


def sample_cosine(concentration: Tensor, dim: int, *, implicit: bool = True) -> tuple[Tensor, Tensor]:
    """Draw cosines w between von Mises-Fisher draws and their mode, and return them with their sines, ``[*]`` each.

    The density on [-1, 1] is proportional to (1 - w^2)^{(dim-3)/2} exp(k w), for k ``[*]`` >= 0 and finite. The sampler
    is Wood's (1994) rejection from a Beta envelope with b = (dim-1) / (2k + sqrt(4 k^2 + (dim-1)^2)), a form without
    cancellation. With ``implicit``, the gradient in k is an unbiased estimate by implicit reparametrisation (Figurnov
    et al. 2018); else it is taken along the accepted proposal, which ignores that acceptance depends on k. On a GPU,
    which would have to be waited for, a k that is not finite gives a cosine that is not.

    Raises:
        ValueError: If some k on the CPU is negative or not finite.
    """
    k = concentration.double()
    with torch.no_grad():
        if k.device.type == "cpu" and not bool((torch.isfinite(k) & (k >= 0)).all()):
            raise ValueError("concentrations must be finite and not negative")
        proposal = _accepted_proposal(k.detach(), dim)
    gap = _gap(k, proposal, dim)
    if implicit and concentration.requires_grad:
        slope = _implicit_slope(gap.detach(), k.detach(), dim)
        gap = gap.detach() - slope * (k - k.detach())
    cosine = 1.0 - gap
    # 1 - w^2 from the gap 1 - w, which does not cancel where the draws crowd around the mode.
    sine = (gap * (2.0 - gap)).clamp_min(0.0)
    safe = torch.where(sine > 0, sine, torch.ones_like(sine))
    sine = torch.where(sine > 0, safe.sqrt(), torch.zeros_like(sine))
    return cosine.to(concentration.dtype), sine.to(concentration.dtype)


def _wood(k: Tensor, dim: int) -> Tensor:
    m = dim - 1.0
    return m / (2.0 * k + (4.0 * k.square() + m * m).sqrt())


def _gap(k: Tensor, proposal: Tensor, dim: int) -> Tensor:
    """1 - w of a Beta proposal e: 2 b e / (1 - (1 - b) e)."""
    b = _wood(k, dim)
    return 2.0 * b * proposal / (1.0 - (1.0 - b) * proposal)


def _accepted_proposal(k: Tensor, dim: int) -> Tensor:
    """Beta((D-1)/2, (D-1)/2) draws that Wood's test accepts; ``k`` is float64."""
    flat = k.reshape(-1)
    many = PROPOSALS.get(k.device.type, 32)
    if many > 1 and many * flat.numel() <= _MOST_AT_ONCE:
        e, accept = _proposals(flat, dim, many)
        return e.gather(0, accept.byte().argmax(0, keepdim=True)).reshape(k.shape)
    result = torch.empty_like(flat)
    waiting = torch.arange(flat.numel(), device=k.device)
    for _ in range(_ROUNDS):
        if not len(waiting):
            return result.reshape(k.shape)
        (e,), (accept,) = _proposals(flat[waiting], dim, 1)
        result[waiting] = torch.where(accept, e, result[waiting])  # a mask as an index makes the host wait for a GPU
        waiting = waiting[~accept]
    raise RuntimeError(f"vMF sampling did not end in {_ROUNDS} rounds")


def _proposals(k: Tensor, dim: int, many: int) -> tuple[Tensor, Tensor]:
    """Beta draws ``[many, N]`` for concentrations ``[N]``, and whether Wood's test accepts them."""
    m = dim - 1.0
    half = torch.full_like(k, m / 2)
    e = torch.distributions.Beta(half, half, validate_args=False).sample((many,))
    b = _wood(k, dim)
    gap = 2.0 * b * e / (1.0 - (1.0 - b) * e)
    x0 = (1.0 - b) / (1.0 + b)
    # log of the acceptance ratio k w + m log(1 - x0 w) - [k x0 + m log(1 - x0^2)], with w = 1 - gap and
    # 1 - x0 = 2b/(1+b): written in the gap, so that nothing of size k is subtracted from its like.
    lowest = 2.0 * b / (1.0 + b)
    log_ratio = k * (lowest - gap) + m * torch.log((lowest + x0 * gap) / (lowest * (1.0 + x0)))
    return e, log_ratio >= torch.log(torch.rand_like(e))


def released_rsample(distribution: VonMisesFisher, sample_shape: tuple[int, ...] = ()) -> Tensor:
    """Draws ``[*sample_shape, *B, D]`` by the faulty sampler of the public vMF code, kept to reproduce its results.

    The fault came from the repository s-vae-pytorch through google-research/vmf_embeddings into the codes of
    Probabilistic Embeddings Revisited and EL-nivMF (Kirchhof et al. 2022). Above k = 11 the parameter b of the Beta
    envelope becomes its limit for k >> D, (D-1)/(4k), while the acceptance test keeps the constants of the exact b. For
    k between 10 and about 2 D draws point away from the mode. A draw around the first axis is reflected onto the mode;
    gradients flow through b and the reflection, not through the acceptance.
    """
    wide = distribution.expand(torch.Size(sample_shape) + distribution.batch_shape) if sample_shape else distribution
    k, dim = wide.concentration.double(), wide.dim
    proposal, tangent = released_draws(k.detach(), dim)
    b = _released_envelope(k, dim)
    w = (1.0 - (1.0 + b) * proposal) / (1.0 - (1.0 - b) * proposal)
    sine = (1.0 - w.square()).clamp_min(1e-7).sqrt()
    around = torch.cat([w.unsqueeze(-1), sine.unsqueeze(-1) * F.normalize(tangent, dim=-1, eps=1e-30)], -1)
    axis = -wide.loc.double()
    mirror = F.normalize(torch.cat([axis[..., :1] + 1.0, axis[..., 1:]], -1), dim=-1, eps=1e-30)
    drawn = around - 2.0 * (around * mirror).sum(-1, keepdim=True) * mirror
    return drawn.to(distribution.loc.dtype)


def _released_envelope(k: Tensor, dim: int) -> Tensor:
    """Envelope parameter b of the public code: exact up to k = 10, its limit for k >> D from k = 11."""
    m = dim - 1.0
    ramp = (k - 10.0).clamp(0.0, 1.0)
    limit = m / (4.0 * k.clamp_min(1e-12))
    return limit * ramp + ((4.0 * k.square() + m * m).sqrt() - 2.0 * k) / m * (1.0 - ramp)


def released_draws(k: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Draw all random numbers of :func:`released_rsample`, in a function of their own that a test can replace.

    They are Beta((D-1)/2, (D-1)/2) proposals that the public code's rejection accepts, ``[*B]``, and normal draws
    ``[*B, D - 1]``.
    """
    m = dim - 1.0
    b = _released_envelope(k, dim).reshape(-1)
    a = (m + 2.0 * k + (4.0 * k.square() + m * m).sqrt()).reshape(-1) / 4.0
    d = 4.0 * a * b / (1.0 + b) - m * math.log(m)
    proposal = torch.empty_like(b)
    waiting = torch.arange(proposal.numel(), device=k.device)
    half = torch.full_like(proposal, m / 2)
    for _ in range(_ROUNDS):
        if not len(waiting):
            tangent = torch.randn((*k.shape, dim - 1), dtype=k.dtype, device=k.device)
            return proposal.reshape(k.shape), tangent
        e = torch.distributions.Beta(half[waiting], half[waiting], validate_args=False).sample()
        t = 2.0 * a[waiting] * b[waiting] / (1.0 - (1.0 - b[waiting]) * e)
        accept = m * t.log() - t + d[waiting] >= torch.log(torch.rand_like(e))
        proposal[waiting] = torch.where(accept, e, proposal[waiting])
        waiting = waiting[~accept]
    raise RuntimeError(f"vMF sampling did not end in {_ROUNDS} rounds")


@lru_cache(maxsize=8)
def legendre(count: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on [0, 1], each ``[count]``."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(count)
    return torch.from_numpy((nodes + 1) / 2).to(device), torch.from_numpy(weights / 2).to(device)


def _implicit_slope(gap: Tensor, k: Tensor, dim: int) -> Tensor:
    """dw/dk = -(dF/dk)/f at w = 1 - gap, with dF/dk the integral of (x - A) f over the cosines below w.

    In the angle theta = acos(w), whose density sin^{D-2}(theta) exp(k cos(theta)) has no poles. The integral over all
    angles is zero, so it is taken over the side of the mean that w lies on, where the integrand keeps one sign.
    """
    nodes, weights = legendre(96, k.device)
    flat_gap, flat_k = gap.reshape(-1).clamp(1e-300, 2.0), k.reshape(-1)
    mean = vmf_mean_resultant_length(flat_k, dim)
    theta = 2.0 * torch.asin((flat_gap / 2.0).sqrt())
    width = 14.0 / (flat_k * mean + (dim - 2) + 1.0).sqrt()
    below = 1.0 - flat_gap > mean
    start = torch.where(below, (theta - width).clamp_min(0.0), theta)
    end = torch.where(below, theta, (theta + width).clamp_max(math.pi))
    out = torch.empty_like(flat_k)
    for rows in torch.arange(flat_k.numel(), device=k.device).split(1 << 14):
        x = start[rows, None] + (end - start)[rows, None] * nodes
        here, kk = theta[rows, None], flat_k[rows, None]
        shape = (dim - 2) * (x.sin().clamp_min(1e-300).log() - here.sin().clamp_min(1e-300).log())
        # cos x - cos theta by the product formula: the difference of two cosines near 1 would be all rounding.
        shape = shape - 2.0 * kk * ((x + here) / 2).sin() * ((x - here) / 2).sin()
        integral = ((x.cos() - mean[rows, None]) * shape.exp() * weights).sum(-1) * (end - start)[rows]
        # Angles below theta are cosines above w. dF_theta/dk at theta is +integral (below) or -integral (above).
        out[rows] = torch.where(below[rows], integral, -integral) * theta[rows].sin()
    return out.reshape(k.shape)


def _kl_vmf(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    """KL(p || q) ``[*B]``: k_p A(k_p) - k_q A(k_p) mu_p.mu_q + log C(k_p) - log C(k_q)."""
    kp, kq = p.concentration.double(), q.concentration.double()
    # |mu_p - mu_q|^2/2 = 1 - cos without its cancellation.
    away = 0.5 * (p.loc.double() - q.loc.double()).square().sum(-1)
    a = vmf_mean_resultant_length(kp, p.dim)
    normalisers = vmf_log_normalizer_ratio(kp, p.dim) - vmf_log_normalizer_ratio(kq, p.dim)
    sharp = vmf_log_peak(kp, p.dim) - vmf_log_peak(kq, p.dim) - (kp - kq) * vmf_shortfall(kp, p.dim)
    kl = (kp - kq) * a + kq * a * away + normalisers
    kl = torch.where(torch.maximum(kp, kq) > LARGE, sharp + kq * a * away, kl)
    return kl.clamp_min(0.0).to(p.loc.dtype)


register_kl(VonMisesFisher, VonMisesFisher)(_kl_vmf)
