"""Errors that the command line turns into one line and an exit code."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Something the user can mend; one line that says what to do. Exit code 2."""


class BadInput(UserError, ValueError):
    """Arrays or a file that cannot be scored: one line on the command line, a ``ValueError`` from Python."""


class UnitFailed(Exception):
    """A training or test that cannot give a result; its reason goes into the summary. Exit code 1.

    Args:
        reason: Why.
        what: What failed, where the catcher cannot know better.
    """

    def __init__(self, reason: str, what: str = "") -> None:
        super().__init__(reason)
        self.what = what


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UserError(f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})")
