"""Corruptions of test images at graded severities: one file each, listed in ``registry.py``.

A corruption acts on the 8-bit pixels of the evaluation view, so it degrades what a network would have seen; only the
centre crop starts from the original image. Severity 0 is the clean image, bit for bit; 1 is the strongest. What a
corruption draws (noise, a place) depends on a seed and the image's identity, never on the severity: at a higher
severity an image gets the same corruption, only stronger.

Names are resolved on first use, so that importing one module of this package does not import all of them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._base import Corruption as Corruption
    from ._base import Draw as Draw
    from .registry import register_corruption as register_corruption
else:
    from importlib import import_module

    _EXPORTS = {"Corruption": "._base", "Draw": "._base", "register_corruption": ".registry"}

    __all__ = sorted(_EXPORTS)

    def __getattr__(name):
        if name in _EXPORTS:
            return getattr(import_module(_EXPORTS[name], __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
