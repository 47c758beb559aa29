"""Normal embeddings with isotropic or diagonal covariance, and points, which have no spread."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints, register_kl

from .arrays import Located, array_form, broadcast_shapes


@array_form("point", "loc")
class PointMass(Located):
    """Degenerate distribution with all mass at the point ``loc``.

    Args:
        loc: Points ``[*B, D]``, kept as given and not normalised, because the norm may serve as a confidence.
        validate_args: As in :class:`torch.distributions.Distribution`. By default, points that are trained on a GPU are
            not validated, for which the host would wait.
    """

    arg_constraints = {"loc": constraints.real_vector}  # noqa: RUF012 (torch declares it as a plain attribute)

    def __init__(self, loc: Tensor, validate_args: bool | None = None) -> None:
        if loc.dim() < 1:
            raise ValueError("loc must have at least one dimension")
        if validate_args is None and loc.is_cuda and loc.requires_grad:
            validate_args = False
        self.loc = loc
        super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=validate_args)

    @property
    def variance(self) -> Tensor:
        """Variance of a point: zeros ``[*B, D]``."""
        return torch.zeros_like(self.loc)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws ``[*sample_shape, *B, D]``, all of them the point itself."""
        return self.loc.expand(self._extended_shape(torch.Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability: 0 where ``value`` is the point and minus infinity elsewhere (against counting measure)."""
        same = (value == self.loc).all(-1)
        return torch.where(same, 0.0, -torch.inf).to(self.loc.dtype)

    def entropy(self) -> Tensor:
        """Entropy of a point as a discrete distribution: zeros ``[*B]``."""
        return self.loc.new_zeros(self._batch_shape)


@array_form("rated_point", "loc", "uncertainty")
class RatedPoint(PointMass):
    """Point mass with a number that says how uncertain it is but is no spread, such as a predicted loss.

    Scorers compare it as a point.

    Args:
        loc: Points ``[*B, D]``, kept as given and not normalised.
        uncertainty: Uncertainties ``[*B]``, any finite numbers; higher = less certain.

    Raises:
        ValueError: If the shapes do not fit.
    """

    arg_constraints = {"loc": constraints.real_vector, "uncertainty": constraints.real}  # noqa: RUF012

    def __init__(self, loc: Tensor, uncertainty: Tensor, validate_args: bool | None = None) -> None:
        if uncertainty.shape != loc.shape[:-1]:
            raise ValueError(f"uncertainty must have the shape {list(loc.shape[:-1])}, not {list(uncertainty.shape)}")
        self.uncertainty = uncertainty
        super().__init__(loc, validate_args=validate_args)


LOG_2PI = math.log(2 * math.pi)


class _Normal(Located):
    """Base of the isotropic and the diagonal normal, which differ in the shape of ``variance`` only."""

    _variance: Tensor

    @property
    def variance(self) -> Tensor:
        """Variance of each dimension: ``[*B]`` if it is one for all of them, else ``[*B, D]``."""
        return self._variance

    def _variance_vector(self) -> Tensor:
        """Variance per dimension, broadcastable to ``loc``."""
        raise TypeError("use IsotropicNormal or DiagonalNormal")

    def log_det_covariance(self) -> Tensor:
        """Log determinant of the covariance, ``[*B]``."""
        return self._variance_vector().log().expand(self.loc.shape).sum(-1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Reparametrised draws ``loc + sqrt(variance) * eps``, ``[*sample_shape, *B, D]``."""
        shape = self._extended_shape(torch.Size(sample_shape))
        eps = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + self._variance_vector().sqrt() * eps

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of ``value [*, D]``: -1/2 [sum_i (z_i - mu_i)^2 / v_i + log det + D log 2 pi]."""
        quadratic = ((value - self.loc).square() / self._variance_vector()).sum(-1)
        return -0.5 * (quadratic + self.log_det_covariance() + self.dim * LOG_2PI)

    def entropy(self) -> Tensor:
        """Differential entropy ``[*B]``: 1/2 log det(2 pi e Sigma)."""
        return 0.5 * (self.log_det_covariance() + self.dim * (LOG_2PI + 1.0))


@array_form("isotropic_normal", "loc", "variance")
class IsotropicNormal(_Normal):
    """Normal distribution with one variance for all dimensions, N(loc, variance * I).

    Args:
        loc: Means ``[*B, D]``.
        variance: Variances ``[*B]``, positive.
    """

    arg_constraints = {"loc": constraints.real_vector, "variance": constraints.positive}  # noqa: RUF012

    def __init__(self, loc: Tensor, variance: Tensor, validate_args: bool | None = None) -> None:
        batch = broadcast_shapes(loc.shape[:-1], variance.shape)
        self.loc = loc.expand(*batch, loc.shape[-1])
        self._variance = variance.expand(batch)
        super().__init__(batch, loc.shape[-1:], validate_args=validate_args)

    def _variance_vector(self) -> Tensor:
        return self._variance.unsqueeze(-1)


@array_form("diagonal_normal", "loc", "variance")
class DiagonalNormal(_Normal):
    """Normal distribution with one variance per dimension, N(loc, diag(variance)).

    Args:
        loc: Means ``[*B, D]``.
        variance: Variances ``[*B, D]``, positive.
    """

    arg_constraints = {  # noqa: RUF012
        "loc": constraints.real_vector,
        "variance": constraints.independent(constraints.positive, 1),
    }

    def __init__(self, loc: Tensor, variance: Tensor, validate_args: bool | None = None) -> None:
        if loc.shape[-1] != variance.shape[-1]:
            raise ValueError(f"loc has {loc.shape[-1]} dimensions and variance has {variance.shape[-1]}")
        shape = broadcast_shapes(loc.shape, variance.shape)
        self.loc = loc.expand(shape)
        self._variance = variance.expand(shape)
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def _variance_vector(self) -> Tensor:
        return self._variance


def _kl_normal(p: _Normal, q: _Normal) -> Tensor:
    """KL(p || q) ``[*B]``, summed over dimensions."""
    ratio = p._variance_vector() / q._variance_vector()
    shift = (p.loc - q.loc).square() / q._variance_vector()
    # r - 1 - log r is evaluated as one term per dimension: it is never negative, and zero where p equals q.
    terms = shift + (ratio - 1.0 - ratio.log())
    return 0.5 * terms.expand(broadcast_shapes(terms.shape, p.loc.shape)).sum(-1)


for _p in (IsotropicNormal, DiagonalNormal):
    for _q in (IsotropicNormal, DiagonalNormal):
        register_kl(_p, _q)(_kl_normal)


def kl_to_standard_normal(distribution: _Normal) -> Tensor:
    """KL divergence ``[*B]``, KL(p || N(0, I)), of normals p, summed over dimensions (Chang et al. 2020, Eq. 5)."""
    prior = IsotropicNormal(
        torch.zeros_like(distribution.loc),
        distribution.loc.new_ones(distribution.batch_shape),
        validate_args=False,
    )
    return _kl_normal(distribution, prior)
