"""Losses between embeddings and learned proxies of the classes, as pure functions and as modules with their proxies."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from .host_labels import on_host, sent
from .losses import ClassWeights, cross_entropies, softplus

_FAR = -1e30


def _softplus_lse(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    """log(1 + sum over the masked of exp(logits))."""
    return softplus(torch.logsumexp(torch.where(mask, logits, _FAR), dim))


def proxy_anchor_loss(
    cosines: Tensor, labels: Tensor, alpha: float, delta: float, *, over_samples: bool = False
) -> Tensor:
    """Proxy-Anchor loss (Kim et al., CVPR 2020, Eq. 4), in which proxies pull and push all samples of a batch.

    The cosines of samples and proxies are ``[B, C]``, with scale ``alpha`` and margin ``delta``. ``over_samples``
    averages the positive term over the batch, so that a class weighs as much as it has samples, instead of over the
    classes of the batch, as the public code of EL-nivMF (Kirchhof et al. 2022) and NIR (Roth et al. 2022) does.
    """
    positive = F.one_hot(labels, cosines.shape[1]).bool()
    pull = _softplus_lse(-alpha * (cosines - delta), positive, 0)
    push = _softplus_lse(alpha * (cosines + delta), ~positive, 0)
    counted = labels if over_samples else sent(on_host(labels).unique(), cosines.device)
    return pull[counted].mean() + push.mean()


def proxy_nca_softplus_loss(
    cosines: Tensor, labels: Tensor, alpha: float, delta: float, *, count_samples: bool = False
) -> Tensor:
    """ProxyNCA loss in the form of Proxy-Anchor (Roth et al., CVPR 2022, Eq. 6): each sample sums over proxies.

    It is the mean over samples of softplus(-alpha (own cosine - delta)), the pull to the own proxy, plus log(1 + sum_c
    exp(alpha (cosine_c + delta))) over the other proxies c, from cosines ``[B, C]``. ``count_samples`` counts the own
    proxy in the pull as often as its class has samples in the batch, as the public code of that paper does, instead of
    once.
    """
    positive = F.one_hot(labels, cosines.shape[1]).bool()
    own = cosines.gather(1, labels[:, None]).squeeze(1)
    logit = -alpha * (own - delta)
    if count_samples:
        logit = logit + torch.bincount(labels, minlength=cosines.shape[1])[labels].to(cosines.dtype).log()
    return (softplus(logit) + _softplus_lse(alpha * (cosines + delta), ~positive, 1)).mean()


def proxy_nca_loss(points: Tensor, proxies: Tensor, labels: Tensor, scale: float, *, with_positive: bool) -> Tensor:
    """ProxyNCA loss (Movshovitz-Attias et al., ICCV 2017, Eq. 4) or, with the positive in the sum, ProxyNCA++.

    It is the mean of -log exp(-d_y) / sum_c exp(-d_c), with d the squared distance of points ``[B, D]`` and proxies
    ``[C, D]``, both normalised here, times ``scale``, the inverse temperature: 9 is ProxyNCA++'s 1/9 (Teh et al., ECCV
    2020).
    """
    cosines = F.normalize(points, dim=-1) @ F.normalize(proxies, dim=-1).mT
    logits = -scale * (2.0 - 2.0 * cosines)
    own = logits.gather(1, labels[:, None]).squeeze(1)
    if not with_positive:
        logits = logits.masked_fill(F.one_hot(labels, logits.shape[1]).bool(), _FAR)
    return (torch.logsumexp(logits, 1) - own).mean()


class ProxyAnchorLoss(ClassWeights):
    """Proxy-Anchor loss (:func:`proxy_anchor_loss`) as a module that contains its proxies.

    ``released`` averages the positive term over samples, not over classes.
    """

    def __init__(
        self, num_classes: int, dim: int, scale: float, margin: float, released: bool = False, start: str = "xavier"
    ) -> None:
        super().__init__(num_classes, dim, scale, start)
        self.margin, self.released = margin, released

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``."""
        cosines = self.cosines(distribution.mean)
        return proxy_anchor_loss(cosines, labels, self.scale, self.margin, over_samples=self.released)


class ProxyNCALoss(ClassWeights):
    """ProxyNCA loss as a module that contains its proxies, in one of three forms.

    They are ``original``, ``plusplus`` (ProxyNCA++, the own proxy is in the denominator too) and ``softplus`` (that of
    NIR, Roth et al., CVPR 2022, similar to Proxy-Anchor), which alone has a margin and a released form
    (:func:`proxy_nca_softplus_loss`).
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        scale: float,
        form: str,
        margin: float,
        released: bool,
        start: str = "xavier",
    ) -> None:
        super().__init__(num_classes, dim, scale, start)
        self.form, self.margin, self.released = form, margin, released

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``."""
        if self.form == "softplus":
            cosines = self.cosines(distribution.mean)
            return proxy_nca_softplus_loss(cosines, labels, self.scale, self.margin, count_samples=self.released)
        return proxy_nca_loss(
            distribution.mean, self.weight, labels, self.scale / 2, with_positive=self.form == "plusplus"
        )


class SoftTripleLoss(nn.Module):
    """SoftTriple loss (Qian et al., ICCV 2019) as a module that contains its K centres per class, ``weight [C, K, D]``.

    ``scale`` and ``margin`` are those of the similarities in the softmax over classes, ``gamma`` is the temperature of
    the softmax over the centres of a class, ``tau`` the weight of the regulariser that merges centres.
    """

    def __init__(
        self, num_classes: int, dim: int, scale: float, margin: float, centres: int, gamma: float, tau: float
    ) -> None:
        super().__init__()
        self.scale, self.margin, self.gamma, self.tau = scale, margin, gamma, tau
        self.weight = nn.Parameter(torch.empty(num_classes, centres, dim))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def assigned(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Similarities ``[B, C]`` of points ``[B, D]`` to classes, and the shares ``[B, C, K]`` of the centres in them.

        A similarity is the mean cosine to the K centres of a class, weighted by shares that are a softmax of these
        cosines.
        """
        classes, centres, dim = self.weight.shape
        flat = F.normalize(self.weight, dim=-1).reshape(-1, dim)
        cosines = (F.normalize(points, dim=-1) @ flat.mT).reshape(-1, classes, centres)
        share = torch.softmax(cosines / self.gamma, dim=-1)
        return (share * cosines).sum(-1), share

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float]:
        """Similarities ``[B, C]`` of the means to the classes (:meth:`assigned`), and the scale of their softmax."""
        return self.assigned(distribution.mean)[0], self.scale

    def regulariser(self) -> Tensor:
        """Regulariser that merges needless centres, a scalar: half the mean distance between two centres of a class."""
        classes, centres, _ = self.weight.shape
        if centres == 1:
            return self.weight.new_zeros(())
        unit = F.normalize(self.weight, dim=-1)
        upper = torch.triu_indices(centres, centres, 1, device=unit.device)
        inner = (unit @ unit.mT)[:, upper[0], upper[1]]
        # The slope of the root is infinite where two centres have met.
        return (2.0 - 2.0 * inner).clamp_min(1e-10).sqrt().sum() / (classes * centres * (centres - 1))

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``."""
        similarity, _ = self.assigned(distribution.mean)
        logits = similarity - self.margin * F.one_hot(labels, similarity.shape[1])
        return cross_entropies(self.scale * logits, labels).mean() + self.tau * self.regulariser()
