"""Embedding distributions as subclasses of :class:`torch.distributions.Distribution`."""

from .arrays import array_form, from_arrays, in_float64, on_device, rows_of, to_arrays
from .bessel import vmf_log_normalizer, vmf_log_normalizer_ratio, vmf_log_uniform, vmf_mean_resultant_length
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
    "array_form",
    "from_arrays",
    "in_float64",
    "nivmf_log_prob",
    "on_device",
    "rows_of",
    "to_arrays",
    "vmf_log_normalizer",
    "vmf_log_normalizer_ratio",
    "vmf_log_uniform",
    "vmf_mean_resultant_length",
]
