"""Global pooling of feature maps."""

from __future__ import annotations

from torch import Tensor

POOLINGS: tuple[str, ...] = ("avg_max", "avg")


def pooled(maps: Tensor, pooling: str) -> Tensor:
    """Features ``[B, F]`` of maps ``[B, F, h, w]``: their mean, plus their maximum with ``avg_max``.

    The sum is the pooling of Probabilistic Embeddings Revisited (PER) and the "double" pooling of NIR; EL-nivMF and the
    other rows of NIR take the mean alone.
    """
    mean = maps.mean((2, 3))
    return mean + maps.amax((2, 3)) if pooling == "avg_max" else mean
