"""Global pooling of feature maps."""

from __future__ import annotations

from torch import Tensor

POOLINGS: tuple[str, ...] = ("avg_max", "avg")


def pooled(maps: Tensor, pooling: str) -> Tensor:
    """Global pooling of feature maps ``[B, F, h, w]`` to features ``[B, F]``.

    ``avg`` is the mean over the positions, ``avg_max`` the mean plus the maximum. The latter is the pooling of
    Probabilistic Embeddings Revisited and the "double" pooling of NIR (Roth et al., CVPR 2022); EL-nivMF (Kirchhof et
    al., ECCV 2022) and the other results of NIR take the mean alone.
    """
    mean = maps.mean((2, 3))
    return mean + maps.amax((2, 3)) if pooling == "avg_max" else mean
