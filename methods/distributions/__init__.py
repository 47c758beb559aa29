"""Embedding distributions as subclasses of :class:`torch.distributions.Distribution`."""

from ._arrays import from_arrays, to_arrays
from .normal import DiagonalNormal, IsotropicNormal
from .point import PointMass

__all__ = ["DiagonalNormal", "IsotropicNormal", "PointMass", "from_arrays", "to_arrays"]
