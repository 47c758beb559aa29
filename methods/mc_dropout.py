"""MC dropout: dropout before the mean head in training and at test time (Gal and Ghahramani, ICML 2016).

With weights W, bias b and rate p of dropout, pass s of an image with pooled features x is

    u_s = z_s / |z_s|,   z_s = W (m_s * x) / (1 - p) + b,   m_s in {0, 1}^F with P(m = 1) = 1 - p

and the embedding is the normal with the mean direction of the S passes and their variance in each dimension. The sum of
these variances is half of the mean squared distance of two passes, so the confidence is that of SER-FIQ (Terhoerst et
al., CVPR 2020, arXiv:2003.09373: a sigmoid of the mean distance) but for the square.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from ._model import variance_confidence
from .distributions.normal import DiagonalNormal, PointMass
from .heads import MeanHead
from .losses import CosineClassifier

if TYPE_CHECKING:
    from ._model import EmbeddingModel

_SEED = 2016
"""Seed of the masks at test time."""


# Kept, so that a network that is exported has these masks as constants and not the call that drew them.
@lru_cache(maxsize=4)
def dropout_masks(passes: int, features: int, rate: float) -> Tensor:
    """Masks ``[S, F]`` of dropout on the CPU, 0 or 1 / (1 - rate), the same in every call; the rate is in [0, 1)."""
    drawn = torch.rand(passes, features, generator=torch.Generator().manual_seed(_SEED))
    return (drawn >= rate).float() / (1.0 - rate)


def moments_over_masks(head: MeanHead, features: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance ``[B, D]`` of the normalised outputs of a linear head over masks of its inputs.

    Every image ``[B, F]`` gets the same masks ``[S, F]``, S >= 2.
    """
    # A mask of the features is one of the weights' columns.
    passes = [F.linear(features, head.weight * mask, head.bias) for mask in masks.to(features)]
    directions = F.normalize(torch.stack(passes), dim=-1)
    variance, mean = torch.var_mean(directions, dim=0)
    return mean, variance


@register
class MCDropout(Method):
    """MC dropout: normalised softmax with dropout before the mean head, which stays on at test time."""

    name = "mc_dropout"
    summary = "normal embedding; mean direction and variance over passes with dropout at test time"
    paper = Paper(
        title="Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning",
        venue="ICML 2016",
        arxiv="1506.02142",
        equations="Eq. 6-9",
    )
    deviations = (
        "dropout before the last linear layer only, as in LAM (Warburg et al. 2023; the paper: before every layer)",
        "the loss is the normalised softmax, so that without dropout it is norm_softmax (LAM: the contrastive loss)",
        "all images share the masks at test time, as if embedded by the same S networks (LAM's code: masks per image)",
        "no noise variance is added (the paper's 1/tau): it is the same for all images",
        "the rate is tuned from 0.1 (LAM's code: 0.05)",
    )

    class Params(MethodParams):
        """Hyper-parameters: scale s of the softmax, probability that a feature is dropped, and passes at test time."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        rate: float = tuned(0.1, 0.01, 0.5, log=True, ge=0, lt=1)
        passes: int = Field(100, ge=2)

    def heads(self, model: EmbeddingModel, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Apply the mean head with dropout; at test time, also take the moments over S passes.

        Raw embeddings ``[B, D]`` are in training those of one pass with random masks, else those without dropout. With
        them comes None in training, else mean and variance of the normalised outputs of S passes side by side, ``[B, 2
        D]``.
        """
        rate = self.params.rate
        if model.training:
            return model.mean(F.dropout(features, rate)), None
        masks = dropout_masks(self.params.passes, features.shape[-1], rate)
        return model.mean(features), torch.cat(moments_over_masks(model.mean, features, masks), -1)

    def distribution(self, raw: Tensor, spread: Tensor | None) -> Distribution:
        """Distribution of the embedding: a point in training, else a normal with the moments of the passes."""
        if spread is None:
            return PointMass(raw)
        mean, variance = spread.chunk(2, dim=-1)
        # Passes that agree up to rounding have no variance that could be measured.
        floor = torch.finfo(variance.dtype).eps ** 2
        return DiagonalNormal(F.normalize(mean, dim=-1), variance.clamp_min(floor), validate_args=False)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: cross-entropy over the training classes."""
        return CosineClassifier(num_classes, dim, self.params.scale)

    def confidence(self, distribution: Distribution) -> Tensor | None:
        """Confidence ``[B]`` of the embeddings: negative log of the mean variance; None for the points of training."""
        return variance_confidence(distribution.variance) if isinstance(distribution, DiagonalNormal) else None
