"""Control confidences: a random one and the best possible one."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

JUDGED_BY = ("map_at_r", "recall_at_1")
"""Metrics of the queries that confidences are judged by."""


def uniform_by_identity(ids: Sequence[str], seed: int, purpose: str) -> Tensor:
    """Draw a uniform number in [0, 1) per identity."""
    keys = [blake2b(f"{purpose}|{seed}|{name}".encode(), digest_size=8).digest() for name in ids]
    return torch.tensor([int.from_bytes(key, "big") >> 11 for key in keys], dtype=torch.float64) * 2.0**-53


def random_confidence(ids: Sequence[str], seed: int) -> Tensor:
    """A confidence that knows nothing, ``[N]``: the control of every curve.

    Example:
        >>> a = random_confidence(["x", "y"], seed=0)
        >>> bool((a == random_confidence(["y", "x"], seed=0).flip(0)).all())
        True
    """
    return uniform_by_identity(ids, seed, "random confidence")


def oracle_confidence(values: Tensor) -> Tensor:
    """The best confidence there could be for a metric: each query's own value ``[N]``, lone queries last.

    Example:
        >>> oracle_confidence(torch.tensor([0.5, float("nan")])).tolist()
        [0.5, -1.0]
    """
    return torch.where(values.isnan(), -1.0, values)
