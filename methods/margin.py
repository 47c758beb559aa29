"""Margin loss with distance-weighted sampling (Wu et al., ICCV 2017).

L = sum over sampled triplets ([m + D_ap - beta_y]_+ + [m - D_an + beta_y]_+) / number of active terms
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from .host_labels import on_host, places, sent


def margin_loss(
    anchor_positive: Tensor, anchor_negative: Tensor, beta: Tensor, margin: float, *, released: bool = False
) -> Tensor:
    """Margin loss of T triplets, a scalar (Wu et al., ICCV 2017).

    It is the sum of [m + d_ap - beta]_+ and [m - d_an + beta]_+ over all triplets, divided by the number of active
    terms, those above zero, or, as in the public EL-nivMF code (Kirchhof et al. 2022, ``released``), of triplets with
    one. Distances and the boundaries beta of the anchors' classes are ``[T]``; m is half the width of the band around
    these.
    """
    pull, push = F.relu(anchor_positive - beta + margin), F.relu(beta - anchor_negative + margin)
    active = ((pull > 0) | (push > 0)).sum() if released else (pull > 0).sum() + (push > 0).sum()
    return (pull + push).sum() / active.clamp_min(1)


def distance_weighted_negatives(distances: Tensor, same: Tensor, dim: int, cutoff: float = 0.5) -> Tensor:
    """Draw one negative per anchor, inversely to the density of distances on the sphere (Wu et al. 2017, Eq. 3-4).

    Args:
        distances: Distances ``[A, B]`` of unit vectors, from A anchors to the B images of a batch.
        same: Mask ``[A, B]`` of the images of the anchor's class, which are not drawn.
        dim: Embedding size D.
        cutoff: Least distance: smaller ones count as it, so that noise close to the anchor is not drawn too often.
    """
    d = distances.detach().clamp(cutoff, 2.0 - 1e-4)
    log_weight = -((dim - 2) * d.log() + 0.5 * (dim - 3) * torch.log1p(-0.25 * d.square()))
    log_weight = log_weight.masked_fill(same, -torch.inf)
    return torch.multinomial((log_weight - log_weight.amax(1, keepdim=True)).exp(), 1).squeeze(1)


class MarginLoss(nn.Module):
    """Margin loss over distance-weighted triplets of a batch, with a learned boundary per class (Wu et al., ICCV 2017).

    ``beta``, a distance of unit vectors, is the initial boundary; see :func:`margin_loss`.
    """

    learning_rates = {"beta": ("lr_objective", 0.1)}  # noqa: RUF012

    def __init__(self, num_classes: int, margin: float, beta: float, released: bool) -> None:
        super().__init__()
        self.margin, self.released = margin, released
        self.beta = nn.Parameter(torch.full((num_classes,), beta))

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``.

        Each ordered pair of images of one class makes a triplet with a sampled negative of its anchor, the first image.
        """
        unit = F.normalize(distribution.mean, dim=-1)
        distances = (2.0 - 2.0 * unit @ unit.mT).clamp_min(1e-8).sqrt()
        known = on_host(labels)
        same = known[:, None] == known[None, :]
        if bool(same.all()):
            raise ValueError("the margin loss needs batches of at least two classes")
        anchor, positive = places(same & ~torch.eye(len(labels), dtype=torch.bool), unit.device)
        negative = distance_weighted_negatives(distances[anchor], sent(same, unit.device)[anchor], unit.shape[-1])
        near, far = distances[anchor, positive], distances[anchor, negative]
        return margin_loss(near, far, self.beta[labels[anchor]], self.margin, released=self.released)


@register
class Margin(Method):
    """Margin loss as a method: deterministic embeddings trained on distance-weighted triplets.

    The parameter ``form`` chooses: ``corrected`` follows the paper (Wu et al. 2017),
    ``released`` the public code of the EL-nivMF paper (Kirchhof et al. 2022).
    """

    name = "margin"
    summary = "deterministic; distances on the right side of a learned boundary, distance-weighted negatives"
    paper = Paper(
        title="Sampling Matters in Deep Embedding Learning",
        venue="ICCV 2017",
        arxiv="1706.07567",
        equations="Eq. 3-6",
    )
    deviations = (
        "every genuine pair of a batch counts; the EL-nivMF code draws one positive per anchor, which is the same with"
        " two images per class",
    )
    repository = "el"
    released_behaviour = ("divides by triplets with any active term, not by active terms (EL-nivMF code)",)
    default_confidence = "norm"

    class Params(MethodParams):
        """Hyper-parameters of the margin loss: margin and initial boundary beta of the classes, as distances."""

        margin: float = tuned(0.2, 0.05, 0.5, ge=0, le=2)
        beta: float = tuned(1.2, 0.6, 1.4, gt=0, le=2)
        form: Literal["corrected", "released"] = "corrected"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: the learned class boundaries and the margin loss."""
        return MarginLoss(num_classes, self.params.margin, self.params.beta, self.released)
