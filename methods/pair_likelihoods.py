"""Likelihoods of genuine pairs among the pairs of their first image, as in InfoNCE."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .host_labels import on_host, places, sent


def pair_log_likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-likelihoods of ordered pairs of one class among the pairs of their first image, ``[*, P]``, row-major.

    The other pairs of the first image are those with images of other classes. ``logits`` are ``[*, B, B]``.
    """
    known = on_host(labels)
    same = known[:, None] == known[None, :]
    # Finite: without any negative, a logarithm of zero would have no gradient.
    nothing = 0.5 * torch.finfo(logits.dtype).min
    negatives = logits.masked_fill(sent(same, logits.device), nothing).logsumexp(-1)
    anchor, positive = places(same & ~torch.eye(len(labels), dtype=torch.bool), logits.device)
    return F.logsigmoid(logits[..., anchor, positive] - negatives[..., anchor])
