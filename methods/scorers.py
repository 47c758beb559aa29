"""Similarity between embedding distributions: full matrices and aligned pairs, higher = more similar.

Every scorer is symmetric and works in the dtype of its inputs. Rankings use float64 inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from .distributions import DiagonalNormal, IsotropicNormal

LOG_2PI = math.log(2 * math.pi)
_BLOCK_ELEMENTS = 1 << 24  # of a [rows, Nb, D] intermediate: 128 MiB in float64


@dataclass(frozen=True)
class ScorerSpec:
    """A scorer by name: ``matrix`` maps (Na, Nb) distributions to ``[Na, Nb]``, ``pairs`` (N, N) to ``[N]``."""

    name: str
    matrix: Callable[[Distribution, Distribution], Tensor]
    pairs: Callable[[Distribution, Distribution], Tensor]
    formula: str


def _unit_mean(d: Distribution) -> Tensor:
    return F.normalize(d.mean, dim=-1, eps=1e-30)


def _cosine_matrix(a: Distribution, b: Distribution) -> Tensor:
    return _unit_mean(a) @ _unit_mean(b).mT


def _cosine_pairs(a: Distribution, b: Distribution) -> Tensor:
    return (_unit_mean(a) * _unit_mean(b)).sum(-1)


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Squared Euclidean distances ``[Na, Nb]`` as one matrix product, never below zero."""
    squares = x.square().sum(-1)[:, None] + y.square().sum(-1)[None, :]
    return (squares - 2.0 * (x @ y.mT)).clamp_min(0.0)


def _l2_matrix(a: Distribution, b: Distribution) -> Tensor:
    return -_squared_distances(a.mean, b.mean)


def _l2_pairs(a: Distribution, b: Distribution) -> Tensor:
    return -(a.mean - b.mean).square().sum(-1)


def _mls_from(squared: Tensor, variance: Tensor, dim: int) -> Tensor:
    return -0.5 * (squared / variance + dim * (variance.log() + LOG_2PI))


def _mls_matrix(a: Distribution, b: Distribution) -> Tensor:
    if isinstance(a, IsotropicNormal) and isinstance(b, IsotropicNormal):
        return _mls_from(_squared_distances(a.loc, b.loc), a.variance[:, None] + b.variance[None, :], a.dim)
    x, y = _as_diagonal(a), _as_diagonal(b)
    rows = max(1, _BLOCK_ELEMENTS // max(1, y.loc.numel()))
    blocks = []
    # v_i + v_j does not separate over dimensions, so this form needs blocks where the isotropic one is a matmul.
    for loc, var in zip(x.loc.split(rows), x.variance.split(rows)):
        total = var[:, None] + y.variance[None]
        terms = (loc[:, None] - y.loc[None]).square() / total + total.log() + LOG_2PI
        blocks.append(-0.5 * terms.sum(-1))
    return torch.cat(blocks) if blocks else x.loc.new_zeros(0, y.loc.shape[0])


def _mls_pairs(a: Distribution, b: Distribution) -> Tensor:
    if isinstance(a, IsotropicNormal) and isinstance(b, IsotropicNormal):
        return _mls_from((a.loc - b.loc).square().sum(-1), a.variance + b.variance, a.dim)
    x, y = _as_diagonal(a), _as_diagonal(b)
    total = x.variance + y.variance
    return -0.5 * ((x.loc - y.loc).square() / total + total.log() + LOG_2PI).sum(-1)


def _as_diagonal(d: Distribution) -> DiagonalNormal:
    if isinstance(d, DiagonalNormal):
        return d
    if isinstance(d, IsotropicNormal):
        return DiagonalNormal(d.loc, d.variance.unsqueeze(-1).expand(d.loc.shape), validate_args=False)
    raise ValueError(f"the mutual likelihood score needs a variance; {type(d).__name__} has none (use cosine or l2)")


SCORERS: dict[str, ScorerSpec] = {
    spec.name: spec
    for spec in (
        ScorerSpec("cosine", _cosine_matrix, _cosine_pairs, "cos(E[z1], E[z2])"),
        ScorerSpec("l2", _l2_matrix, _l2_pairs, "-||E[z1] - E[z2]||^2"),
        ScorerSpec(
            "mls",
            _mls_matrix,
            _mls_pairs,
            "log of the density overlap: -1/2 sum_i [(m1-m2)_i^2/(v1+v2)_i + log (v1+v2)_i + log 2 pi] (PFE, Eq. 3)",
        ),
    )
}


def get_scorer(name: str) -> ScorerSpec:
    """Scorer by name.

    Raises:
        ValueError: If there is none of that name, with the nearest known one.
    """
    if name in SCORERS:
        return SCORERS[name]
    near = get_close_matches(name, SCORERS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown scorer {name!r}{hint} (known: {', '.join(sorted(SCORERS))})")


def pairwise_score(name: str, a: Distribution, b: Distribution) -> Tensor:
    """Scores between two batches of distributions.

    Args:
        name: ``cosine``, ``l2`` or ``mls``.
        a: Batch shape ``[Na]``, event shape ``[D]``.
        b: Batch shape ``[Nb]``, event shape ``[D]``.

    Returns:
        ``[Na, Nb]``, higher = more similar.

    Raises:
        ValueError: If the scorer is unknown or does not fit the distributions.

    Example:
        >>> import torch
        >>> from bench.methods.distributions import IsotropicNormal
        >>> mu = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> x = IsotropicNormal(mu, torch.tensor([0.5, 0.5]))
        >>> pairwise_score("cosine", x, x)
        tensor([[1., 0.],
                [0., 1.]])
    """
    return get_scorer(name).matrix(a, b)


def paired_score(name: str, a: Distribution, b: Distribution) -> Tensor:
    """Scores of aligned pairs: the diagonal of :func:`pairwise_score`, ``[N]``, without the matrix."""
    return get_scorer(name).pairs(a, b)
