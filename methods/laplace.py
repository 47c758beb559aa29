"""LAM: Laplace approximation of the mean head's weights at a trained base (Warburg et al., NeurIPS 2023), post-hoc.

The mean head z = W x + b of a trained network gets a normal posterior around its weights. With u = z / |z|, the loss is

    L = sum_i [ mean_p 1/2 |u_i - u_p|^2  -  mean_n 1/2 |u_i - u_n|^2 ]

over the images p of the class of i and the images n of other classes within a margin. Its Hessian in each weight, with
the other image of every pair held fixed ("fixed" in the paper), gives the precision of the posterior: H + prior. The
head is linear, so that the variance of z is exact: var z_d = sum_f x_f^2 / (H_df + prior).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from ._model import variance_confidence
from .distributions.arrays import rows_of
from .distributions.normal import LOG_2PI, DiagonalNormal
from .genuine_pairs import genuine_pairs

if TYPE_CHECKING:
    from ._model import EmbeddingModel

_BLOCK_ELEMENTS = 1 << 22
"""Pairs of a block: 16 MiB in float32."""


def pair_sums(directions: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Sums M_i ``[N, D]`` of the images that each image is paired with, weighted by the loss.

    The weight of the pair (i, j) is 1/P_i + 1/P_j for images of one class, which have P_i and P_j such partners, and
    -1/Q_i - 1/Q_j for images of different classes at a distance below the margin, of which they have Q_i and Q_j.
    """
    rows = max(1, _BLOCK_ELEMENTS // len(labels))
    places = torch.arange(len(labels), device=labels.device)
    blocks = places.split(rows)

    def masks(block: Tensor) -> tuple[Tensor, Tensor]:
        same = labels[block, None] == labels
        near = directions[block] @ directions.mT > 1.0 - margin**2 / 2.0
        return same & (places != block[:, None]), near & ~same

    counts = [tuple(mask.sum(1) for mask in masks(block)) for block in blocks]
    # An image without a partner has no pair that its weight could apply to.
    genuine, impostor = (torch.cat(count).clamp_min(1).to(directions).reciprocal() for count in zip(*counts))
    sums = []
    for block in blocks:
        same, near = masks(block)
        weights = same * (genuine[block, None] + genuine) - near * (impostor[block, None] + impostor)
        sums.append(weights @ directions)
    return torch.cat(sums)


def fixed_hessian(raw: Tensor, features: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Diagonal of the Hessian of the loss in the weights and biases of the mean head, ``[D, F + 1]``, biases last.

    In each pair the other image is held fixed. Entries may be negative. ``raw`` ``[N, D]`` are the outputs of the head
    for ``features`` ``[N, F]``; the margin is a Euclidean distance of directions.
    """
    u = F.normalize(raw, dim=-1)
    sums = pair_sums(u, labels, margin)
    # Second derivative of -cos(z, w) in z_d, summed over the partners w of an image.
    curvature = (u * sums).sum(-1, keepdim=True) * (1.0 - 3.0 * u.square()) + 2.0 * u * sums
    curvature = curvature / _squared_norm(raw)
    return curvature.mT @ F.pad(features.square(), (0, 1), value=1.0)


def variance_on_sphere(raw: Tensor, variance: Tensor) -> Tensor:
    """Variance ``[B, D]`` of z / |z| to first order, for z with mean ``raw`` and independent variances ``[B, D]``.

    It is the diagonal of P diag(v) P / |z|^2 with the projection P = I - u u^T to the tangent space.
    """
    squared = F.normalize(raw, dim=-1).square()
    along = (squared * variance).sum(-1, keepdim=True)
    # (1 - u^2)^2 v + u^2 (sum of the other u^2 v): a sum of terms that are not negative.
    others = (along - squared * variance).clamp_min(0.0)
    return ((1.0 - squared).square() * variance + squared * others) / _squared_norm(raw)


def _squared_norm(raw: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(raw, dim=-1, keepdim=True)
    return norm.clamp_min(1e-12).square()


class WeightPosterior(nn.Module):
    """Variances ``[B, D]`` of the outputs of a linear layer whose weights and biases are independent normals.

    Until it is fitted, the weights have the prior's precision, the same for all. The attribute ``hessian`` ``[D, F +
    1]``, biases last, is not negative.
    """

    hessian: Tensor

    def __init__(self, in_features: int, dim: int, prior: float) -> None:
        super().__init__()
        self.prior = prior
        self.register_buffer("hessian", torch.zeros(dim, in_features + 1))

    def forward(self, features: Tensor) -> Tensor:
        """Variances ``[B, D]`` for inputs ``[B, F]``: sum_f x_f^2 / (H_df + prior), plus that of the bias."""
        variance = 1.0 / (self.hessian + self.prior)
        return F.linear(features.square(), variance[:, :-1], variance[:, -1])


class RelativeLikelihood(nn.Module):
    """Negative mean mutual likelihood score of genuine pairs, at the factor of all variances that makes it smallest.

    Settings are compared by it. The variances of weights leave out what differs between the images of a class. Without
    the factor, the prior would be chosen to make up for that, so wide that the Hessian no longer matters.
    """

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of N diagonal normals with class labels ``[N]``, at least two of them of one class."""
        dim = distribution.event_shape[0]
        ratio = log_variance = distribution.mean.new_zeros((), dtype=torch.float64)
        count = 0
        for left, right in genuine_pairs(labels, _BLOCK_ELEMENTS // dim):
            a, b = rows_of(distribution, left), rows_of(distribution, right)
            variance = a.variance.double() + b.variance.double()
            ratio = ratio + ((a.mean - b.mean).double().square() / variance).sum()
            log_variance = log_variance + variance.log().sum()
            count += variance.numel()
        if not count:
            raise ValueError("a Laplace approximation is judged by classes with at least two images")
        factor = (ratio / count).clamp_min(torch.finfo(torch.float64).tiny)
        loss = 0.5 * dim * (log_variance / count + factor.log() + 1.0 + LOG_2PI)
        return loss.to(distribution.mean.dtype)


@register
class Laplace(Method):
    """LAM (Laplacian metric learner), post-hoc: a normal posterior of the mean head's weights at a trained base model.

    The means are those of the base. Nothing is trained by steps: the posterior is fitted in one pass over the training
    images.
    """

    name = "laplace"
    summary = "normal embedding; Laplace approximation of the mean head's weights on a frozen base, in one pass"
    paper = Paper(
        title="Bayesian Metric Learning for Uncertainty Quantification in Image Retrieval",
        venue="NeurIPS 2023",
        arxiv="2302.01332",
        equations="post-hoc, arccos loss, fixed approximation",
    )
    deviations = (
        "all pairs of the training images, each image with weight 1 (LAM's code: some mined triplets of every batch)",
        "the variance of raw embeddings is exact, that of their directions of first order (LAM's code: 100 draws)",
        "the embedding's mean is the base's (LAM's code: the mean over the draws)",
        "the prior precision is tuned by the mutual likelihood of validation pairs, up to a common factor"
        " (LAM's code: one step of Adam on the marginal likelihood)",
        "the base is the recipe's, any trained mean head (LAM: trained by the contrastive loss)",
        "the confidence is the negative log of the mean variance (LAM ranks by the sum of standard deviations)",
    )
    on_base = True
    trains = ("spread",)

    class Params(MethodParams):
        """Hyper-parameters: precision of the normal prior of each weight, and the margin of :func:`pair_sums`."""

        prior_precision: float = tuned(1.0, 1e-3, 1e4, log=True, gt=0)
        margin: float = Field(1.0, gt=0, le=2)

    def spread_head(self, in_features: int, dim: int) -> nn.Module:
        """Build the module of the weights' posterior, from features ``[B, in_features]`` to variances ``[B, dim]``."""
        return WeightPosterior(in_features, dim, self.params.prior_precision)

    def fit(self, model: EmbeddingModel, features: Tensor, labels: Tensor) -> None:
        """Compute the Hessian of the loss at the base's weights; negative entries become 0."""
        assert isinstance(model.spread, WeightPosterior)
        hessian = fixed_hessian(model.mean(features), features, labels, self.params.margin)
        model.spread.hessian.copy_(hessian.clamp_min(0.0))

    def distribution(self, raw: Tensor, spread: Tensor | None) -> DiagonalNormal:
        """Normal around the direction of the raw embedding, with the variances of that direction to first order."""
        assert spread is not None
        # A network that is exported cannot look at its values.
        if not torch.compiler.is_compiling() and not bool((spread > 0).all()):
            raise ValueError("variances of the mean head's outputs must be positive")
        variance = variance_on_sphere(raw, spread).clamp_min(torch.finfo(spread.dtype).tiny)
        return DiagonalNormal(F.normalize(raw, dim=-1), variance, validate_args=False)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the module by which settings are compared: the mutual likelihood of genuine pairs, up to a factor."""
        return RelativeLikelihood()

    def confidence(self, distribution: Distribution) -> Tensor:
        """Confidence ``[B]`` of the embeddings: negative log of the mean variance over the dimensions."""
        return variance_confidence(distribution.variance)
