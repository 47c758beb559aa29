"""IDML: introspective deep metric learning (Wang et al., TPAMI 2023; Zheng et al. 2022), with Proxy-Anchor.

An image has a semantic embedding z and an uncertainty embedding u, a proxy p_c has no uncertainty. With unit z and p,
alpha = |z - p|^2 = 2 (1 - cos(z, p)) and beta = |u|^2, the introspective similarity is

    s = 1 - (1 - cos(z, p)) exp(-(beta + g) / (t alpha)),

with a bias g and a temperature t: an image of large u is less far from every proxy than its semantic embedding says. It
takes the place of the cosine in the loss of Proxy-Anchor. Retrieval compares semantic embeddings by cosine.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import MethodParams, Paper, RatedMethod, register, tuned
from .distributions.normal import RatedPoint
from .proxies import ProxyAnchorLoss, proxy_anchor_loss


def introspective_similarity(cosines: Tensor, level: Tensor, bias: float, temperature: float) -> Tensor:
    """Introspective similarities ``[B, C]`` from cosines ``[B, C]`` and uncertainty levels ``[B]``, not negative."""
    apart = (1.0 - cosines).clamp_min(torch.finfo(cosines.dtype).eps)
    return 1.0 - apart * torch.exp(-(level[:, None] + bias) / (2.0 * temperature * apart))


class IntrospectiveProxyAnchor(ProxyAnchorLoss):
    """Proxy-Anchor of introspective similarities, see :func:`introspective_similarity`."""

    def __init__(self, num_classes: int, dim: int, params: Idml.Params) -> None:
        super().__init__(num_classes, dim, params.scale, params.margin)
        self.bias, self.temperature = params.bias, params.temperature

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B points, whose uncertainties are levels, with class labels ``[B]``."""
        assert isinstance(distribution, RatedPoint)
        cosines = self.cosines(distribution.mean)
        similarity = introspective_similarity(cosines, distribution.uncertainty, self.bias, self.temperature)
        return proxy_anchor_loss(similarity, labels, self.scale, self.margin)


@register
class Idml(RatedMethod):
    """IDML as a method: points with an uncertainty embedding that softens similarities in training."""

    name = "idml"
    summary = "Proxy-Anchor; an uncertainty embedding softens the similarities of an image in training"
    paper = Paper(
        title="Introspective Deep Metric Learning",
        venue="TPAMI 2023",
        arxiv="2309.09982",
        equations="introspective similarity, with Proxy-Anchor; first 2205.04449",
    )
    deviations = (
        "u has any length, as in the public code for ImageNet; that for retrieval normalises it, so that the level is 1"
        " for every image and no gradient reaches u",
        "the layer of u starts small, so that levels start near 0: from levels of about 10 training does not move"
        " (MAP@R 4 % on the validation classes of ndigit, 80 with the small start)",
        "alpha is that of unit proxies (code: of free ones)",
        "no mixed images (code: a mixup term beside the loss)",
        "temperature 5 and bias 4 as in the public code; on validation a bias of 0 has 4 points of MAP@R more and 1 has"
        " 4 less, so the published one stays",
        "the confidence of an image is ours, the negative level; the public code has none",
    )

    class Params(MethodParams):
        """Hyper-parameters: scale and margin of Proxy-Anchor, temperature and bias of the similarity."""

        scale: float = tuned(32.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.1, 0.0, 0.5, ge=0, le=2.0)
        temperature: float = tuned(5.0, 1.0, 20.0, log=True, gt=0)
        bias: float = Field(4.0, ge=0)

    def spread_head(self, in_features: int, dim: int) -> nn.Module:
        """Build the linear layer from features ``[B, in_features]`` to uncertainty embeddings ``[B, dim]``."""
        head = nn.Linear(in_features, dim)
        with torch.no_grad():
            head.weight.mul_(0.1)
            head.bias.zero_()
        return head

    def distribution(self, raw: Tensor, spread: Tensor | None) -> RatedPoint:
        """Points whose uncertainty is the level, the squared norm of the uncertainty embedding ``spread [B, dim]``."""
        assert spread is not None
        return RatedPoint(raw, spread.square().sum(-1))

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: the class proxies and the loss of their introspective similarities."""
        return IntrospectiveProxyAnchor(num_classes, dim, self.params)
