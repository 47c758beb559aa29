"""bench: when is a probabilistic image embedding worth it?

Importing this package is cheap on purpose: torch and the other heavy packages load with the parts that need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.load import load
    from .api.results import results
    from .api.run import run
    from .api.score import score

from ._version import __version__

__all__ = ["__version__", "load", "results", "run", "score"]

_PLACES = {"load": "api.load", "results": "api.results", "run": "api.run", "score": "api.score"}
"""Modules of the functions that are imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = getattr(import_module(f".{_PLACES[name]}", __name__), name)
    globals()[name] = function  # found at once from now on
    return function


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
