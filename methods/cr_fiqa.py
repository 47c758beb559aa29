"""CR-FIQA: a head predicts how much closer an image is to its class than to the nearest other (Boutros et al. 2023).

ArcFace, and a head that predicts the certainty ratio of the training images from their features:

    CR(x, y) = cos(z, w_y) / (max_{c != y} cos(z, w_c) + 1 + 1e-9),
    L = L_ArcFace + prediction_weight * mean of S(head(x) - stopgrad(CR)),
    S(e) = e^2 / (2 b) for |e| < b, else |e| - b / 2,   b = 0.5

The image is a point; its confidence is the predicted ratio.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import MethodParams, Paper, RatedMethod, register, tuned
from .distributions.normal import RatedPoint
from .heads import SpreadHead
from .losses import ArcFaceLoss

BETA = 0.5
"""Error at which the smooth L1 loss turns from a parabola to a line, in the authors' code."""


def certainty_ratios(cosines: Tensor, labels: Tensor) -> Tensor:
    """Certainty ratios ``[B]`` of images of classes ``[B]`` from their cosines ``[B, C]`` to the class weights.

    Example:
        >>> certainty_ratios(torch.tensor([[0.9, 0.2, -0.1], [0.9, 0.2, -0.1]]), torch.tensor([0, 2]))
        tensor([ 0.7500, -0.0526])
    """
    own = cosines.gather(1, labels[:, None])
    other = cosines.scatter(1, labels[:, None], -1.0).amax(1)
    return own.squeeze(1) / ((1 + other).clamp_min(0) + 1e-9)


class CertaintyRatioLoss(ArcFaceLoss):
    """ArcFace plus a weighted error of predictions of the certainty ratio, through which no gradient flows."""

    def __init__(self, num_classes: int, dim: int, scale: float, margin: float, prediction_weight: float) -> None:
        super().__init__(num_classes, dim, scale, margin)
        self.prediction_weight = prediction_weight

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B points, whose uncertainties are negative predictions, with labels ``[B]``."""
        assert isinstance(distribution, RatedPoint)
        with torch.no_grad():
            ratios = certainty_ratios(self.cosines(distribution.mean), labels)
        error = F.smooth_l1_loss(-distribution.uncertainty, ratios, beta=BETA)
        return super().forward(distribution, labels) + self.prediction_weight * error


@register
class CRFIQA(RatedMethod):
    """CR-FIQA: deterministic embeddings by ArcFace, with a head that predicts the certainty ratio of each image.

    The prediction is a confidence only; retrieval compares points.
    """

    name = "cr_fiqa"
    summary = "ArcFace; a head predicts the ratio of own-class to nearest other cosine, which is its confidence"
    paper = Paper(
        title="CR-FIQA: Face Image Quality Assessment by Learning Sample Relative Classifiability",
        venue="CVPR 2023",
        arxiv="2112.06592",
        equations="CCS, NNCCS, CR and the joint loss",
    )
    deviations = (
        "the head has the hidden layers F/2 and F/4 of every method here and is on pooled features (the paper: one"
        " neuron on the embedding); as in the paper, its gradient reaches the backbone",
        "scale 16, margin 0.2 by default, as in arcface (the paper: 64, 0.5, which gave a validation MAP@R of 39 on"
        " ndigit, these 84); prediction_weight 10 is the paper's",
        "the ratio is the paper's; the authors' code divides by the nearest other cosine alone, which may be 0",
        "beyond theta + m = pi the target logit continues linearly, as in arcface",
    )

    class Params(MethodParams):
        """Hyper-parameters of CR-FIQA: scale s and margin m of ArcFace, and the weight of the predictions' error."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.2, 0.0, 1.0, ge=0, le=1.57)
        prediction_weight: float = tuned(10.0, 0.1, 100.0, log=True, ge=0)

    def spread_head(self, in_features: int, dim: int) -> nn.Module:
        """Build the head that predicts ratios, from features ``[B, in_features]`` to numbers ``[B, 1]``."""
        return SpreadHead(in_features)

    def distribution(self, raw: Tensor, spread: Tensor | None) -> RatedPoint:
        """Points whose uncertainty is the negative predicted ratio, ``-spread [B, 1]``."""
        assert spread is not None
        return RatedPoint(raw, -spread.squeeze(-1))

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: ArcFace over the training classes and the error of its predictions."""
        params = self.params
        return CertaintyRatioLoss(num_classes, dim, params.scale, params.margin, params.prediction_weight)
