"""Multi-Similarity (Wang et al., CVPR 2019).

For anchor i with kept positives P (s < max negative + eps) and kept negatives N (s > min positive - eps):

    L = 1/B sum_i [ 1/a log(1 + sum_P exp(-a (s - t))) + 1/b log(1 + sum_N exp(b (s - t))) ]
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from .losses import softplus
from .published import PER

_FAR = -1e30


def multi_similarity_loss(cosines: Tensor, labels: Tensor, params: MultiSimilarity.Params) -> Tensor:
    """Multi-Similarity loss of a batch from its cosines ``[B, B]`` (Wang et al. 2019, Eq. 15, mining of Eq. 11-12).

    ``alpha`` and ``beta`` scale the positives and the negatives, from which ``threshold`` is subtracted before. An
    anchor keeps positives below its largest negative cosine plus ``epsilon``, and negatives above its smallest positive
    cosine minus it. The form ``released_el`` averages over the anchors that keep pairs of both kinds, as in the public
    EL-nivMF code (Kirchhof et al. 2022), instead of over all anchors.
    """
    same = labels[:, None] == labels[None, :]
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    hardest = cosines.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    nearest = cosines.masked_fill(same, -torch.inf).amax(1, keepdim=True)
    keep_negative = ~same & (cosines + params.epsilon > hardest)
    keep_positive = positive & (cosines - params.epsilon < nearest)

    def part(logits: Tensor, keep: Tensor, factor: float) -> Tensor:
        return softplus(torch.logsumexp(torch.where(keep, logits, _FAR), 1)) / factor

    pull = part(-params.alpha * (cosines - params.threshold), keep_positive, params.alpha)
    push = part(params.beta * (cosines - params.threshold), keep_negative, params.beta)
    if params.form == "released_el":
        kept = keep_positive.any(1) & keep_negative.any(1)
        return (pull + push)[kept].sum() / kept.sum().clamp_min(1)
    return (pull + push).mean()


class MultiSimilarityLoss(nn.Module):
    """Multi-Similarity loss of the pairs in a batch, as a module without parameters (:func:`multi_similarity_loss`)."""

    def __init__(self, params: MultiSimilarity.Params) -> None:
        super().__init__()
        self.params = params

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``."""
        unit = F.normalize(distribution.mean, dim=-1)
        return multi_similarity_loss(unit @ unit.mT, labels, self.params)


PER_NAMES = {"alpha": "positive_scale", "beta": "negative_scale", "threshold": "threshold", "epsilon": "margin"}
"""Names of the parameters in the code of "Probabilistic Embeddings Revisited", after ``ms_``."""


@register
class MultiSimilarity(Method):
    """Multi-Similarity as a method: deterministic embeddings trained on weighted pairs, without proxies.

    The parameter ``form`` chooses: ``corrected`` follows the paper (Wang et al. 2019),
    ``released_el`` the public code of the EL-nivMF paper (Kirchhof et al. 2022).
    """

    name = "multi_similarity"
    summary = "deterministic; pairs weighted by self and relative similarity"
    paper = Paper(
        title="Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning",
        venue="CVPR 2019",
        arxiv="1904.06627",
        equations="Eq. 11-15",
    )
    default_confidence = "norm"
    published = (
        PER("multi-similarity", lambda values: {ours: values[f"ms_{theirs}"] for ours, theirs in PER_NAMES.items()}),
    )
    released_behaviour = (
        "released_el (EL-nivMF code): the mean is over anchors that keep positives and negatives, not over all",
    )

    class Params(MethodParams):
        """Hyper-parameters of Multi-Similarity: scales of positives and negatives, threshold, slack of the mining."""

        alpha: float = tuned(2.0, 1.0, 64.0, log=True, gt=0)
        beta: float = tuned(40.0, 1.0, 64.0, log=True, gt=0)
        threshold: float = tuned(0.5, 0.0, 1.0, ge=-1, le=1)
        epsilon: float = tuned(0.1, 0.0, 1.0, ge=0, le=2)
        form: Literal["corrected", "released_el"] = "corrected"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: Multi-Similarity loss over the pairs of a batch."""
        return MultiSimilarityLoss(self.params)
