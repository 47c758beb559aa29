"""Embedding distributions as subclasses of :class:`torch.distributions.Distribution`."""

from ._arrays import from_arrays, to_arrays
from ._bessel import vmf_log_normalizer, vmf_log_normalizer_ratio, vmf_log_uniform, vmf_mean_resultant_length
from .non_isotropic import NonIsotropicVonMisesFisher, nivmf_log_prob
from .normal import DiagonalNormal, IsotropicNormal
from .point import PointMass
from .von_mises_fisher import VonMisesFisher

__all__ = [
    "DiagonalNormal",
    "IsotropicNormal",
    "NonIsotropicVonMisesFisher",
    "PointMass",
    "VonMisesFisher",
    "from_arrays",
    "nivmf_log_prob",
    "to_arrays",
    "vmf_log_normalizer",
    "vmf_log_normalizer_ratio",
    "vmf_log_uniform",
    "vmf_mean_resultant_length",
]
