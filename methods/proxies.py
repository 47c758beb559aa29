"""Losses between embeddings and one learned proxy per class, as pure functions, and the proxies themselves."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

_FAR = -1e30


class Proxies(nn.Module):
    """One free vector per class; its direction is the proxy.

    Args:
        num_classes: C.
        dim: D.
        scale: Inverse temperature of the classifier confidences these proxies give.
    """

    def __init__(self, num_classes: int, dim: int, scale: float = 16.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_uniform_(self.weight)

    def directions(self) -> Tensor:
        """Unit proxies ``[C, D]``."""
        return F.normalize(self.weight, dim=-1)

    def cosines(self, points: Tensor) -> Tensor:
        """Cosines ``[B, C]`` of points ``[B, D]``."""
        return F.normalize(points, dim=-1) @ self.directions().mT

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float]:
        """Cosines of the means to the proxies, and the scale."""
        return self.cosines(distribution.mean), self.scale


def _softplus_lse(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    """log(1 + sum over the masked of exp(logits))."""
    return F.softplus(torch.logsumexp(torch.where(mask, logits, _FAR), dim))


def proxy_anchor_loss(
    cosines: Tensor, labels: Tensor, alpha: float, delta: float, *, over_samples: bool = False
) -> Tensor:
    """Proxy-Anchor (Kim et al., CVPR 2020, Eq. 4): proxies pull and push all samples of a batch.

    Args:
        cosines: ``[B, C]``.
        labels: ``[B]``.
        alpha: Scale.
        delta: Margin.
        over_samples: Average the positive term over the batch, so that a class weighs as much as it has samples (the
            public EL-nivMF and NIR code), instead of over the classes of the batch.
    """
    positive = F.one_hot(labels, cosines.shape[1]).bool()
    pull = _softplus_lse(-alpha * (cosines - delta), positive, 0)
    push = _softplus_lse(alpha * (cosines + delta), ~positive, 0)
    present = positive.any(0)
    return (pull[labels].mean() if over_samples else pull[present].mean()) + push.mean()


def proxy_nca_softplus_loss(
    cosines: Tensor, labels: Tensor, alpha: float, delta: float, *, count_samples: bool = False
) -> Tensor:
    """ProxyNCA in the form of Proxy-Anchor (Roth et al., CVPR 2022, Eq. 6): sums over proxies per sample.

    Args:
        cosines: ``[B, C]``.
        labels: ``[B]``.
        alpha: Scale.
        delta: Margin.
        count_samples: Sum the positive term over the batch columns of the class, so that the own proxy counts once
            per sample of its class (the public NIR code).
    """
    positive = F.one_hot(labels, cosines.shape[1]).bool()
    own = cosines.gather(1, labels[:, None]).squeeze(1)
    logit = -alpha * (own - delta)
    if count_samples:
        logit = logit + torch.bincount(labels, minlength=cosines.shape[1])[labels].to(cosines.dtype).log()
    return (F.softplus(logit) + _softplus_lse(alpha * (cosines + delta), ~positive, 1)).mean()


def proxy_nca_loss(points: Tensor, proxies: Tensor, labels: Tensor, scale: float, *, with_positive: bool) -> Tensor:
    """ProxyNCA (Movshovitz-Attias et al., ICCV 2017, Eq. 4) or, with the positive in the sum, ProxyNCA++.

    -log exp(-d_y) / sum_c exp(-d_c) with d the squared distance of unit vectors times ``scale``.

    Args:
        points: ``[B, D]``.
        proxies: ``[C, D]``.
        labels: ``[B]``.
        scale: Inverse temperature: 9 is ProxyNCA++'s 1/9 (Teh et al., ECCV 2020).
        with_positive: Whether the own proxy is in the denominator.
    """
    cosines = F.normalize(points, dim=-1) @ F.normalize(proxies, dim=-1).mT
    logits = -scale * (2.0 - 2.0 * cosines)
    own = logits.gather(1, labels[:, None]).squeeze(1)
    if not with_positive:
        logits = logits.masked_fill(F.one_hot(labels, logits.shape[1]).bool(), _FAR)
    return (torch.logsumexp(logits, 1) - own).mean()
