"""Broadcasting of batch shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """Common shape of several batch shapes.

    It replaces ``torch.broadcast_shapes``, whose first call imports SymPy, which takes a second of every start.

    Raises:
        ValueError: If the shapes do not broadcast.

    Example:
        >>> broadcast_shapes((3, 1), (4,))
        torch.Size([3, 4])
    """
    return torch.Size(np.broadcast_shapes(*map(tuple, shapes)))
