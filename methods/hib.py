"""HIB: hedged instance embeddings (Oh et al., ICLR 2019).

An image is N(mu, s2 I), mu not normalised. Two images match with probability

    p(match) = E sigmoid(-a |z_1 - z_2| + b),  z_i ~ N(mu_i, s2_i I),  a > 0 and b trained,

    L = -mean over genuine pairs of log p - mean over impostor pairs of log (1 - p), or over all pairs together,
        + kl_weight * KL(N(mu, s2 I) || N(0, I)).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._base import MethodParams, Paper, register, tuned
from .distributions.normal import IsotropicNormal, kl_to_standard_normal
from .heads import SpreadHead, positive_from_raw
from .host_labels import on_host, places, sent
from .learned_spread import RELEASED_HEAD, RELEASED_SPREAD, SpreadMethod
from .published import PER

if TYPE_CHECKING:
    from ._model import EmbeddingModel


class MatchLoss(nn.Module):
    """Loss of HIB (hedged instance embedding): soft contrastive loss over the pairs of a batch, plus a weighted KL.

    The match probability of a pair is the mean of sigmoid(-a |z_1 - z_2| + b) over the K x K combinations of its draws,
    with trained a and b; the KL is to N(0, I). ``all`` averages over all pairs; ``balanced`` gives genuine and impostor
    pairs (of the same and of different classes) half the weight each.
    """

    learning_rates: ClassVar[dict[str, tuple[str, float]]] = {
        "log_scale": ("lr_objective", 0.2),
        "bias": ("lr_objective", 0.2),
    }

    def __init__(self, kl_weight: float, samples: int, pairs: str) -> None:
        super().__init__()
        self.kl_weight, self.samples, self.pairs = kl_weight, samples, pairs
        self._make_scale()
        self.bias = nn.Parameter(torch.zeros(()))

    def _make_scale(self) -> None:
        self.log_scale = nn.Parameter(torch.zeros(()))

    def scale(self) -> Tensor:
        """Slope a of the match probability sigmoid(-a distance + b) of two draws, a scalar."""
        return self.log_scale.exp()

    @torch.no_grad()
    def start(self, size: Tensor) -> None:
        """Set the initial slope a to 1 / ``size``, the mean absolute coordinate of the embeddings at the start."""
        self.log_scale.copy_(-size.log())

    def scorer_options(self) -> dict[str, float]:
        """Trained ``scale`` a and ``bias`` b of the match probability sigmoid(-a distance + b), by these names."""
        return {"scale": float(self.scale().detach()), "bias": float(self.bias.detach())}

    def _logits(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Logits ``[B, K, B, K]`` of all pairs of draws, each ``[K, B, D]``."""
        k, count, dim = rows.shape
        left, right = (draws.transpose(0, 1).reshape(count * k, dim) for draws in (rows, columns))
        # cdist has a zero, not an infinite, gradient at distance zero.
        distance = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
        return (self.bias - self.scale() * distance).reshape(count, k, count, k)

    def pair_losses(self, distribution: IsotropicNormal, genuine: Tensor) -> tuple[Tensor, Tensor]:
        """Losses of the genuine and of the impostor pairs of a batch, two vectors; an image is no pair with itself.

        The mask ``genuine [B, B]`` is on the CPU.
        """
        draws = distribution.rsample((self.samples,))
        logits = self._logits(draws, draws)
        log_match = torch.logsumexp(F.logsigmoid(logits), (1, 3)) - 2 * math.log(self.samples)
        log_other = torch.logsumexp(F.logsigmoid(-logits), (1, 3)) - 2 * math.log(self.samples)
        others = ~torch.eye(len(genuine), dtype=torch.bool)
        return -log_match[places(genuine & others, draws.device)], -log_other[places(~genuine, draws.device)]

    def forward(self, distribution: IsotropicNormal, labels: Tensor) -> Tensor:
        """Scalar loss of B embeddings with class labels ``[B]``: mean loss of the pairs plus the weighted KL."""
        known = on_host(labels)
        positive, negative = self.pair_losses(distribution, known[:, None] == known[None, :])
        if self.pairs == "balanced":
            parts = [x.mean() for x in (positive, negative) if len(x)]
            loss = torch.stack(parts).sum() * 0.5
        else:
            loss = torch.cat([positive, negative]).mean()
        return loss + self.kl_weight * kl_to_standard_normal(distribution).mean()


class ReleasedMatchLoss(MatchLoss):
    """Soft contrastive loss of HIB as the public code of Probabilistic Embeddings Revisited computes it.

    It differs from :class:`MatchLoss` as follows. In the match probability p = sigmoid(-a distance + b) the slope a is
    a free number of either sign. Pairs of an image with itself count. In the ``[B, B]`` matrix of pairs, rows and
    columns use separate draws of the images. The cross-entropy is computed from probabilities with torch's clamps: the
    logarithm stops at -100, and the gradient divides by max(p (1 - p), 1e-12), so that it vanishes for pairs with p (1
    - p) far below 1e-12. The parameters a and b have the learning rate and weight decay of all parameters of the loss.
    """

    learning_rates: ClassVar[dict[str, tuple[str, float]]] = {}

    def _make_scale(self) -> None:
        self.raw_scale = nn.Parameter(torch.ones(()))

    def scale(self) -> Tensor:
        """Slope a of the match probability sigmoid(-a distance + b) of two draws, a scalar of either sign."""
        return self.raw_scale

    @torch.no_grad()
    def start(self, size: Tensor) -> None:
        """Set the initial slope a to 1 / ``size``, the mean absolute coordinate of the embeddings at the start."""
        self.raw_scale.copy_(size.reciprocal())

    def match(self, distribution: IsotropicNormal) -> Tensor:
        """Match probabilities ``[B, B]`` of all pairs of a batch, each a mean over K x K combinations of draws."""
        columns = distribution.rsample((self.samples,))
        rows = distribution.rsample((self.samples,))
        return torch.sigmoid(self._logits(rows, columns)).mean((1, 3))

    def pair_losses(self, distribution: IsotropicNormal, genuine: Tensor) -> tuple[Tensor, Tensor]:
        """Losses of the genuine and of the impostor pairs, two vectors; pairs of an image with itself count."""
        match = self.match(distribution)
        losses = F.binary_cross_entropy(match, sent(genuine.to(match.dtype), match.device), reduction="none")
        return losses[places(genuine, match.device)], losses[places(~genuine, match.device)]


@register
class HIB(SpreadMethod):
    """HIB (hedged instance embedding): isotropic normal embedding trained by the match probability of pairs.

    It has no classifier. The parameter ``form`` chooses: ``corrected`` follows the paper (Oh et al. 2019), ``released``
    the public code of Probabilistic Embeddings Revisited.
    """

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
        "retrieval scores the match probability by quadrature, without noise (sampled_match: PER's 8 x 8 draws)",
        "variance starts at exp(-5) with unit-variance embeddings, a at 1/mean|mu_i| as in PER",
        SpreadHead.DEVIATION,
    )
    scorer = "match"
    # The balanced pairs go with PER's weight of the KL.
    published = (PER("hib", lambda values: {"kl_weight": values["prior_kld_weight"], "pairs": "balanced"}),)
    released_behaviour = (
        "pairs of an image with itself count as genuine; rows and columns of the matrix of pairs are drawn apart",
        "binary cross-entropy of probabilities with torch's clamps: log p stops at -100, pairs with p < 1e-12 fade",
        "a is a free number, not an exponential; a and b learn at lr_objective (corrected: 0.2 of it) and decay",
        "embeddings keep the size that the network gives them; ten batches, not an epoch of them, give the start of a",
        RELEASED_HEAD,
    )

    class Params(MethodParams):
        """Hyper-parameters of HIB: weight of the KL divergence to N(0, I), draws per image, average over pairs."""

        kl_weight: float = tuned(1e-4, 1e-8, 1e-2, log=True, ge=0)
        samples: int = 8
        pairs: Literal["all", "balanced"] = "all"
        form: Literal["corrected", "released"] = "corrected"

    def distribution(self, raw: Tensor, spread: Tensor | None) -> IsotropicNormal:
        """Isotropic normal N(raw, s2 I), whose mean is not normalised, with s2 mapped from ``spread [B, 1]``."""
        assert spread is not None
        phi = positive_from_raw(spread.squeeze(-1))
        variance = phi + RELEASED_SPREAD if self.released else math.exp(-5.0) * phi
        return IsotropicNormal(raw, variance, validate_args=False)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: soft contrastive loss over the pairs of a batch."""
        p = self.params
        return (ReleasedMatchLoss if self.released else MatchLoss)(p.kl_weight, p.samples, p.pairs)

    @property
    def warm_start_batches(self) -> int | None:
        """Number of batches whose raw embeddings :meth:`initialise` gets: 10 if released, else None for an epoch's."""
        return 10 if self.released else None

    def initialise(self, model: EmbeddingModel, raw: Tensor, labels: Tensor) -> None:
        """Scale embeddings to unit variance, unless released, and the slope a to one over their mean coordinate."""
        objective = model.objective
        assert isinstance(objective, MatchLoss)
        with torch.no_grad():
            if not self.released:
                model.mean.weight.div_(raw.std())
                raw = raw / raw.std()
            objective.start(raw.abs().mean())
