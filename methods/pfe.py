"""PFE: probabilistic face embeddings (Shi and Jain, ICCV 2019).

The embedding of a trained, frozen deterministic network becomes the mean of N(mu, sigma^2 I); only a variance head is
trained, to maximise the mutual likelihood score of genuine pairs:

    L = -mean over ordered pairs i != j with y_i = y_j of  log integral N(z; mu_i, s_i I) N(z; mu_j, s_j I) dz
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Paper, register
from .distributions.arrays import rows_of
from .genuine_pairs import genuine_pairs
from .heads import SpreadHead
from .host_labels import on_host, places
from .learned_spread import RELEASED_HEAD, SpreadMethod, SpreadParams
from .published import PER
from .scorers.likelihood import mutual_likelihood
from .scorers.spec import Matrix, Pairs

_BLOCK_ELEMENTS = 1 << 22
"""Coordinates of the images of a block of pairs: 16 MiB in float32."""


class MutualLikelihood(nn.Module):
    """Loss of PFE: negative mean mutual likelihood score of the genuine pairs of a batch, those of one class.

    The score of a pair is the log of the integral of the product of their densities (Shi and Jain 2019, Eq. 3 and 5).
    ``with_self`` counts an image as a genuine pair with itself.
    """

    def __init__(self, with_self: bool = False) -> None:
        super().__init__()
        self.with_self = with_self

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]`` and at least one genuine pair."""
        known = on_host(labels)
        genuine = known[:, None] == known[None, :]
        # A pair of an image with itself has no data term: it would only pull the variance to its floor. (If a batch
        # repeats an image because its class has fewer than K, the two views still count as a pair.)
        genuine.fill_diagonal_(self.with_self)
        if not genuine.any():
            raise ValueError("PFE needs batches with at least two images of some class")
        scores = mutual_likelihood(distribution, distribution, Matrix)
        return -scores[places(genuine, scores.device)].mean()

    def validation_loss(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of N images with labels ``[N]``, the same as in training, but in blocks of bounded memory."""
        total = distribution.mean.new_zeros((), dtype=torch.float64)
        count = 0
        for left, right in genuine_pairs(labels, _BLOCK_ELEMENTS // distribution.event_shape[0], self.with_self):
            scores = mutual_likelihood(rows_of(distribution, left), rows_of(distribution, right), Pairs)
            total += scores.double().sum()
            count += len(left)
        if not count:
            raise ValueError("PFE needs validation classes with at least two images")
        return (-total / count).to(distribution.mean.dtype)


@register
class PFE(SpreadMethod):
    """PFE (probabilistic face embeddings): a variance head trained on a frozen deterministic base model.

    The parameter ``form`` chooses: ``corrected`` follows the paper (Shi and Jain 2019),
    ``released`` the public code of Probabilistic Embeddings Revisited.
    """

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
    released_behaviour = (
        "pairs of an image with itself count, which pulls variances to their floor",
        RELEASED_HEAD,
    )

    class Params(SpreadParams):
        """Hyper-parameter of PFE: the distribution of an embedding, ``normal`` or ``vmf``.

        A search tunes only the optimiser of the variance head.
        """

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: negative mutual likelihood score of the genuine pairs, those of one class."""
        return MutualLikelihood(with_self=self.released)
