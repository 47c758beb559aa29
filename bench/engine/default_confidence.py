"""The confidence that speaks for a method if only one is shown."""

from __future__ import annotations

from collections.abc import Container

from ..methods._base import Method


def default_confidence(method: Method, names: Container[str], of_deterministic: str = "") -> str:
    """Name of the confidence that speaks for a method if only one is shown.

    It is the default one of the method, or for a deterministic method the one that a preset asks for. If the model does
    not have it, because the objective of a plug-in is not a classifier, say, it is the norm, which every embedding has.
    """
    if not method.probabilistic and of_deterministic in names:
        return of_deterministic
    return method.default_confidence if method.default_confidence in names else "norm"
