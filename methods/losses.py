"""Classification objectives on the sphere: normalised softmax with the margins of CosFace and ArcFace."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution


def arcface_cosines(cosine: Tensor, margin: float) -> Tensor:
    """Target cosine with an additive angular margin (ArcFace, Deng et al. 2019, Eq. 3).

    ``cos(theta + m)`` while ``theta + m <= pi``; beyond, where it would rise again, the linear continuation
    ``cos(theta) - m sin(m)`` of the authors' code. Cosines are clamped away from +-1 because the derivative of the
    sine is infinite there.

    Args:
        cosine: Any shape, in [-1, 1] up to rounding.
        margin: Radians, in [0, pi].
    """
    limit = 1e-6 if cosine.dtype == torch.float32 else 1e-12
    c = cosine.clamp(-1.0 + limit, 1.0 - limit)
    shifted = c * math.cos(margin) - (1.0 - c.square()).sqrt() * math.sin(margin)
    return torch.where(c > math.cos(math.pi - margin), shifted, c - margin * math.sin(margin))


class CosineClassifier(nn.Module):
    """Normalised softmax: cross-entropy of ``scale * cos(z, w_c)`` over the training classes.

    Samples ``z`` are drawn from the embedding distribution (for a point, the point itself).

    Args:
        num_classes: C.
        dim: D.
        scale: Inverse temperature s, positive.
    """

    def __init__(self, num_classes: int, dim: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_uniform_(self.weight)

    def cosines(self, z: Tensor) -> Tensor:
        """Cosines ``[B, C]`` between points ``[B, D]`` and class weights."""
        return F.linear(F.normalize(z, dim=-1), F.normalize(self.weight, dim=-1))

    def with_margin(self, target: Tensor) -> Tensor:
        """Margin applied to the target cosines ``[B]``; none here."""
        return target

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float | Tensor]:
        """Cosines ``[B, C]`` of the means without margin, and the scale: what classifier confidences are made of."""
        return self.cosines(distribution.mean), self.scale

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Mean cross-entropy, scalar."""
        cosine = self.cosines(distribution.rsample())
        target = cosine.gather(1, labels[:, None])
        logits = cosine.scatter(1, labels[:, None], self.with_margin(target).to(cosine.dtype))
        return F.cross_entropy(self.scale * logits, labels)


class CosFaceLoss(CosineClassifier):
    """CosFace (Wang et al. 2018, Eq. 4): target logit ``s * (cos(theta_y) - m)``."""

    def __init__(self, num_classes: int, dim: int, scale: float, margin: float) -> None:
        super().__init__(num_classes, dim, scale)
        self.margin = margin

    def with_margin(self, target: Tensor) -> Tensor:
        """Target cosine minus the margin."""
        return target - self.margin


class ArcFaceLoss(CosineClassifier):
    """ArcFace (Deng et al. 2019, Eq. 3): target logit ``s * cos(theta_y + m)``, m in radians."""

    def __init__(self, num_classes: int, dim: int, scale: float, margin: float) -> None:
        super().__init__(num_classes, dim, scale)
        self.margin = margin

    def with_margin(self, target: Tensor) -> Tensor:
        """Target cosine at the angle widened by the margin."""
        return arcface_cosines(target, self.margin)
