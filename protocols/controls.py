"""Control confidences: a random one and the best possible one."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

JUDGED_BY = ("map_at_r", "recall_at_1")
"""Metrics of single queries that a confidence is judged by."""


def uniform_by_identity(ids: Sequence[str], seed: int, purpose: str) -> Tensor:
    """Uniform numbers in [0, 1), float64 ``[N]``, each from an identity, the seed and the purpose alone."""
    keys = b"".join(blake2b(f"{purpose}|{seed}|{name}".encode(), digest_size=8).digest() for name in ids)
    return torch.from_numpy((np.frombuffer(keys, ">u8") >> 11).astype(np.float64) * 2.0**-53)


def random_confidence(ids: Sequence[str], seed: int) -> Tensor:
    """Random confidence of each image, float64 ``[N]`` in [0, 1), from its identity and the seed alone."""
    return uniform_by_identity(ids, seed, "random confidence")


def oracle_confidence(values: Tensor) -> Tensor:
    """Best possible confidence for a metric: each query's own value of it, ``[Q]``; -1, the lowest, if it is nan."""
    return torch.where(values.isnan(), -1.0, values)
