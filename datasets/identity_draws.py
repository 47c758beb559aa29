"""Random draws that depend on the identity of an image alone, the same on every platform.

Bit generators have stable streams (NEP 19), the distributions of ``numpy.random.Generator`` have not: only raw bits are
drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri


def raw_numbers(ids: Sequence[str], count: int) -> NDArray[np.uint64]:
    """Uniform 64-bit numbers ``[N, count]``; a row depends on its identity, ``count`` only cuts it off."""
    raw = np.empty((len(ids), count), dtype=np.uint64)
    for row, identity in zip(raw, ids):
        seed = int.from_bytes(blake2b(identity.encode(), digest_size=16).digest(), "little")
        row[:] = np.random.PCG64(seed).random_raw(count)
    return raw


def uniform_integers(raw: NDArray[np.uint64], bound: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Integers in [0, bound) from raw numbers of any shape; the bias is below bound / 2^53."""
    unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (unit * bound).astype(np.int64)


def standard_normal(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Standard normal numbers from raw numbers of any shape, by the quantile function; all finite."""
    # Centres of 2^52 intervals: never 0 or 1, for which the normal quantile is infinite.
    normal: NDArray[np.float64] = ndtri(((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
    return normal
