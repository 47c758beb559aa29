"""PFE: probabilistic face embeddings (Shi and Jain, ICCV 2019).

The embedding of a trained, frozen deterministic network becomes the mean of N(mu, sigma^2 I); only a variance head is
trained, to maximise the mutual likelihood score of genuine pairs:

    L = -mean over ordered pairs i != j with y_i = y_j of  log integral N(z; mu_i, s_i I) N(z; mu_j, s_j I) dz
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Paper, register
from .heads import SpreadHead
from .learned_spread import RERANKED, SpreadMethod, SpreadParams
from .published import PER
from .scorers.layout import Matrix
from .scorers.likelihood import mutual_likelihood


class MutualLikelihood(nn.Module):
    """Negative mean mutual likelihood score of the genuine pairs of a batch (PFE, Eq. 5).

    Args:
        with_self: Whether an image is a genuine pair with itself.
    """

    def __init__(self, with_self: bool = False) -> None:
        super().__init__()
        self.with_self = with_self

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch with at least one genuine pair."""
        genuine = labels[:, None] == labels[None, :]
        # A pair of an image with itself has no data term: it would only pull the variance to its floor. (If a batch
        # repeats an image because its class has fewer than K, the two views still count as a pair.)
        genuine.fill_diagonal_(self.with_self)
        if not genuine.any():
            raise ValueError("PFE needs batches with at least two images of some class")
        return -mutual_likelihood(distribution, distribution, Matrix)[genuine].mean()


@register
class PFE(SpreadMethod):
    """Variance head on a frozen deterministic base."""

    name = "pfe"
    summary = "normal embedding; a variance head trained by mutual likelihood on a frozen base"
    paper = Paper(
        title="Probabilistic Face Embeddings",
        venue="ICCV 2019",
        arxiv="1904.09658",
        equations="Eq. 3 and 5",
    )
    deviations = (
        "one variance per image, head on pooled features, as in PER (the paper: one per dimension, last feature map)",
        "pairs of an image with itself are left out, as in the authors' code (PER's code keeps them)",
        "variance starts at 2/D (the authors' code: 9e-4; PER's: 1)",
        SpreadHead.DEVIATION,
    )
    scorer = "mls"
    on_base = True
    trains = ("spread",)
    published = (PER("pfe", kinds={"pfe-vmf": {"distribution": "vmf"}}),)
    fidelities = ("corrected", "released")
    released_behaviour = (
        "pairs of an image with itself count, which pulls variances to their floor",
        "the head is linear, and the variance starts at 1",
        RERANKED,
    )

    class Params(SpreadParams):
        """Choice of the distribution; only the head's optimiser is tuned."""

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Mutual likelihood of genuine pairs."""
        return MutualLikelihood(with_self=self.released)
