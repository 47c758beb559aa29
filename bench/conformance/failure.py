"""The error of a check that fails."""

from __future__ import annotations


class ConformanceError(AssertionError):
    """Error of a failed conformance check: a method, data set, test or corruption breaks a rule of its interface."""


def require(condition: bool, what: str) -> None:
    """Fail a check with a message unless a condition holds."""
    if not condition:
        raise ConformanceError(what)
