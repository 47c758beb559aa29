"""Names that become parts of paths, columns and lists on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable

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


def split_names(asked: Iterable[str]) -> tuple[str, ...]:
    """Single names from comma-separated lists, without blanks and empty parts."""
    return tuple(part.strip() for text in asked for part in text.split(",") if part.strip())


def expand(asked: Iterable[str], known: list[str]) -> tuple[str, ...]:
    """Names from comma-separated lists, each once; ``all`` stands for every known name, unknown names are kept.

    Raises:
        UserError: If the lists are empty.

    Example:
        >>> expand(("a,b", "b"), ["a", "b", "c"]), expand(("all",), ["a", "b"])
        (('a', 'b'), ('a', 'b'))
    """
    names = split_names(asked)
    if not names:
        raise UserError("no name was given; `bench list` shows what there is, such as `bench list methods`")
    return tuple(known) if "all" in names else tuple(dict.fromkeys(names))
