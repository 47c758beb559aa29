"""The table of corruptions: each is the ``CORRUPTION`` of the module that has its name, or comes from a plug-in."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._base import Corruption

NAMES = (
    *("crop", "blur", "jpeg", "noise", "occlusion"),
    *("feature_dropout", "feature_noise", "feature_quantisation"),
)


class _Corruptions(Mapping[str, "Corruption"]):
    """All corruptions by name; the module of one is imported when it is asked for."""

    def __init__(self) -> None:
        self.built_in = {name: f"{__package__}.{name}" for name in NAMES}
        self.added: dict[str, tuple[Corruption, str]] = {}

    def __getitem__(self, name: str) -> Corruption:
        if name in self.added:
            return self.added[name][0]
        corruption: Corruption = import_module(self.built_in[name]).CORRUPTION
        return corruption

    def __iter__(self) -> Iterator[str]:
        return iter((*self.built_in, *self.added))

    def __len__(self) -> int:
        return len(self.built_in) + len(self.added)

    # Mapping's own would import the module.
    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.added


CORRUPTIONS = _Corruptions()
"""Every corruption by name; its module is imported when the corruption is asked for."""


def register_corruption(corruption: Corruption) -> Corruption:
    """Register the corruption of a plug-in, so that the option ``--corruptions`` accepts its name.

    Args:
        corruption: The corruption. The module that calls this function is recorded as the one that defines it.

    Returns:
        The corruption itself.

    Raises:
        ValueError: If another module has a corruption of that name, the name is ``all`` or not made of lower-case
            letters, digits and underscores, its ``low`` and ``high`` are not a valid range, or its ``apply`` is not a
            function of three arguments.
    """
    name = corruption.name
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or name == "all":
        raise ValueError(f"a corruption's name is lower-case letters, digits and underscores, not {name!r}")
    if corruption.apply is None:
        raise ValueError(f"corruption {name!r} needs `apply`, a function of the pixels")
    try:
        inspect.signature(corruption.apply).bind(None, 0.5, None)
    except TypeError:
        raise ValueError(f"corruption {name!r}: its function takes (image, severity, draw)") from None
    from ._base import check_range

    try:
        check_range(name, corruption.low, corruption.high)
    except ValueError as error:
        raise ValueError(f"corruption {name!r}: {error}") from None
    module = str(sys._getframe(1).f_globals.get("__name__"))
    if name in CORRUPTIONS and (name in CORRUPTIONS.built_in or corruption_module(name) != module):
        raise ValueError(f"corruption {name!r} is already defined in {corruption_module(name)}; choose another name")
    CORRUPTIONS.added[name] = (corruption, module)
    return corruption


def corruption_module(name: str) -> str:
    """Dotted name of the module that defines a corruption; a ValueError if there is none of that name."""
    if name not in CORRUPTIONS:
        near = get_close_matches(name, CORRUPTIONS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown corruption {name!r}{hint} (known: {', '.join(sorted(CORRUPTIONS))})")
    return CORRUPTIONS.added[name][1] if name in CORRUPTIONS.added else CORRUPTIONS.built_in[name]


def corruption_file(name: str) -> str:
    """Name of the Python file that defines a corruption, for error messages."""
    module = import_module(corruption_module(name))
    return Path(module.__file__ or module.__name__).name
