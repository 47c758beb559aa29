"""Pairs of images of one class, in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def genuine_pairs(labels: Tensor, limit: int, with_self: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions of all ordered pairs of images of one class (labels ``[N]``), in blocks of P pairs, each ``[P]``.

    A block has at most ``limit`` pairs, unless a single image has more; ``with_self`` pairs an image with itself, too.

    Example:
        >>> [(i.tolist(), j.tolist()) for i, j in genuine_pairs(torch.tensor([4, 7, 4, 4]), 3)]
        [([0, 0], [2, 3]), ([2, 2], [0, 3]), ([3, 3], [0, 2])]
    """
    order = labels.argsort(stable=True)
    _, place, sizes = labels[order].unique_consecutive(return_inverse=True, return_counts=True)
    first, many = (sizes.cumsum(0) - sizes)[place], sizes[place]
    # Blocks of images whose pairs fit: each boundary is found from the running number of pairs.
    ends, start = many.cumsum(0), 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(torch.searchsorted(ends, before + limit, right=True)))
        own = many[start:stop]
        left = torch.arange(start, stop, device=labels.device).repeat_interleave(own)
        step = torch.arange(len(left), device=labels.device) - (own.cumsum(0) - own).repeat_interleave(own)
        right = first[left] + step
        counted = torch.ones_like(left, dtype=torch.bool) if with_self else left != right
        if counted.any():
            yield order[left[counted]], order[right[counted]]
        start = stop
