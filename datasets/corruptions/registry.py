"""The table of corruptions, in the order in which they are listed."""

from __future__ import annotations

from . import blur, crop, jpeg, noise, occlusion
from ._base import Corruption

_MODULES = (crop, blur, jpeg, noise, occlusion)

CORRUPTIONS: dict[str, Corruption] = {module.CORRUPTION.name: module.CORRUPTION for module in _MODULES}


def corruption_module(name: str) -> str:
    """Dotted name of the module that defines a corruption.

    Args:
        name: Name of the corruption.

    Raises:
        KeyError: If there is no such corruption.

    Example:
        >>> from bench.datasets.corruptions import corruption_module
        >>> corruption_module("blur")
        'bench.datasets.corruptions.blur'
    """
    return {module.CORRUPTION.name: module.__name__ for module in _MODULES}[name]


__all__ = ["CORRUPTIONS", "corruption_module"]
