"""Distributions to named arrays and back, so that embeddings can live on disk without pickles."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.distributions import Distribution

from .normal import DiagonalNormal, IsotropicNormal
from .point import PointMass
from .von_mises_fisher import VonMisesFisher

_KINDS: dict[str, tuple[Callable[..., Distribution], tuple[str, ...]]] = {
    "point": (PointMass, ("loc",)),
    "isotropic_normal": (IsotropicNormal, ("loc", "variance")),
    "diagonal_normal": (DiagonalNormal, ("loc", "variance")),
    "von_mises_fisher": (VonMisesFisher, ("loc", "concentration")),
}


def to_arrays(distribution: Distribution) -> tuple[str, dict[str, Tensor]]:
    """Kind and parameters of a batch of distributions.

    Returns:
        Name of the kind, and its parameters ``{name: [N, ...]}``.

    Raises:
        TypeError: If the distribution is not one of ours.
    """
    for kind, (cls, names) in _KINDS.items():
        if type(distribution) is cls:
            return kind, {name: getattr(distribution, name) for name in names}
    raise TypeError(f"no array form for {type(distribution).__name__}; known: {', '.join(_KINDS)}")


def from_arrays(kind: str, arrays: Mapping[str, Tensor]) -> Distribution:
    """Inverse of :func:`to_arrays`.

    Raises:
        KeyError: If the kind is unknown or a parameter is missing.
    """
    cls, names = _KINDS[kind]
    return cls(*(arrays[name] for name in names), validate_args=False)
