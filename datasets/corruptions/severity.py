"""The severity of a corruption: its range, the draw of each image, and a manifest of the draws."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from torch import Tensor

from ._base import CROP, identity_uniform

LEVELS = 5
"""Number of graded levels of a corruption: level k is severity k / 5."""


def draw_quality(name: str, ids: Sequence[str], seed: int, low: float, high: float) -> Tensor:
    """Draw the quality of each image, 1 - severity of a corruption, uniformly in [1 - high, 1 - low], float64 ``[N]``.

    A draw depends on the seed and the image's identity alone, not on the other images or their order. The quality of a
    centre crop is the side of the crop as a fraction of the image's side.

    Raises:
        ValueError: If the range is not within [0, 1], or contains severity 1 of the crop, which leaves nothing.

    Example:
        >>> draw_quality("blur", ["a.png", "b.png"], 0, 0.6, 0.6).tolist()
        [0.4, 0.4]
    """
    check_range(name, low, high)
    least, most = round(1 - high, 12), round(1 - low, 12)
    return least + (most - least) * identity_uniform(ids, seed)


def check_range(name: str, low: float, high: float) -> None:
    """Refuse a range of severities outside [0, 1], or with severity 1 of the crop, which leaves nothing."""
    if not 0 <= low <= high <= 1:
        raise ValueError(f"severities are from 0 to 1, the smaller first, not {low:g} to {high:g}")
    if name == CROP and high == 1:
        raise ValueError("a crop of severity 1 is empty; its side is 1 - severity")


def manifest_sha256(ids: Sequence[str], quality: Tensor, seed: int) -> str:
    """SHA-256 (hexadecimal) of the severities of a corruption of N images; the order of the images does not matter.

    It covers the seed, then a line ``["id", severity]`` (JSON) per image, sorted by identity; ``quality`` is 1 -
    severity.
    """
    digest = hashlib.sha256(f"{seed}\n".encode())
    for identity, value in sorted(zip(ids, quality.tolist())):
        digest.update(json.dumps([identity, 1 - value]).encode() + b"\n")
    return digest.hexdigest()


__all__ = ["LEVELS", "check_range", "draw_quality", "manifest_sha256"]
