"""SoftTriple (Qian et al., ICCV 2019): K centres per class.

S_c = sum_k softmax_k(cos(z, w_ck) / g) cos(z, w_ck),   L = CE(scale (S_c - margin 1[c = y])) + tau R,
R = sum_c sum_{k < l} sqrt(2 - 2 w_ck . w_cl) / (C K (K - 1))
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned


class SoftTripleLoss(nn.Module):
    """SoftTriple loss with its centres ``weight [C, K, D]``."""

    def __init__(
        self, num_classes: int, dim: int, scale: float, margin: float, centres: int, gamma: float, tau: float
    ) -> None:
        super().__init__()
        self.scale, self.margin, self.gamma, self.tau = scale, margin, gamma, tau
        self.weight = nn.Parameter(torch.empty(num_classes, centres, dim))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def assigned(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Soft similarities ``[B, C]`` of points ``[B, D]`` and the shares ``[B, C, K]`` of the centres."""
        classes, centres, dim = self.weight.shape
        flat = F.normalize(self.weight, dim=-1).reshape(-1, dim)
        cosines = (F.normalize(points, dim=-1) @ flat.mT).reshape(-1, classes, centres)
        share = torch.softmax(cosines / self.gamma, dim=-1)
        return (share * cosines).sum(-1), share

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float]:
        """Soft similarities of the means to the classes, and the scale."""
        return self.assigned(distribution.mean)[0], self.scale

    def regulariser(self) -> Tensor:
        """Mean distance between the centres of a class, whose minimum merges centres that are not needed."""
        classes, centres, _ = self.weight.shape
        if centres == 1:
            return self.weight.new_zeros(())
        unit = F.normalize(self.weight, dim=-1)
        upper = torch.triu_indices(centres, centres, 1, device=unit.device)
        inner = (unit @ unit.mT)[:, upper[0], upper[1]]
        # The slope of the root is infinite where two centres have met.
        return (2.0 - 2.0 * inner).clamp_min(1e-10).sqrt().sum() / (classes * centres * (centres - 1))

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch."""
        similarity, _ = self.assigned(distribution.mean)
        logits = similarity - self.margin * F.one_hot(labels, similarity.shape[1])
        return F.cross_entropy(self.scale * logits, labels) + self.tau * self.regulariser()


@register
class SoftTriple(Method):
    """Deterministic embedding, several centres per class."""

    name = "soft_triple"
    summary = "deterministic; softmax over several centres per class"
    paper = Paper(
        title="SoftTriple Loss: Deep Metric Learning Without Triplet Sampling",
        venue="ICCV 2019",
        arxiv="1909.05235",
        equations="Eq. 5-8",
    )

    class Params(MethodParams):
        """Scale, margin, centres per class, inverse sharpness of the assignment and weight of the regulariser."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.1, 0.0, 0.5, ge=0, le=2.0)
        centres: int = 2
        gamma: float = 0.1
        tau: float = 0.2

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Centres and loss."""
        p = self.params
        return SoftTripleLoss(num_classes, dim, p.scale, p.margin, p.centres, p.gamma, p.tau)
