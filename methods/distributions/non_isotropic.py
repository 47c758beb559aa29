"""The non-isotropic von Mises-Fisher distribution of EL-nivMF (Kirchhof et al., ECCV 2022)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import constraints

from .arrays import Located, broadcast_shapes
from .bessel import LARGE, perhaps_large, vmf_log_normalizer, vmf_log_peak, vmf_log_uniform
from .von_mises_fisher import VonMisesFisher, on_sphere

NORMALIZERS = ("heuristic", "exact", "none")
LogNormalizer = Callable[[Tensor, int], Tensor]


def nivmf_log_prob(
    points: Tensor,
    loc: Tensor,
    concentration: Tensor,
    normalizer: str = "heuristic",
    log_normalizer: LogNormalizer = vmf_log_normalizer,
) -> Tensor:
    """Log densities of all points under all non-isotropic von Mises-Fisher distributions, as two matrix products.

    With K = diag(concentration), mu = loc, kt = |K mu| and s the cosine (Kirchhof et al. 2022, Eq. 4):

        log rho(z) = log C(kt) + kt s(K z, K mu) + log D,   kt s(K z, K mu) = (z . K^2 mu) / |K z|

    ``heuristic`` is the paper's log D = sum_m log k_m - log kt, with which rho does not integrate to one. ``exact``
    takes the Jacobian of z -> K z / |K z| instead, log D = sum_m log k_m - D log |K z|, with which it does. ``none``
    leaves log D out.

    Args:
        points: Unit vectors ``[*, N, D]``.
        loc: Directions mu ``[C, D]``, unit vectors.
        concentration: Diagonals of K ``[C, D]``, positive.
        normalizer: ``heuristic``, ``exact`` or ``none``.
        log_normalizer: Function ``(k, dim)`` for log C(k), the log normaliser of the isotropic distribution.

    Returns:
        Log densities ``[*, N, C]`` of each point under each distribution.

    Raises:
        ValueError: If the normaliser is unknown.
    """
    if normalizer not in NORMALIZERS:
        raise ValueError(f"normalizer must be one of {', '.join(NORMALIZERS)}, not {normalizer!r}")
    squared = concentration.square()
    kt = (squared * loc.square()).sum(-1).sqrt()
    stretched = points.square() @ squared.mT
    return _assemble(points @ (squared * loc).mT, stretched, kt, concentration, normalizer, log_normalizer)


def _assemble(
    inner: Tensor, stretched: Tensor, kt: Tensor, concentration: Tensor, normalizer: str, log_normalizer: LogNormalizer
) -> Tensor:
    """Log rho from z . K^2 mu, |K z|^2 and |K mu|."""
    dim = concentration.shape[-1]
    result = inner * stretched.rsqrt() + log_normalizer(kt, dim)
    if normalizer == "none":
        return result
    result = result + concentration.log().sum(-1)
    return result - (kt.log() if normalizer == "heuristic" else 0.5 * dim * stretched.log())


class NonIsotropicVonMisesFisher(Located):
    """Non-isotropic von Mises-Fisher distribution nivMF(loc, concentration): a vMF stretched along the axes.

    The stretch is a diagonal matrix K. ``mean`` is the direction mu in place of E[z], which has no closed form and is
    not what retrieval compares.

    Args:
        loc: Directions mu ``[*B, D]``, D >= 2; normalised here.
        concentration: Diagonals of K (not of K squared) ``[*B, D]``, positive.
        normalizer: ``heuristic``, ``exact`` or ``none``, see :func:`nivmf_log_prob`. Only ``exact`` makes
            :meth:`log_prob` a density and allows draws.
    """

    arg_constraints = {  # noqa: RUF012
        "loc": constraints.real_vector,
        "concentration": constraints.independent(constraints.positive, 1),
    }

    def __init__(
        self,
        loc: Tensor,
        concentration: Tensor,
        normalizer: str = "heuristic",
        validate_args: bool | None = None,
    ) -> None:
        if normalizer not in NORMALIZERS:
            raise ValueError(f"normalizer must be one of {', '.join(NORMALIZERS)}, not {normalizer!r}")
        if loc.shape[-1] != concentration.shape[-1] or loc.shape[-1] < 2:
            raise ValueError(
                f"loc [*, D] and concentration [*, D] must share a D >= 2: {loc.shape[-1]}, {concentration.shape[-1]}"
            )
        shape = broadcast_shapes(loc.shape, concentration.shape)
        self.loc = on_sphere(loc).expand(shape)
        self.concentration = concentration.expand(shape)
        self.normalizer = normalizer
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @property
    def mode(self) -> Tensor:
        """Direction mu ``[*B, D]``: the mode under the heuristic normaliser, because K z points along K mu there."""
        return self.loc

    def log_prob(self, value: Tensor) -> Tensor:
        """Log densities of unit vectors ``value [*, D]``; not normalised unless ``normalizer`` is ``exact``."""
        # Squares of large concentrations leave the range of numbers: a power of 2, taken out, changes no digit.
        largest = self.concentration.detach().amax(-1)
        narrow_ones = perhaps_large(largest)
        size = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent)
        size = torch.where(largest > LARGE, size, torch.ones_like(size))
        k = self.concentration / size.unsqueeze(-1)
        squared = k.square()
        kt = (squared * self.loc.square()).sum(-1).sqrt()
        stretched = (value.square() * squared).sum(-1)
        inner = (value * squared * self.loc).sum(-1)
        result = _assemble(inner, stretched, kt, k, self.normalizer, vmf_log_normalizer)
        if not narrow_ones:
            return result
        # kt s and log C(kt) both grow like kt: as in a von Mises-Fisher.
        away = 0.5 * (F.normalize(k * value, dim=-1) - F.normalize(k * self.loc, dim=-1)).square().sum(-1)
        narrow = _assemble(torch.zeros_like(inner), stretched, kt, k, self.normalizer, lambda kt, dim: 0.0 * kt)
        total = kt * size
        narrow = narrow + vmf_log_peak(total, self.dim) + vmf_log_uniform(self.dim) - total * away
        if self.normalizer == "heuristic":
            narrow = narrow + (self.dim - 1) * size.log()
        return torch.where(largest > LARGE, narrow, result)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws ``[*sample_shape, *B, D]`` with gradients: K^-1 y / |K^-1 y|, y ~ vMF(K mu / |K mu|, |K mu|).

        Raises:
            NotImplementedError: If ``normalizer`` is not ``exact``: the others give no density to draw from.
        """
        if self.normalizer != "exact":
            raise NotImplementedError(f"normalizer={self.normalizer!r} gives no density to draw from; use 'exact'")
        stretched = self.concentration * self.loc
        y = VonMisesFisher(stretched, stretched.square().sum(-1).sqrt(), validate_args=False).rsample(sample_shape)
        return on_sphere(y / self.concentration)
