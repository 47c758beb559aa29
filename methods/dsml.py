"""DSML: classes are distributions, images are points (PER's public code, "dsml"; not in its paper).

With a unit embedding z, a unit class mode w_c and a trained spread of each class,

    L = -log p(z; w_y, k_y) / sum_c p(z; w_c, k_c)     p a vMF or a normal

so that a class with a wide distribution tolerates images far from its mode. For a vMF, log p = log C(k_c) + k_c z.w_c.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, Paper, register
from .distributions.bessel import vmf_log_normalizer
from .distributions.normal import LOG_2PI, IsotropicNormal
from .distributions.von_mises_fisher import VonMisesFisher
from .learned_spread import SpreadParams, spread_distribution
from .losses import CosineClassifier, cross_entropies
from .published import PER


class ClassDistributions(CosineClassifier):
    """Loss of DSML: cross-entropy over the likelihoods of a point under class distributions, vMFs or normals.

    With ``released``, as in PER's public code, the modes and a raw spread per class, both trained, start as one
    Xavier-uniform matrix, and a raw spread r becomes phi(r) plus a constant (:func:`positive_from_raw`), a variance or
    the inverse of a concentration. Otherwise raw spreads start at 0, the variance 2/D.
    """

    def __init__(self, num_classes: int, dim: int, kind: str, released: bool) -> None:
        super().__init__(num_classes, dim, scale=1.0)
        self.kind, self.released = kind, released
        self.spread = nn.Parameter(torch.zeros(num_classes))
        if released:
            # One matrix of modes and spreads, started as one.
            start = nn.init.xavier_uniform_(torch.empty(num_classes, dim + 1))
            with torch.no_grad():
                self.weight.copy_(start[:, :-1])
                self.spread.copy_(start[:, -1])

    def class_distributions(self) -> VonMisesFisher | IsotropicNormal:
        """Distributions of the C classes as one batch of shape ``[C]``."""
        return spread_distribution(self.kind, self.weight, self.spread, self.released)

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float | Tensor]:
        """Cosines ``[B, C]`` of embeddings to class modes, and a scale for them as softmax logits.

        The scale is the mean over the classes of their concentrations or, for normals, of 1/variance.
        """
        classes = self.class_distributions()
        k = classes.concentration if isinstance(classes, VonMisesFisher) else classes.variance.reciprocal()
        return self.cosines(distribution.mean), k.detach().mean()

    def class_logits(self, distribution: Distribution) -> Tensor:
        """Log densities ``[B, C]`` of the embeddings' means under the distributions of the classes."""
        cosine, classes = self.cosines(distribution.mean), self.class_distributions()
        # From the cosines: [B, C, D] would not fit in memory.
        if isinstance(classes, VonMisesFisher):
            return classes.concentration * cosine + vmf_log_normalizer(classes.concentration, classes.dim)
        return -0.5 * ((2.0 - 2.0 * cosine) / classes.variance + classes.log_det_covariance() + classes.dim * LOG_2PI)

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss: mean cross-entropy of a batch of B embeddings with class labels ``[B]``."""
        return cross_entropies(self.class_logits(distribution), labels).mean()


@register
class Dsml(Method):
    """DSML: deterministic embeddings classified by class distributions, each with its own learned spread.

    It is a method of the public code of Probabilistic Embeddings Revisited (PER). The parameter ``form`` chooses how
    spreads start and are parametrised: ``released`` as in that code; with ``corrected`` they start at the concentration
    D or the variance 2/D, with D the embedding size.
    """

    name = "dsml"
    summary = "deterministic images; each class a vMF (or normal) with its own spread, softmax of likelihoods"
    paper = Paper(
        title="Probabilistic Embeddings Revisited (the public code; not in the paper)",
        venue="2022",
        arxiv="2202.06768",
    )
    deviations = ("classes start at k = D or a variance of 2/D (PER's code: near 1)",)
    published = (PER("dsml"),)
    repository = "per"
    released_behaviour = (
        "spreads start near s2 = 1 or k = 1, in one Xavier matrix with the modes, with s2 and 1/k at least exp(-10)",
    )

    class Params(SpreadParams):
        """Hyper-parameter of DSML: the kind of the classes' distributions, ``vmf`` or ``normal``.

        Their spreads are learned, so no scale is tuned.
        """

        distribution: Literal["normal", "vmf"] = "vmf"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: the class distributions and the cross-entropy over their likelihoods."""
        return ClassDistributions(num_classes, dim, self.params.distribution, self.released)
