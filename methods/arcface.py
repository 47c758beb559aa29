"""ArcFace: additive angular margin softmax (Deng et al., CVPR 2019).

With unit embeddings z and unit class weights w_c, theta_c the angle between them:

    L = -log exp(s cos(theta_y + m)) / [exp(s cos(theta_y + m)) + sum_{c != y} exp(s cos theta_c)]
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from ._base import Method, MethodParams, Paper, register, tuned
from .losses import ArcFaceLoss
from .published import PER


@register
class ArcFace(Method):
    """ArcFace: deterministic embeddings trained by a softmax with an additive angular margin.

    The parameter ``form`` chooses: ``corrected`` follows the paper (Deng et al. 2019),
    ``released`` the public code of Probabilistic Embeddings Revisited.
    """

    name = "arcface"
    summary = "deterministic; softmax with an additive angular margin"
    paper = Paper(
        title="ArcFace: Additive Angular Margin Loss for Deep Face Recognition",
        venue="CVPR 2019",
        arxiv="1801.07698",
        equations="Eq. 3",
    )
    deviations = (
        "scale 16, margin 0.2 by default: the paper's 64, 0.5 is for faces and long training; small nets underfit it",
        "beyond theta + m = pi the target logit continues linearly (the authors' code; the paper is silent)",
    )
    published = (PER("arcface"),)
    repository = "per"
    released_behaviour = (f"{ArcFaceLoss.RELEASED} (the authors' code: its linear continuation)",)

    class Params(MethodParams):
        """Hyper-parameters of ArcFace: scale s of the cosines and angular margin m in radians."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.2, 0.0, 1.0, ge=0, le=1.57)
        form: Literal["corrected", "released"] = "corrected"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: ArcFace cross-entropy over the training classes."""
        return ArcFaceLoss(num_classes, dim, self.params.scale, self.params.margin, self.released)
