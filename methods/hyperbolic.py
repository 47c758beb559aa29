"""Hyperbolic embeddings with a pairwise cross-entropy (Ermolov et al., CVPR 2022, the loss of Hyp-ViT).

The raw embedding v is clipped to a norm of r and mapped from the tangent space at 0 to the Poincare ball of curvature
-c, in which distances are D:

    x = tanh(sqrt(c) min(|v|, r)) / (sqrt(c) |v|) v,
    D(x, y) = 2 / sqrt(c) artanh(sqrt(c) |(-x) + y|)
            = 2 / sqrt(c) arsinh(sqrt(c) |x - y| / sqrt((1 - c |x|^2) (1 - c |y|^2))),

with Moebius addition in the first line. With an image j of the class of i and the images k of other classes in the
batch,

    L(i, j) = -log exp(-D_ij / t) / (exp(-D_ij / t) + sum_k exp(-D_ik / t)),

and the loss is the mean over all ordered pairs (i, j). For c -> 0, D is twice the Euclidean distance. The embedding
that is kept is sqrt(c) x, in the unit ball; retrieval compares distances there (scorer ``poincare``).
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from .distributions.normal import PointMass
from .pair_likelihoods import pair_log_likelihoods
from .scorers.hyperbolic import poincare_distance
from .scorers.spec import Matrix


class HyperbolicCrossEntropy(nn.Module):
    """Pairwise cross-entropy of distances in the Poincare ball, without parameters.

    The distances have the curvature -``curvature``, the points of a batch are scaled to the unit ball.
    """

    def __init__(self, curvature: float, temperature: float) -> None:
        super().__init__()
        self.factor = -1.0 / (curvature**0.5 * temperature)

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B points with class labels ``[B]``, at least two of them of one class."""
        distances = poincare_distance(distribution.mean, distribution.mean, Matrix)
        found = pair_log_likelihoods(self.factor * distances, labels)
        if not len(found):
            raise ValueError("the hyperbolic cross-entropy needs batches with at least two images of some class")
        return -found.mean()


@register
class Hyperbolic(Method):
    """Hyperbolic embeddings as a method: points in the Poincare ball, trained by their distances."""

    name = "hyperbolic"
    summary = "deterministic; points in the Poincare ball, cross-entropy of their distances"
    paper = Paper(
        title="Hyperbolic Vision Transformers: Combining Improvements in Metric Learning",
        venue="CVPR 2022",
        arxiv="2203.10833",
        equations="exponential map, distance, pairwise cross-entropy; clipping is that of 2107.11472",
    )
    deviations = (
        "the backbone is the recipe's, as for every method (paper: vision transformers, to which it owes much)",
        "negatives of a pair are all images of other classes (code: of each class two images at a time; equal with two"
        " images per class)",
        "distances by arsinh, without the 1e-5 that the code adds or clamps to",
        "r and c are the published ones: on ndigit all raw norms end beyond r (9 to 121; even if they start at 1), so"
        " that all points have one norm in the ball and distances the order of cosines",
        "temperature 0.2 is the published one, best on the validation classes of ndigit (0.1 and 0.5: 2 and 1 points of"
        " MAP@R less)",
        "no confidence of its own: the norm in the ball, tanh(sqrt(c) min(|v|, r)) / sqrt(c), has the order of the raw"
        " norm |v|, the confidence `norm`, up to the clipping r, beyond which it is one number for all images",
    )
    scorer = "poincare"
    default_confidence = "norm"

    class Params(MethodParams):
        """Hyper-parameters: c of the curvature -c, temperature t of the distances, largest norm r of v."""

        curvature: float = tuned(0.1, 0.01, 0.5, log=True, gt=0, le=1)
        temperature: float = tuned(0.2, 0.05, 1.0, log=True, gt=0)
        clip: float = Field(2.3, gt=0, le=5)

    @property
    def probabilistic(self) -> bool:
        """False: the embedding is a point."""
        return False

    def distribution(self, raw: Tensor, spread: Tensor | None) -> PointMass:
        """Points sqrt(c) x in the unit ball."""
        norm = torch.linalg.vector_norm(raw, dim=-1, keepdim=True).clamp_min(1e-12)
        p = self.params
        return PointMass((p.curvature**0.5 * norm.clamp_max(p.clip)).tanh() / norm * raw)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module, which has no trained parameters."""
        return HyperbolicCrossEntropy(self.params.curvature, self.params.temperature)
