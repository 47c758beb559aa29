"""SoftTriple (Qian et al., ICCV 2019): K centres per class.

S_c = sum_k softmax_k(cos(z, w_ck) / g) cos(z, w_ck),   L = CE(scale (S_c - margin 1[c = y])) + tau R,
R = sum_c sum_{k < l} sqrt(2 - 2 w_ck . w_cl) / (C K (K - 1))
"""

from __future__ import annotations

from pydantic import Field
from torch import nn

from ._base import Method, MethodParams, Paper, register, tuned
from .proxies import SoftTripleLoss


@register
class SoftTriple(Method):
    """SoftTriple as a method: deterministic embeddings, several centres per class."""

    name = "soft_triple"
    summary = "deterministic; softmax over several centres per class"
    paper = Paper(
        title="SoftTriple Loss: Deep Metric Learning Without Triplet Sampling",
        venue="ICCV 2019",
        arxiv="1909.05235",
        equations="Eq. 5-8",
    )

    class Params(MethodParams):
        """Hyper-parameters of SoftTriple, those of :class:`SoftTripleLoss`."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.1, 0.0, 0.5, ge=0, le=2.0)
        centres: int = Field(2, ge=1)
        gamma: float = 0.1
        tau: float = 0.2

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: the centres of the classes and the SoftTriple loss."""
        p = self.params
        return SoftTripleLoss(num_classes, dim, p.scale, p.margin, p.centres, p.gamma, p.tau)
