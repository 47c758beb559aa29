"""Broadcasting of batch shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """Common shape of several batch shapes, as ``torch.broadcast_shapes`` gives it, whose first call imports SymPy.

    Example:
        >>> broadcast_shapes((3, 1), (4,))
        torch.Size([3, 4])
    """
    return torch.Size(np.broadcast_shapes(*map(tuple, shapes)))
