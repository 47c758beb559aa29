"""Bayesian triplet loss (Warburg, Jorgensen, Civera and Hauberg, ICCV 2021).

An image is N(mu, v I) with a unit vector mu. For an anchor a, a positive p and a negative n of independent normals

    tau = |a - p|^2 - |a - n|^2,
    E tau   = |mu_a - mu_p|^2 - |mu_a - mu_n|^2 + D (v_p - v_n),
    Var tau = 4 v_a |mu_p - mu_n|^2 + 2 D (v_p^2 + v_n^2)
              + 4 v_p (|mu_a - mu_p|^2 + D v_a) + 4 v_n (|mu_a - mu_n|^2 + D v_a),

which is a sum over D dimensions and so nearly normal. With Phi the standard normal distribution function,

    L = -mean over triplets of log Phi((-m - E tau) / sqrt(Var tau)) + kl_weight * mean KL(N(mu, v I) || N(0, I / D)).

A draw from the prior N(0, I / D) has an expected squared norm of 1. Retrieval compares means by cosine.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import kl_divergence

from ._base import MethodParams, Paper, register, tuned
from .distributions.normal import IsotropicNormal
from .heads import SpreadHead, positive_from_raw
from .host_labels import on_host, places, sent
from .learned_spread import SpreadMethod
from .scorers.spec import Matrix


def triplet_moments(distribution: IsotropicNormal, anchor: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of tau, ``[P, B]`` each, of P pairs with every image of a batch of B as the negative.

    ``anchor`` and ``positive`` ``[P]`` are positions in the batch. Both moments are exact if a, p and n are different
    images.
    """
    dim, variance = distribution.dim, distribution.variance
    squared = Matrix.squared_distance(distribution.loc, distribution.loc)
    near, far, across = squared[anchor, positive, None], squared[anchor], squared[positive]
    v_a, v_p, v_n = variance[anchor, None], variance[positive, None], variance[None]
    mean = near - far + dim * (v_p - v_n)
    of_positive = 2.0 * dim * v_p.square() + 4.0 * v_p * (near + dim * v_a)
    of_negative = 2.0 * dim * v_n.square() + 4.0 * v_n * (far + dim * v_a)
    return mean, 4.0 * v_a * across + of_positive + of_negative


class BayesianTripletLoss(nn.Module):
    """Bayesian triplet loss over all triplets of a batch, plus a weighted KL divergence to N(0, I / D).

    ``margin`` is a difference of squared distances.
    """

    def __init__(self, margin: float, kl_weight: float) -> None:
        super().__init__()
        self.margin, self.kl_weight = margin, kl_weight

    def forward(self, distribution: IsotropicNormal, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``, of at least one triplet."""
        known = on_host(labels)
        same = known[:, None] == known[None, :]
        genuine = same & ~torch.eye(len(same), dtype=torch.bool)
        if bool(same.all()) or not bool(genuine.any()):
            raise ValueError("the Bayesian triplet loss needs batches of two classes, one with two images")
        device = distribution.loc.device
        anchor, positive = places(genuine, device)
        mean, variance = triplet_moments(distribution, anchor, positive)
        # In float32, the gradient of log_ndtr is wrong far below zero.
        misses = -torch.special.log_ndtr((-self.margin - mean).double() / variance.double().sqrt())
        negative = sent(~same, device)[anchor]
        triplets = int((genuine.sum(1) * (~same).sum(1)).sum())
        prior = IsotropicNormal(
            torch.zeros_like(distribution.loc),
            torch.full_like(distribution.variance, 1.0 / distribution.dim),
            validate_args=False,
        )
        miss = (misses.masked_fill(~negative, 0.0).sum() / triplets).to(mean.dtype)
        loss: Tensor = miss + self.kl_weight * kl_divergence(distribution, prior).mean()
        return loss


@register
class BayesianTriplet(SpreadMethod):
    """Bayesian triplet loss as a method: isotropic normal embeddings trained by the probability of triplets."""

    name = "bayesian_triplet"
    summary = "normal embedding; probability that a positive is nearer than a negative, end to end, no classifier"
    paper = Paper(
        title="Bayesian Triplet Loss: Uncertainty Quantification in Image Retrieval",
        venue="ICCV 2021",
        arxiv="2011.12663",
        equations="likelihood of a triplet, prior and their bound",
    )
    deviations = (
        "all triplets of a batch count (public implementations: mined hard negatives); with the hardest or the five"
        " hardest negatives of each pair, training from random weights collapses: MAP@R 4 to 6 % on the validation"
        " classes of ndigit, 58 with all",
        "the probability is that of tau < -m, with m = 0 by default (implementations: tau < m, m = 0 by default; on"
        " validation, m = 0.1 and 0.3 have 11 and 7 points of MAP@R less)",
        "the KL is a mean over the images of a batch (implementations: anchor, positive and negative of each triplet);"
        " its weight is theirs, 1e-6 (on validation, 1e-4 and 1e-3 have 7 and 4 points of MAP@R less)",
        "log Phi is exact far below zero (implementations: 1e-8 is added to the probability and to sigma)",
        "the variance starts at the prior's, 1/D; " + SpreadHead.DEVIATION,
        "the implementations are others' of the loss: the authors' code is not public or could not be read",
    )
    repository = ""

    class Params(MethodParams):
        """Hyper-parameters: those of :class:`BayesianTripletLoss`."""

        margin: float = tuned(0.0, 0.0, 0.5, ge=0, le=4)
        kl_weight: float = tuned(1e-6, 1e-8, 1e-2, log=True, ge=0)

    def distribution(self, raw: Tensor, spread: Tensor | None) -> IsotropicNormal:
        """Isotropic normal N(raw/|raw|, v I), with v mapped from ``spread [B, 1]``, 1/D at first as in the prior."""
        assert spread is not None
        variance = positive_from_raw(spread.squeeze(-1)) / raw.shape[-1]
        return IsotropicNormal(F.normalize(raw, dim=-1), variance, validate_args=False)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module, which has no trained parameters."""
        return BayesianTripletLoss(self.params.margin, self.params.kl_weight)
