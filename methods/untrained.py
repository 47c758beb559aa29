"""Baseline without metric learning: pooled features of the backbone at its starting weights, reduced to D dimensions.

With the pooled features x_i of the N training images, let v_k be the D eigenvectors of the second moment

    sum_i x_i x_i^T

with the largest eigenvalues l_1 >= .. >= l_D (:mod:`bench.methods.principal`). The rows of W are

    (l_k / l_1)^(-w/2) v_k

and z = W x. With the whitening w = 0 this is a PCA that is not centred, with w = 1 all D coordinates have the same mean
square: whitened as by Jegou and Chum (2012), who centre, too. In between, directions in which all images are alike
count less without those that are mostly noise counting as much as the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from .principal import principal_directions

if TYPE_CHECKING:
    from ._model import EmbeddingModel


class CapturedSquares(nn.Module):
    """Negative mean squared norm of the embeddings: what a projection onto D orthonormal directions makes smallest."""

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of N points; the class labels are not used."""
        return -distribution.mean.square().sum(-1).mean()


@register
class Untrained(Method):
    """Untrained network: features at the starting weights, reduced by a PCA and whitened in part.

    What a training has to beat: heads on frozen features are always compared with it. The backbone stays at its
    starting weights; its pooled features of the training images determine the weights of the mean head in one pass,
    without classes. With random starting weights the row is that of a random network, a floor.
    """

    name = "untrained"
    version = 2
    summary = "baseline: the backbone's features at its starting weights, reduced to D dimensions by a PCA, whitened"
    paper = Paper(
        title="A Metric Learning Reality Check",
        venue="ECCV 2020",
        arxiv="2003.08505",
        equations="baseline Pretrained",
    )
    deviations = (
        "features are always reduced to the embedding size that the other methods have (public code: the output of the"
        " untrained trunk, reduced if an option says so)",
        "the PCA is fitted to the training images (public code: to the evaluated images themselves)",
        "the PCA is neither centred nor standardised (public code: both), so that cosines are those of the features as"
        " far as D dimensions can keep them; chosen on the validation classes of Grocery Store, EfficientNet-Lite0 at"
        " 128 px, D = 128: MAP@R 30.1, centred 29.8, standardised 29.5, without reduction 31.6",
        "whitening is tuned from none (w = 0) to whole (w = 1; Jegou and Chum 2012, after centring); the default of 0.5"
        " was chosen on validation classes of Grocery Store and Cars196, where w = 0 has 0.8 and 1.2 points of MAP@R"
        " less, and centring changes nothing at the best w",
        "one augmented view of each training image, the same for all seeds",
    )
    trains = ("mean",)
    default_confidence = "norm"
    reference_for_frozen = True

    class Params(MethodParams):
        """Hyper-parameters; whitening as exponent w, 0 = none, 1 = all D coordinates have the same mean square."""

        whitening: float = tuned(0.5, 0.0, 1.0, ge=0.0, le=1.0)

    @torch.no_grad()
    def fit(self, model: EmbeddingModel, features: Tensor, labels: Tensor) -> None:
        """Set the weights of the mean head to the principal directions of the training images, and its bias to 0."""
        whitening = self.params.whitening
        model.mean.weight.copy_(principal_directions(features, model.mean.out_features, whitening))
        model.mean.bias.zero_()

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the module that says how much of the features the embeddings keep; none of the arguments is used."""
        return CapturedSquares()
