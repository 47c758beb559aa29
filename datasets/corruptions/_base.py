"""The description of a corruption, and the random numbers that belong to an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CROP = "crop"
"""Name of the centre crop, which starts from the original image instead of the pixels of the evaluation view.

Its severity is 1 - the side of the crop as a fraction of the image's side."""

Draw = Callable[[int], NDArray[np.float64]]
"""Function that returns the first n of an image's own uniform random numbers in (0, 1)."""


@dataclass(frozen=True)
class Corruption:
    """A kind of image corruption, such as blur, with a function that applies it.

    Attributes:
        name: Its name on the command line (``--corruptions``); corrupted test images are the split ``test_NAME`` in
            tables.
        summary: Description of one line for ``bench list corruptions``.
        low: Smallest severity by default, in [0, 1].
        high: Largest severity by default, in [low, 1].
        apply: Function of an image (uint8 ``[C, H, W]``), a severity in (0, 1] and the image's :data:`Draw`, a function
            of n that returns n random numbers in (0, 1); it returns the corrupted image. None for the centre crop,
            which every set of images computes itself (:meth:`ImageSet.cropped`).
        version: Number to raise when the corrupted images change; it is part of the ids of results.
    """

    name: str
    summary: str
    low: float
    high: float
    apply: Callable[[Tensor, float, Draw], Tensor] | None
    version: int = 1


def identity_uniform(ids: Sequence[str], seed: int) -> Tensor:
    """Uniform random number in [0, 1) for each image, float64 ``[N]``, from its identity and the seed alone."""
    # 53 bits: as many as a float64 in [0, 1) resolves.
    bits = [int.from_bytes(blake2b(_key(i, seed), digest_size=8).digest(), "little") >> 11 for i in ids]
    return torch.tensor(bits, dtype=torch.float64) * 2.0**-53


def identity_draw(identity: str, seed: int) -> Draw:
    """Stream of random numbers, float64 in (0, 1), that depends on an image's identity and the seed alone."""

    def draw(count: int) -> NDArray[np.float64]:
        # Raw bits of a bit generator have a stable stream (NEP 19); torch's and numpy's distributions have not.
        key = int.from_bytes(blake2b(_key(identity, seed), digest_size=16).digest(), "little")
        raw = np.random.PCG64(key).random_raw(count)
        # Centres of 2^52 intervals: never 0 or 1, for which the normal quantile is infinite.
        uniform: NDArray[np.float64] = ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return uniform

    return draw


def _key(identity: str, seed: int) -> bytes:
    # File names that are not UTF-8 reach Python as lone surrogates.
    return f"{seed}|{identity}".encode("utf-8", "surrogateescape")


__all__ = ["CROP", "Corruption", "Draw", "identity_draw", "identity_uniform"]
