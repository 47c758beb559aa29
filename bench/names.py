"""Names that become parts of paths, columns and lists on the command line."""

from __future__ import annotations

import re

from .errors import UserError

LONGEST = 64
"""Most characters of a name."""

_NAME = re.compile("[a-z][a-z0-9_]*")
_PART = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*")


def why_not_a_name(name: str) -> str:
    """Reason why a text cannot be the name of something that plug-ins define; empty if it can.

    Example:
        >>> why_not_a_name("../../escaped")
        "'../../escaped' cannot be a name: use lower-case letters, digits and underscores, a letter first"
        >>> why_not_a_name("x" * 65)[-31:]
        'it is longer than 64 characters'
    """
    if not _NAME.fullmatch(name):
        return f"{name[:LONGEST]!a} cannot be a name: use lower-case letters, digits and underscores, a letter first"
    if len(name) > LONGEST:
        return f"{name[:LONGEST]!a}.. cannot be a name: it is longer than {LONGEST} characters"
    return ""


def check_name(what: str, name: str) -> None:
    """Refuse a text that cannot be the name of something that plug-ins define."""
    reason = why_not_a_name(name)
    if reason:
        raise UserError(f"{what}: {reason}")


def part_of_path(text: str) -> str:
    """A name or an id as one part of a path in a results folder, whoever wrote it; it must not lead anywhere else."""
    if len(text) > 2 * LONGEST or not _PART.fullmatch(text):
        raise UserError(f"{text[:LONGEST]!a} cannot be part of a path: use letters, digits, '_', '-' and '.'")
    return text
