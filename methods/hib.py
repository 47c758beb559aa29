"""HIB: hedged instance embeddings (Oh et al., ICLR 2019).

An image is N(mu, s2 I), mu not normalised. Two images match with probability

    p(match) = E sigmoid(-a |z_1 - z_2| + b),  z_i ~ N(mu_i, s2_i I),  a > 0 and b trained,

    L = -mean over genuine pairs of log p - mean over impostor pairs of log (1 - p), or over all pairs together,
        + kl_weight * KL(N(mu, s2 I) || N(0, I)).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from .distributions.normal import IsotropicNormal, kl_to_standard_normal
from .heads import SpreadHead, positive_from_raw
from .learned_spread import RELEASED_SPREAD, spread_confidence
from .published import PER

if TYPE_CHECKING:
    from ._model import EmbeddingModel


class MatchLoss(nn.Module):
    """Soft contrastive loss with K x K draws per pair.

    Args:
        kl_weight: Weight of the KL to the prior.
        samples: K.
        pairs: ``all`` averages over all pairs of the batch, ``balanced`` gives genuine and impostor pairs half each.
        with_self: Whether an image is a genuine pair with itself.
    """

    learning_rates = {"log_scale": ("lr_objective", 0.2), "bias": ("lr_objective", 0.2)}  # noqa: RUF012

    def __init__(self, kl_weight: float, samples: int, pairs: str, with_self: bool) -> None:
        super().__init__()
        self.kl_weight, self.samples, self.pairs, self.with_self = kl_weight, samples, pairs, with_self
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.zeros(()))

    def scorer_options(self) -> dict[str, float]:
        """Trained scale and bias of the match probability."""
        return {"scale": float(self.log_scale.detach().exp()), "bias": float(self.bias.detach())}

    def forward(self, distribution: IsotropicNormal, labels: Tensor) -> Tensor:
        """Scalar loss of a batch."""
        count, k = len(labels), self.samples
        draws = distribution.rsample((k,)).transpose(0, 1).reshape(count * k, -1)
        # cdist has a zero, not an infinite, gradient at distance zero.
        distance = torch.cdist(draws, draws, compute_mode="donot_use_mm_for_euclid_dist")
        logits = (self.bias - self.log_scale.exp() * distance).reshape(count, k, count, k)
        log_match = torch.logsumexp(F.logsigmoid(logits), (1, 3)) - 2 * math.log(k)
        log_other = torch.logsumexp(F.logsigmoid(-logits), (1, 3)) - 2 * math.log(k)
        genuine = labels[:, None] == labels[None, :]
        counted = torch.ones_like(genuine)
        if not self.with_self:
            counted.fill_diagonal_(False)
        positive, negative = -log_match[genuine & counted], -log_other[~genuine]
        if self.pairs == "balanced":
            parts = [x.mean() for x in (positive, negative) if len(x)]
            loss = torch.stack(parts).sum() * 0.5
        else:
            loss = torch.cat([positive, negative]).mean()
        return loss + self.kl_weight * kl_to_standard_normal(distribution).mean()


def _from_per(values: Mapping[str, float], fields: Collection[str], variant: str) -> dict[str, Any]:
    """Parameters from PER's weight of the KL and the balanced pairs that go with it."""
    return {"kl_weight": values["prior_kld_weight"], "pairs": "balanced"}


@register
class HIB(Method):
    """Normal embedding trained on matching pairs, without a classifier."""

    name = "hib"
    summary = "normal embedding; match probability of pairs by sampling, end to end, no classifier"
    paper = Paper(
        title="Modeling Uncertainty with Hedged Instance Embedding",
        venue="ICLR 2019",
        arxiv="1810.00319",
        equations="Eq. 2-7",
    )
    deviations = (
        "one variance per image, as in PER (the paper: one per dimension or a mixture)",
        "pairs=all: the mean over all pairs of the batch was far better on ndigit than PER's balanced halves",
        "retrieval scores the match probability by quadrature, without sampling noise",
        "variance starts at exp(-5) with unit-variance embeddings, a at 1/mean|mu_i| as in PER",
        SpreadHead.DEVIATION,
    )
    scorer = "match"
    default_confidence = "method"
    warm_start = True
    published = (PER("hib", _from_per),)
    fidelities = ("corrected", "released")
    released_behaviour = (
        "pairs of an image with itself count as genuine",
        "the head is linear, and the variance starts at 1",
    )

    class Params(MethodParams):
        """Weight of the KL, draws per image, which mean over pairs."""

        kl_weight: float = tuned(1e-4, 1e-8, 1e-2, log=True, ge=0)
        samples: int = 8
        pairs: Literal["all", "balanced"] = "all"

    def spread_head(self, in_features: int, dim: int) -> nn.Module:
        """Variance head, one number per image."""
        return SpreadHead(in_features, linear=self.released)

    def distribution(self, raw: Tensor, spread: Tensor | None) -> IsotropicNormal:
        """N(raw, s2 I)."""
        assert spread is not None
        phi = positive_from_raw(spread.squeeze(-1))
        variance = phi + RELEASED_SPREAD if self.released else math.exp(-5.0) * phi
        return IsotropicNormal(raw, variance, validate_args=False)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Soft contrastive loss."""
        p = self.params
        return MatchLoss(p.kl_weight, p.samples, p.pairs, self.released)

    def initialise(self, model: EmbeddingModel, raw: Tensor, labels: Tensor) -> None:
        """Scale embeddings to unit variance per dimension, and set a to one over their mean coordinate."""
        objective = model.objective
        assert isinstance(objective, MatchLoss)
        with torch.no_grad():
            if not self.released:
                model.mean.weight.div_(raw.std())
                raw = raw / raw.std()
            objective.log_scale.copy_(-raw.abs().mean().log())

    def confidence(self, distribution: Distribution) -> Tensor:
        """Negative log variance."""
        return spread_confidence(distribution)
