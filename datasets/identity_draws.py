"""Random draws that depend on the identity of an image alone, the same on every platform.

Bit generators have stable streams (NEP 19), the distributions of ``numpy.random.Generator`` have not: only raw bits are
drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


def raw_numbers(ids: Sequence[str], count: int) -> NDArray[np.uint64]:
    """Uniform 64-bit numbers ``[N, count]``; a row depends on its identity, ``count`` only cuts it off."""
    raw = np.empty((len(ids), count), dtype=np.uint64)
    for row, identity in zip(raw, ids):
        # File names that are not UTF-8 reach Python as lone surrogates.
        key = blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=16)
        seed = int.from_bytes(key.digest(), "little")
        row[:] = np.random.PCG64(seed).random_raw(count)
    return raw


def uniform_integers(raw: NDArray[np.uint64], bound: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Integers in [0, bound) from raw numbers of any shape; the bias is below bound / 2^53."""
    unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (unit * bound).astype(np.int64)


def uniform(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers in (0, 1) from raw numbers of any shape: never 0 or 1, for which the normal quantile is infinite."""
    centres: NDArray[np.float64] = ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return centres


def standard_normal(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Standard normal numbers from raw numbers of any shape, by the quantile function; all finite."""
    from scipy.special import ndtri  # late: corruptions, most of which draw no normal numbers, import this file

    normal: NDArray[np.float64] = ndtri(uniform(raw))
    return normal
