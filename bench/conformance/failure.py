"""The error of a check that fails."""

from __future__ import annotations


class ConformanceError(AssertionError):
    """Error of a failed conformance check: a method, data set, test or corruption breaks a rule of its interface."""


def require(condition: bool, what: str) -> None:
    """Fail a check unless a condition holds.

    Args:
        condition: Condition that must hold.
        what: Message if it does not.

    Raises:
        ConformanceError: If it does not hold.
    """
    if not condition:
        raise ConformanceError(what)
