"""The table of corruptions, in the order of lists: each is the ``CORRUPTION`` of the module of its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._base import Corruption

NAMES = ("crop", "blur", "jpeg", "noise", "occlusion")


class _Corruptions(Mapping[str, "Corruption"]):
    """All corruptions by name; the module of a corruption is imported when the corruption is asked for."""

    def __getitem__(self, name: str) -> Corruption:
        corruption: Corruption = import_module(corruption_module(name)).CORRUPTION
        return corruption

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)

    # Mapping's own would import the module.
    def __contains__(self, name: object) -> bool:
        return name in NAMES


CORRUPTIONS: Mapping[str, Corruption] = _Corruptions()
"""Every corruption by name."""


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
    if name not in NAMES:
        raise KeyError(name)
    return f"{__package__}.{name}"


__all__ = ["CORRUPTIONS", "NAMES", "corruption_module"]
