"""CosFace: large margin cosine softmax (Wang et al., CVPR 2018).

With unit embeddings z and unit class weights w_c:

    L = -log exp(s (cos theta_y - m)) / [exp(s (cos theta_y - m)) + sum_{c != y} exp(s cos theta_c)]
"""

from __future__ import annotations

from torch import nn

from ._base import Method, MethodParams, Paper, register, tuned
from .losses import CosFaceLoss
from .published import PER


@register
class CosFace(Method):
    """CosFace: deterministic embeddings trained by a softmax with a margin on the target cosine."""

    name = "cosface"
    summary = "deterministic; softmax with an additive cosine margin"
    paper = Paper(
        title="CosFace: Large Margin Cosine Loss for Deep Face Recognition",
        venue="CVPR 2018",
        arxiv="1801.09414",
        equations="Eq. 4",
    )
    deviations = (
        "scale 16, margin 0.2 by default: the paper's 64, 0.35 is for faces and long training; small nets underfit it",
    )
    published = (PER("cosface"),)

    class Params(MethodParams):
        """Hyper-parameters of CosFace: scale s of the cosines and margin m subtracted from the target cosine."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.2, 0.0, 1.0, ge=0, le=2.0)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: CosFace cross-entropy over the training classes."""
        return CosFaceLoss(num_classes, dim, self.params.scale, self.params.margin)
