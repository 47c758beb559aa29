"""JSON that means one thing: what other parsers read in silence is refused."""

from __future__ import annotations

import json
from typing import Any


def read_json(text: str | bytes) -> Any:
    """Value of a JSON text; a ValueError if a key is there twice, a number is not finite, or it is nested too deeply.

    Example:
        >>> read_json('{"a": [1, 2]}')
        {'a': [1, 2]}
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in made if keys.count(key) > 1)!r} is there more than once")
    return made


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
