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
    function = _explained(getattr(import_module(f".{_PLACES[name]}", __name__), name))
    globals()[name] = function  # found at once from now on
    return function


def _explained(function: Any) -> Any:
    """A function whose error about a wrong argument suggests the right one, as the command line does."""
    from functools import wraps
    from inspect import signature

    from .errors import nearest

    parameters = signature(function).parameters

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        try:
            signature(function).bind(*args, **given)
        except TypeError as error:
            unknown = next((name for name in given if name not in parameters), "")
            named = ", ".join(f"{name}=.." for name, of in parameters.items() if of.kind == of.KEYWORD_ONLY)
            hint = nearest(unknown, parameters) or (f"; by name: {named}" if named else "")
            raise TypeError(f"bench.{function.__name__}: {error}{hint}") from None
        return function(*args, **given)

    return call


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
