"""MagFace: the norm of an embedding is trained to be its quality (Meng et al., CVPR 2021).

ArcFace whose margin grows with the norm a = |z|, kept in [l_a, u_a], and a regulariser that favours large norms:

    L = -log exp(s cos(theta_y + m(a))) / [exp(s cos(theta_y + m(a))) + sum_{c != y} exp(s cos theta_c)]
        + norm_weight * g(a),
    m(a) = margin + margin_range * (a - l_a) / (u_a - l_a),   g(a) = 1 / a + a / u_a^2

g falls up to u_a, so it pulls norms up; the margin, which costs an image the more the farther it is from its class
weight, pushes them down. Where they balance, an image closer to its class has the larger norm. A balance inside the
range needs norm_weight >= s K l_a^2 u_a^2 / (u_a^2 - l_a^2), K = margin_range / (u_a - l_a) (the paper's proof).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from ._model import EmbeddingModel, norm_confidence
from .losses import CosineClassifier, shifted_cosines

LOWEST, HIGHEST = 10.0, 110.0
"""Range of norms [l_a, u_a] of the paper."""

START = 512**0.5
"""Norm with which the authors' networks start: their embeddings are the 512 outputs of a batch normalisation."""


class MagFaceLoss(CosineClassifier):
    """Softmax with the margin m(a) of the norm a, plus a weighted g(a).

    Attributes:
        unit: Length that counts as a norm of 1, a buffer; 1 until it is set.
    """

    unit: Tensor

    def __init__(self, num_classes: int, dim: int, params: MagFace.Params) -> None:
        super().__init__(num_classes, dim, params.scale)
        self.params = params
        self.register_buffer("unit", torch.ones(()))

    def norms(self, points: Tensor) -> Tensor:
        """Norms ``[B]`` of points ``[B, D]`` in the unit; those outside of the range at its ends, without gradient."""
        return (points.square().sum(-1).clamp_min(1e-12).sqrt() / self.unit).clamp(LOWEST, HIGHEST)

    def with_margin_of(self, points: Tensor, target: Tensor) -> Tensor:
        """Target cosines ``[B, 1]`` with the margin: cos(theta + m(a))."""
        share = (self.norms(points)[:, None] - LOWEST) / (HIGHEST - LOWEST)
        return shifted_cosines(target, self.params.margin + self.params.margin_range * share)

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``."""
        norms = self.norms(distribution.mean)
        regulariser = (1 / norms + norms / HIGHEST**2).mean()
        return super().forward(distribution, labels) + self.params.norm_weight * regulariser


@register
class MagFace(Method):
    """MagFace: deterministic embeddings, trained so that an image close to its class has a large norm.

    The norm is the confidence.
    """

    name = "magface"
    summary = "deterministic; angular margin that grows with the norm, which is trained to be the confidence"
    paper = Paper(
        title="MagFace: A Universal Representation for Face Recognition and Quality Assessment",
        venue="CVPR 2021",
        arxiv="2103.06627",
        equations="the loss L_Mag, with the linear m and the hyperbolic g of the experiments",
    )
    deviations = (
        "norms are measured in a unit, the mean norm of one epoch of the untrained network divided by sqrt(512): so"
        " every network starts where the authors' do in the range [10, 110]",
        "scale 16, margins 0.18 to 0.32 by default: those of the paper (64, 0.45 to 0.8) times 1/4 and 2/5, as in"
        " arcface; norm_weight 3.5 is the paper's 35 times 1/4 times 2/5, as large beside its lower bound (the paper's"
        " gave a validation MAP@R of 45 on ndigit, these 85)",
        "beyond theta + m = pi the target logit continues linearly, as in arcface (the authors' code: no margin where"
        " the cosine is negative, by default)",
    )
    default_confidence = "norm"

    class Params(MethodParams):
        """Hyper-parameters of MagFace: scale s, margin at the lowest norm, what the highest adds, weight of g."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.18, 0.0, 1.0, ge=0, le=1.57)
        margin_range: float = tuned(0.14, 0.0, 0.5, ge=0, le=1.57)
        norm_weight: float = tuned(3.5, 0.35, 35.0, log=True, ge=0)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: cross-entropy over the training classes and the regulariser of the norms."""
        return MagFaceLoss(num_classes, dim, self.params)

    def initialise(self, model: EmbeddingModel, raw: Tensor, labels: Tensor) -> None:
        """Set the unit of the norms from raw embeddings ``[N, D]`` of the untrained network."""
        assert isinstance(model.objective, MagFaceLoss)
        model.objective.unit.copy_((norm_confidence(raw).mean() / START).clamp_min(1e-12))
