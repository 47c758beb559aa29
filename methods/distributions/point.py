"""Points: degenerate distributions of embeddings without a spread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .arrays import array_form


@array_form("point", "loc")
class PointMass(Distribution):
    """Degenerate distribution with all mass at the point ``loc``.

    Args:
        loc: Points ``[*B, D]``, kept as given and not normalised, because the norm may serve as a confidence.
    """

    arg_constraints = {"loc": constraints.real_vector}  # noqa: RUF012 (torch declares it as a plain attribute)
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, loc: Tensor, validate_args: bool | None = None) -> None:
        if loc.dim() < 1:
            raise ValueError("loc must have at least one dimension")
        self.loc = loc
        super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The point itself, ``[*B, D]``."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Variance of a point: zeros ``[*B, D]``."""
        return torch.zeros_like(self.loc)

    def expand(self, batch_shape: Any, _instance: Any = None) -> PointMass:
        """Same point with a broadcast batch shape, as in :class:`torch.distributions.Distribution`."""
        return PointMass(self.loc.expand(*batch_shape, self.loc.shape[-1]), validate_args=False)

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

    def expand(self, batch_shape: Any, _instance: Any = None) -> RatedPoint:
        """Same points with a broadcast batch shape, as in :class:`torch.distributions.Distribution`."""
        loc = self.loc.expand(*batch_shape, self.loc.shape[-1])
        return RatedPoint(loc, self.uncertainty.expand(*batch_shape), validate_args=False)
