"""Corruptions of test images at graded severities: one file each, listed in ``registry.py``.

A corruption acts on the 8-bit pixels of the evaluation view, so it degrades what a network would have seen; only the
centre crop starts from the original image. Severity 0 is the clean image, bit for bit; 1 is the strongest. What a
corruption draws (noise, a place) depends on a seed and the image's identity, never on the severity: at a higher
severity an image gets the same corruption, only stronger.

Names are resolved on first use, so that importing one module of this package does not import all of them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._base import CROP as CROP
    from ._base import Corruption as Corruption
    from ._base import Draw as Draw
    from .apply import corrupt as corrupt
    from .apply import corrupted as corrupted
    from .registry import CORRUPTIONS as CORRUPTIONS
    from .registry import corruption_module as corruption_module
    from .registry import register_corruption as register_corruption
    from .severity import LEVELS as LEVELS
    from .severity import check_range as check_range
    from .severity import draw_quality as draw_quality
    from .severity import manifest_sha256 as manifest_sha256
else:
    from importlib import import_module

    _EXPORTS = {
        "CORRUPTIONS": ".registry",
        "CROP": "._base",
        "Corruption": "._base",
        "Draw": "._base",
        "LEVELS": ".severity",
        "check_range": ".severity",
        "corrupt": ".apply",
        "corrupted": ".apply",
        "corruption_module": ".registry",
        "draw_quality": ".severity",
        "manifest_sha256": ".severity",
        "register_corruption": ".registry",
    }

    __all__ = sorted(_EXPORTS)

    def __getattr__(name):
        if name in _EXPORTS:
            return getattr(import_module(_EXPORTS[name], __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
