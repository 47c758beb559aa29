"""Mutual likelihood score: log of the overlap of two densities (PFE, Shi and Jain 2019, Eq. 3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.bessel import vmf_log_normalizer_ratio, vmf_log_uniform
from ..distributions.normal import DiagonalNormal, IsotropicNormal
from ..distributions.von_mises_fisher import VonMisesFisher
from .bounds import likelihood_bound
from .layout import Layout, Matrix
from .spec import ScorerSpec

LOG_2PI = math.log(2 * math.pi)
_BLOCK_ELEMENTS = 1 << 16  # of an intermediate: 512 KiB in float64 stay in the cache
_GPU_BLOCK_ELEMENTS = 1 << 24  # few and large kernels


def mutual_likelihood(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    """Mutual likelihood score: the log of the integral of p_a(z) p_b(z).

    Raises:
        ValueError: If they are neither two normals nor two von Mises-Fisher distributions.
    """
    if isinstance(a, VonMisesFisher) and isinstance(b, VonMisesFisher):
        return _von_mises_fisher(a, b, layout)
    if isinstance(a, IsotropicNormal) and isinstance(b, IsotropicNormal):
        u, v = layout.outer(a.variance, b.variance)
        variance = u + v
        squared = layout.squared_distance(a.loc, b.loc)
        return -0.5 * (squared / variance + a.dim * (variance.log() + LOG_2PI))
    return _diagonal(_as_diagonal(a), _as_diagonal(b), layout)


def _von_mises_fisher(a: VonMisesFisher, b: VonMisesFisher, layout: Layout) -> Tensor:
    """Log C(k_a) + log C(k_b) - log C(|k_a mu_a + k_b mu_b|)."""
    ka, kb = layout.outer(a.concentration, b.concentration)
    # (ka - kb)^2 + 2 ka kb (1 + cos) has no negative part to cancel.
    one_plus = (1.0 + layout.inner(a.loc, b.loc)).clamp(0.0, 2.0)
    squared = (ka - kb).square() + 2.0 * ka * kb * one_plus
    # The root has no slope at 0, where its slope does not matter: the normaliser is flat there.
    joint = squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt()
    ga, gb = layout.outer(
        vmf_log_normalizer_ratio(a.concentration, a.dim), vmf_log_normalizer_ratio(b.concentration, b.dim)
    )
    return ga + gb - vmf_log_normalizer_ratio(joint, a.dim) + vmf_log_uniform(a.dim)


def _diagonal(a: DiagonalNormal, b: DiagonalNormal, layout: Layout) -> Tensor:
    # v_i + v_j does not separate over dimensions, so this form needs blocks where the isotropic one is a matmul.
    within = all(
        1e-37 < float(end) < 1e37 for d in (a, b) if d.variance.numel() for end in d.variance.detach().aminmax()
    )
    # Eight sums of variances of such sizes multiply without overflow in float64: one logarithm for eight.
    folds = 3 if within and a.loc.dtype == torch.float64 else 0
    if layout is Matrix:
        rows = [_diagonal_block(m[None], u[None], b, layout, folds) for m, u in zip(a.loc, a.variance)]
        return torch.cat(rows) if rows else a.loc.new_zeros(0, len(b.loc))
    return _diagonal_block(a.loc, a.variance, b, layout, folds)


def _diagonal_block(loc: Tensor, variance: Tensor, b: DiagonalNormal, layout: Layout, folds: int) -> Tensor:
    elements = _BLOCK_ELEMENTS if loc.device.type == "cpu" else _GPU_BLOCK_ELEMENTS
    many = max(1, elements // b.dim) if layout is Matrix else max(1, len(loc))
    parts = []
    for other, spread in zip(b.loc.split(many), b.variance.split(many)):
        (m, n), (u, v) = layout.outer(loc, other), layout.outer(variance, spread)
        total = u + v
        squared = ((m - n).square() / total).sum(-1)
        for _ in range(folds):
            if total.shape[-1] % 2 == 0:
                low, high = total.chunk(2, dim=-1)
                total = low * high
        parts.append(-0.5 * (squared + total.log().sum(-1) + b.dim * LOG_2PI))
    return torch.cat(parts, dim=-1)


def _as_diagonal(d: Distribution) -> DiagonalNormal:
    if isinstance(d, DiagonalNormal):
        return d
    if isinstance(d, IsotropicNormal):
        return DiagonalNormal(d.loc, d.variance.unsqueeze(-1).expand(d.loc.shape), validate_args=False)
    raise ValueError(
        f"the mutual likelihood score needs two normals or two von Mises-Fisher distributions; {type(d).__name__} "
        "does not fit (use cosine or l2)"
    )


SPECS = (
    ScorerSpec(
        "mls",
        "log of the density overlap, log integral p1(z) p2(z) dz (PFE, Eq. 3); normals and von Mises-Fisher",
        mutual_likelihood,
        bound=likelihood_bound,
    ),
)
