"""A matrix of numbers as it was given, whose rows become float64 when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

BLOCK_BYTES = 1 << 20
"""Size of a block of rows in float64."""


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of a matrix ``[N, D]``, in an order of their own, without a sorted or float64 copy of it."""

    stored: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, stored: np.ndarray) -> Self:
        """The rows of a matrix ``[N, D]`` in their stored order."""
        return cls(stored, np.arange(len(stored)))

    def __len__(self) -> int:
        return len(self.order)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return len(self.order), self.stored.shape[1]

    def __getitem__(self, index: np.ndarray | slice) -> np.ndarray:
        """Some rows, a new float64 array ``[B, D]`` without negative zeros: equal rows have equal bytes."""
        rows: np.ndarray = self.stored[self.order[index]].astype(np.float64)
        rows += 0.0
        return rows

    def reordered(self, order: np.ndarray) -> Self:
        """Copy of the rows in another order; ``order`` has the present place of each."""
        return type(self)(self.stored, self.order[order])

    def blocks(self) -> Iterator[np.ndarray]:
        """Blocks of consecutive rows, float64."""
        size = max(1, BLOCK_BYTES // (8 * self.shape[1]))
        for start in range(0, len(self), size):
            yield self[start : start + size]
