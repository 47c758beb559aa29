"""Embedding distributions as subclasses of :class:`torch.distributions.Distribution`.

Names are resolved on first use; code in this project imports them from the modules that define them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .arrays import array_form as array_form
    from .arrays import from_arrays as from_arrays
    from .arrays import in_float64 as in_float64
    from .arrays import on_device as on_device
    from .arrays import rows_of as rows_of
    from .arrays import to_arrays as to_arrays
    from .bessel import vmf_log_normalizer as vmf_log_normalizer
    from .bessel import vmf_log_normalizer_ratio as vmf_log_normalizer_ratio
    from .bessel import vmf_log_uniform as vmf_log_uniform
    from .bessel import vmf_mean_resultant_length as vmf_mean_resultant_length
    from .non_isotropic import NonIsotropicVonMisesFisher as NonIsotropicVonMisesFisher
    from .non_isotropic import nivmf_log_prob as nivmf_log_prob
    from .normal import DiagonalNormal as DiagonalNormal
    from .normal import IsotropicNormal as IsotropicNormal
    from .normal import PointMass as PointMass
    from .normal import RatedPoint as RatedPoint
    from .von_mises_fisher import VonMisesFisher as VonMisesFisher
else:
    _NAMES = {
        ".arrays": ("array_form", "from_arrays", "in_float64", "on_device", "rows_of", "to_arrays"),
        ".bessel": ("vmf_log_normalizer", "vmf_log_normalizer_ratio", "vmf_log_uniform", "vmf_mean_resultant_length"),
        ".non_isotropic": ("NonIsotropicVonMisesFisher", "nivmf_log_prob"),
        ".normal": ("DiagonalNormal", "IsotropicNormal", "PointMass", "RatedPoint"),
        ".von_mises_fisher": ("VonMisesFisher",),
    }
    _MODULES = {name: module for module, names in _NAMES.items() for name in names}
    __all__ = sorted(_MODULES)

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return getattr(import_module(_MODULES[name], __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
