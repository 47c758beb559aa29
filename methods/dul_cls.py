"""DUL-cls: data uncertainty learning, classification (Chang et al., CVPR 2020).

An image is N(mu, sigma^2 I) with mu on the unit sphere. One reparametrised sample goes through a margin softmax, and
a KL term keeps the variance from vanishing:

    z = mu + sigma * eps,  eps ~ N(0, I)
    L = L_margin(z / |z|, y) + kl_weight * KL(N(mu, sigma^2 I) || N(0, I)),   KL summed over dimensions
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from .distributions import IsotropicNormal
from .distributions.normal import kl_to_standard_normal
from .heads import SpreadHead, variance_from_raw
from .losses import ArcFaceLoss, CosFaceLoss


class _SampledClassification(nn.Module):
    """Margin softmax of one sample plus the weighted KL to the standard normal."""

    def __init__(self, classifier: CosFaceLoss | ArcFaceLoss, kl_weight: float) -> None:
        super().__init__()
        self.classifier = classifier
        self.kl_weight = kl_weight

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float]:
        return self.classifier.class_cosines(distribution)

    def forward(self, distribution: IsotropicNormal, labels: Tensor) -> Tensor:
        loss: Tensor = self.classifier(distribution, labels)
        return loss + self.kl_weight * kl_to_standard_normal(distribution).mean()


@register
class DulCls(Method):
    """Isotropic normal embedding trained end to end with a sampled margin softmax."""

    name = "dul_cls"
    summary = "normal embedding; margin softmax of a sample plus KL to the standard normal, end to end"
    paper = Paper(
        title="Data Uncertainty Learning in Face Recognition",
        venue="CVPR 2020",
        arxiv="2003.11339",
        equations="Eq. 3-6",
    )
    deviations = (
        "one variance per image and means on the unit sphere, as in PER (the paper: one per dimension, free means)",
        "kl_weight multiplies the KL summed over dimensions (the paper: 0.01, per-dimension reading left open)",
        "variance starts at 2/D (PER's code: 1, where a sample carries no signal at D = 128)",
        SpreadHead.DEVIATION,
    )
    default_confidence = "method"

    class Params(MethodParams):
        """Classifier s and m, weight of the KL, which margin."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.2, 0.0, 1.0, ge=0, le=2.0)
        kl_weight: float = tuned(3e-3, 1e-5, 1e-2, log=True, ge=0)
        classifier: Literal["cosface", "arcface"] = "cosface"

    def spread_head(self, in_features: int, dim: int) -> nn.Module:
        """Variance head, one number per image."""
        return SpreadHead(in_features)

    def distribution(self, raw: Tensor, spread: Tensor | None) -> IsotropicNormal:
        """N(raw / |raw|, variance I)."""
        assert spread is not None
        variance = variance_from_raw(spread.squeeze(-1), raw.shape[-1])
        return IsotropicNormal(F.normalize(raw, dim=-1), variance, validate_args=False)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Sampled margin softmax plus KL."""
        margin_loss = ArcFaceLoss if self.params.classifier == "arcface" else CosFaceLoss
        classifier = margin_loss(num_classes, dim, self.params.scale, self.params.margin)
        return _SampledClassification(classifier, self.params.kl_weight)

    def confidence(self, distribution: Distribution) -> Tensor:
        """Negative log variance (monotone in the negative entropy)."""
        assert isinstance(distribution, IsotropicNormal)
        return -torch.log(distribution.variance)
