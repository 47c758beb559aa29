"""Confidences that any embedding has, probabilistic or not; higher = more confident."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Distribution


def classifier_confidences(objective: nn.Module | None, distribution: Distribution) -> dict[str, Tensor]:
    """Confidences from the training classifier, for test images of classes it never saw.

    Args:
        objective: A module with ``class_cosines(distribution) -> ([B, C], scale)``, the scale a number or ``[B, 1]``;
            anything else gives nothing. One whose classifier is no softmax of scaled cosines has in addition
            ``class_logits(distribution) -> [B, C]``, the logits of its own.
        distribution: Batch of B embeddings.

    Returns:
        ``max_cosine`` (largest cosine to a class weight), ``max_probability`` (log of the largest probability of the
        objective's own softmax over the classes, no margin) and ``neg_entropy`` (negative entropy of that softmax,
        nats), each ``[B]``.
    """
    class_cosines = getattr(objective, "class_cosines", None)
    if class_cosines is None:
        return {}
    cosines, scale = class_cosines(distribution)
    class_logits = getattr(objective, "class_logits", None)
    # In float64, log-probabilities near 0 keep the order that float32 would round to ties at 1.
    logits = scale * cosines.double() if class_logits is None else class_logits(distribution).double()
    log_p = torch.log_softmax(logits, dim=-1)
    return {
        "max_cosine": cosines.amax(-1),
        "max_probability": log_p.amax(-1),
        "neg_entropy": (log_p.exp() * log_p).sum(-1),
    }


def norm_confidence(raw: Tensor) -> Tensor:
    """Norm ``[B]`` of the raw embedding ``[B, D]``, before any normalisation."""
    return raw.square().sum(-1).sqrt()
