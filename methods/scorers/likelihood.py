"""Mutual likelihood score: log of the overlap of two densities (PFE, Shi and Jain 2019, Eq. 3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..distributions import (
    DiagonalNormal,
    IsotropicNormal,
    VonMisesFisher,
    vmf_log_normalizer_ratio,
    vmf_log_uniform,
)
from ._layout import Layout, Matrix

LOG_2PI = math.log(2 * math.pi)
_BLOCK_ELEMENTS = 1 << 24  # of a [rows, Nb, D] intermediate: 128 MiB in float64


def mutual_likelihood(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    """Log of the integral of p_a(z) p_b(z).

    Raises:
        ValueError: If the distributions have no density in common.
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
    rows = max(1, _BLOCK_ELEMENTS // max(1, b.loc.numel())) if layout is Matrix else max(1, len(a.loc))
    blocks = []
    for loc, var in zip(a.loc.split(rows), a.variance.split(rows)):
        (m, n), (u, v) = layout.outer(loc, b.loc), layout.outer(var, b.variance)
        total = u + v
        blocks.append(-0.5 * ((m - n).square() / total + total.log() + LOG_2PI).sum(-1))
    return torch.cat(blocks) if blocks else a.loc.new_zeros(0, len(b.loc)) if layout is Matrix else a.loc.new_zeros(0)


def _as_diagonal(d: Distribution) -> DiagonalNormal:
    if isinstance(d, DiagonalNormal):
        return d
    if isinstance(d, IsotropicNormal):
        return DiagonalNormal(d.loc, d.variance.unsqueeze(-1).expand(d.loc.shape), validate_args=False)
    raise ValueError(
        f"the mutual likelihood score needs two normals or two von Mises-Fisher distributions; {type(d).__name__} "
        "does not fit (use cosine or l2)"
    )
