"""Operating points of a scored set of embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real

import torch

from ..errors import BadInput, UnknownName
from ..protocols.operate import DEFAULTS, Document, document_of
from .score import Scored

SMALLEST = 1e-9
"""Smallest share that is no slip, and distance from 1."""


def wishes_of(text: str, files: int = 1) -> dict[str, float]:
    """Wishes by name for so many files, given as ``risk=0.02,far=0.001``; the others are as :data:`DEFAULTS` says.

    Example:
        >>> wishes_of("risk=0.02, coverage=0.9")
        {'risk': 0.02, 'far': 0.01, 'coverage': 0.9}
    """
    if files > 1:
        raise BadInput("--operate is for one file: thresholds belong to one network and gallery")
    wishes: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if name.strip() in wishes:
            raise BadInput(f"--wish {text}: {name.strip()} is given twice; one share of each can be wished for")
        try:
            wishes[name.strip()] = float(value)
        except ValueError:
            raise BadInput(f"--wish {part}: write it as --wish risk=0.02,far=0.001,coverage=0.9") from None
    _check(wishes)
    return DEFAULTS | wishes


def _check(wishes: Mapping[str, object]) -> None:
    for name, value in wishes.items():
        if name not in DEFAULTS:
            raise BadInput(str(UnknownName("wish", name, DEFAULTS)))
        if not isinstance(value, Real) or not SMALLEST <= float(value) <= 1 - SMALLEST:
            raise BadInput(f"wish {name}={value} is no share: give a number between 0 and 1, such as {DEFAULTS[name]}")


def operating_points(scored: Scored, wishes: Mapping[str, float]) -> Document:
    """Choose and measure operating points under the first scorer (:func:`~..protocols.operate.document_of`).

    Raises:
        BadInput: If a wish is unknown or no share, or the classes are too few.
    """
    _check(wishes)
    set_up = scored.asked.set_up
    try:
        made = document_of(
            scored.view, next(iter(scored.values)), wishes, None if set_up is None else torch.from_numpy(set_up)
        )
        return made | {"near_duplicates": scored.near_duplicates}
    except ValueError as error:
        raise BadInput(str(error)) from None
    finally:
        scored.view.release()
