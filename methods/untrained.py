"""Baseline without metric learning: pooled features of the backbone at its starting weights, reduced to D dimensions.

With the pooled features x_i of the N training images, the rows of W are the D eigenvectors of the second moment

    sum_i x_i x_i^T

with the largest eigenvalues, and z = W x. Of all projections onto D orthonormal directions, this one leaves the
smallest squared error (Eckart and Young 1936): a PCA that is not centred, since cosines are taken from the origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, Paper, register

if TYPE_CHECKING:
    from ._model import EmbeddingModel

_BLOCK_ROWS = 4096
"""Images whose features are in double precision at once: 40 MiB for 1280 features."""


def principal_directions(features: Tensor, dim: int) -> Tensor:
    """Weights ``[D, F]`` that keep as much of the squared norm of features ``[N, F]`` as D orthonormal directions can.

    The rows are eigenvectors of the features' second moment, by descending eigenvalue; the largest entry of each is
    positive. A direction in which the features have nothing, up to rounding, is a row of zeros. With F <= D nothing is
    reduced: the rows are those of the identity, then zeros, so that cosines stay what they are.
    """
    width = features.shape[1]
    if width <= dim:
        return torch.eye(dim, width, device=features.device)
    moment = torch.zeros(width, width, dtype=torch.float64, device=features.device)
    for block in features.split(_BLOCK_ROWS):
        rows = block.double()
        moment += rows.mT @ rows
    values, vectors = torch.linalg.eigh(moment)
    values, rows = values[-dim:].flip(0), vectors[:, -dim:].flip(1).mT
    # An eigenvector is determined up to its sign, and those of the eigenvalue 0 not even up to that.
    signs = rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()
    present = values > values[0] * width * torch.finfo(torch.float64).eps
    weights: Tensor = (rows * signs * present[:, None]).float()
    return weights


class CapturedSquares(nn.Module):
    """Negative mean squared norm of the embeddings: what a projection onto D orthonormal directions makes smallest."""

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of N points; the class labels are not used."""
        return -distribution.mean.square().sum(-1).mean()


@register
class Untrained(Method):
    """Network before metric learning: features at the starting weights, reduced by a PCA that is not centred.

    What a training has to beat. The backbone stays at its starting weights; its pooled features of the training images
    determine the weights of the mean head in one pass, without classes. With random starting weights the row is that of
    a random network, a floor.
    """

    name = "untrained"
    version = 2
    summary = "baseline: the backbone's features at its starting weights, reduced to D dimensions by a PCA"
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
        "one augmented view of each training image, the same for all seeds",
    )
    trains = ("mean",)
    default_confidence = "norm"

    @torch.no_grad()
    def fit(self, model: EmbeddingModel, features: Tensor, labels: Tensor) -> None:
        """Set the weights of the mean head to the principal directions of the training images, and its bias to 0."""
        model.mean.weight.copy_(principal_directions(features, model.mean.out_features))
        model.mean.bias.zero_()

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the module that says how much of the features the embeddings keep; none of the arguments is used."""
        return CapturedSquares()
