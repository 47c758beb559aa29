"""Normalised softmax (Zhai and Wu, BMVC 2019): cross-entropy of s cos(z, w_c), no margin."""

from __future__ import annotations

from torch import nn

from ._base import Method, MethodParams, Paper, register, tuned
from .losses import CosineClassifier


@register
class NormSoftmax(Method):
    """Normalised softmax as a method: deterministic embeddings trained by a softmax of scaled cosines."""

    name = "norm_softmax"
    summary = "deterministic; softmax of scaled cosines, no margin"
    paper = Paper(
        title="Classification is a Strong Baseline for Deep Metric Learning",
        venue="BMVC 2019",
        arxiv="1811.12649",
        equations="Eq. 3",
    )

    class Params(MethodParams):
        """Hyper-parameter of the normalised softmax: scale s, the inverse temperature."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: cross-entropy over the training classes."""
        return CosineClassifier(num_classes, dim, self.params.scale)
