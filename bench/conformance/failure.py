"""The error of a check that fails."""

from __future__ import annotations


class ConformanceError(AssertionError):
    """Error of a failed check: a method, data set, test or corruption does not do what all of its kind must do."""


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
