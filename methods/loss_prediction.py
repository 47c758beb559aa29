"""Loss prediction (Yoo and Kweon, CVPR 2019; in the form of the URL benchmark, Kirchhof et al., NeurIPS 2023).

A normalised softmax, and a head on the same features that predicts the loss of each image:

    l(x, y) = -log softmax_y(s cos(z, w_c)),  u(x) = softplus(head(x)) >= 0,
    L = mean of l + prediction_weight * mean of (u - stopgrad(l))^2.

For fixed embeddings the best prediction is the mean loss of the images with these features, u = E[l | x]. The image is
a point; its confidence is -u. With ``predict=order`` the head learns which of two images has the larger loss, not how
large it is (Yoo and Kweon, equation 2; Pretrained Visual Uncertainties, Kirchhof et al. 2024): a hinge

    mean over pairs i < j of max(0, GAP - sign(l_i - l_j) (u_i - u_j))

takes the place of the squared error. It does not depend on the scale of the losses, which falls during training.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import MethodParams, Paper, RatedMethod, register, tuned
from .distributions.normal import RatedPoint
from .heads import SpreadHead
from .losses import CosineClassifier, cross_entropies, softplus

GAP = 0.1
"""Difference of two predictions at which the hinge of their order ends, as in the public code of the 2024 paper."""


class PredictedCrossEntropy(CosineClassifier):
    """Normalised softmax plus a weighted error of predictions of its cross-entropy.

    The target of a prediction is constant: no gradient flows through it.
    """

    def __init__(self, num_classes: int, dim: int, params: LossPrediction.Params) -> None:
        super().__init__(num_classes, dim, params.scale)
        self.prediction_weight = params.prediction_weight
        self.error = F.mse_loss if params.predict == "value" else order_loss

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B points, whose uncertainties are the predictions, with class labels ``[B]``."""
        assert isinstance(distribution, RatedPoint)
        losses = cross_entropies(self.training_logits(distribution, labels), labels)
        return losses.mean() + self.prediction_weight * self.error(distribution.uncertainty, losses.detach())


def order_loss(predicted: Tensor, losses: Tensor) -> Tensor:
    """Mean hinge over all pairs of B images whose predictions ``[B]`` do not order them as their losses ``[B]`` do.

    A pair whose predictions differ by :data:`GAP` or more in the right direction adds 0, a pair of equal losses the
    constant :data:`GAP`. A batch of one image has a loss of 0.

    Example:
        >>> order_loss(torch.tensor([0.0, 0.25, 0.05]), torch.tensor([1.0, 3.0, 2.0])).item()  # (0 + 0.05 + 0) / 3
        0.016666...
    """
    first, second = torch.triu_indices(len(losses), len(losses), 1, device=losses.device)
    if not len(first):
        return predicted.sum() * 0
    sign = torch.sign(losses[first] - losses[second])
    return F.relu(GAP - sign * (predicted[first] - predicted[second])).mean()


class LossHead(SpreadHead):
    """Head from features ``[B, F]`` to raw numbers ``[B, 1]`` that predict losses.

    ``stop_gradient`` keeps the gradient of the prediction from the features, and so from the backbone.
    """

    def __init__(self, in_features: int, *, stop_gradient: bool) -> None:
        super().__init__(in_features)
        self.stop_gradient = stop_gradient

    def forward(self, features: Tensor) -> Tensor:
        """Raw numbers ``[B, 1]`` of features ``[B, F]``."""
        raw: Tensor = super().forward(features.detach() if self.stop_gradient else features)
        return raw


@register
class LossPrediction(RatedMethod):
    """Loss prediction as a method: deterministic embeddings, with a head that predicts the loss of each image.

    The prediction is a confidence only; retrieval compares points.
    """

    name = "loss_prediction"
    summary = "normalised softmax; a head predicts the loss of each image, which is its uncertainty"
    paper = Paper(
        title="URL: A Representation Learning Benchmark for Transferable Uncertainty Estimates",
        venue="NeurIPS 2023",
        arxiv="2307.03810",
        equations="loss of its public code; the idea is Learning Loss for Active Learning, CVPR 2019, 1905.03677;"
        " predict=order: Pretrained Visual Uncertainties, 2402.16569",
    )
    deviations = (
        "squared error of the predicted loss, as in URL (Yoo and Kweon: a ranking of pairs, features of four depths);"
        " predict=order ranks all pairs of a batch (public code: each image and its neighbour in the batch, which in"
        " class-balanced batches are of one class)",
        "the softmax is that of norm_softmax, scaled cosines, so the two differ in the head only (URL: linear logits)",
        "the head has the hidden layers F/2 and F/4 of every method here (URL: three of width 1024), and its last layer"
        " starts small; softplus as in URL, without the 1e-6 that URL adds",
        "the head's gradient reaches the backbone, as in the commands of URL's README; its code stops it by default,"
        " as stop_gradient=true does",
        "prediction_weight=0.04 is URL's for ResNet-50 (0.041; its ViT: 0.011), the range is ours; scale as in"
        " norm_softmax",
    )

    class Params(MethodParams):
        """Hyper-parameters: scale of the softmax, its inverse temperature, weight of the error of the predictions.

        ``stop_gradient`` is that of :class:`LossHead`; ``predict`` is what is predicted, the ``value`` of the loss or
        the ``order`` of images by it.
        """

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        prediction_weight: float = tuned(0.04, 1e-3, 1.0, log=True, gt=0)
        stop_gradient: bool = False
        predict: Literal["value", "order"] = "value"

    def spread_head(self, in_features: int, dim: int) -> nn.Module:
        """Build the head that predicts losses, from features ``[B, in_features]`` to raw numbers ``[B, 1]``."""
        return LossHead(in_features, stop_gradient=self.params.stop_gradient)

    def distribution(self, raw: Tensor, spread: Tensor | None) -> RatedPoint:
        """Points whose uncertainty is the predicted loss, softplus of ``spread [B, 1]``."""
        assert spread is not None
        return RatedPoint(raw, softplus(spread.squeeze(-1)))

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: cross-entropy over the training classes and the error of its predictions."""
        return PredictedCrossEntropy(num_classes, dim, self.params)
