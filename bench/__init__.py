"""bench: when is a probabilistic image embedding worth it?

Importing this package is cheap on purpose: torch and the other heavy packages load with the parts that need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .scoring.score import score

from ._version import __version__

__all__ = ["__version__", "score"]


def __getattr__(name: str) -> Any:
    if name == "score":
        from .scoring.score import score

        globals()["score"] = score  # found at once from now on
        return score
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
