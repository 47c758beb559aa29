"""AdaFace: a margin that adapts to the norm, which stands for the quality of an image (Kim et al., CVPR 2022).

    L = -log exp(s f_y) / [exp(s f_y) + sum_{c != y} exp(s cos theta_c)],   f_y = cos(theta_y - m q) - m (1 + q),
    q = h (|z| - mean) / std, clipped to [-1, 1]

The norms' mean and standard deviation are exponential moving averages over batches. q is a constant: no gradient flows
through it. At q = -1 the margin is ArcFace's, at 0 CosFace's, and at 1 it is -m in angle and 2 m in cosine: images of
low quality count the less the harder they are, those of high quality the more.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ._base import Method, MethodParams, Paper, register, tuned
from ._model import norm_confidence
from .losses import CosineClassifier, shifted_cosines

MOMENTUM = 0.99
"""Share of the past in the moving averages after a batch, as in the paper."""


class AdaFaceLoss(CosineClassifier):
    """Softmax with a margin m in angle and cosine that depends on the norm.

    Attributes:
        averages: Moving averages ``[3]`` of the norms' mean and standard deviation and of the number 1, a buffer. All
            start at 0; the ratios to the third are not pulled to that start. They change in training mode only.
    """

    averages: Tensor

    def __init__(self, num_classes: int, dim: int, scale: float, margin: float, h: float) -> None:
        super().__init__(num_classes, dim, scale)
        self.margin, self.h = margin, h
        self.register_buffer("averages", torch.zeros(3))

    @torch.no_grad()
    def quality(self, points: Tensor) -> Tensor:
        """Normalised norms q ``[B]`` of points ``[B, D]``; in training, the batch enters the averages first."""
        norms = norm_confidence(points)
        if self.training:
            batch = torch.stack([norms.mean(), norms.std(correction=0), torch.ones_like(norms[0])])
            self.averages.lerp_(batch.to(self.averages.dtype), 1 - MOMENTUM)
        mean, std = self.averages[:2] / self.averages[2].clamp_min(1e-6)
        quality: Tensor = (self.h * (norms - mean) / std.clamp_min(1e-6)).clamp(-1, 1)
        return quality

    def with_margin_of(self, points: Tensor, target: Tensor) -> Tensor:
        """Target cosines ``[B, 1]`` with the margins: cos(theta - m q) - m (1 + q)."""
        q = self.quality(points)[:, None]
        return shifted_cosines(target, -self.margin * q) - self.margin * (1 + q)


@register
class AdaFace(Method):
    """AdaFace: deterministic embeddings, trained with a margin that stresses hard images only if their norm is large.

    The norm is the confidence.
    """

    name = "adaface"
    summary = "deterministic; margin in angle and cosine that adapts to the norm, a stand-in for image quality"
    paper = Paper(
        title="AdaFace: Quality Adaptive Margin for Face Recognition",
        venue="CVPR 2022",
        arxiv="2204.00964",
        equations="the normalised norm, its moving averages, g_angle and g_add",
    )
    deviations = (
        "scale 16, margin 0.2 by default, as in arcface and cosface (the paper: 64, 0.4, which on ndigit gave 4 points"
        " more of validation MAP@R and a norm that runs against the size of crops, as cosface's does at 64); h 0.33 and"
        " the momentum 0.99 of the averages are the paper's",
        "the averages are corrected for their start at 0 (the authors' code: they start at mean 20 and deviation 100 of"
        " faces); the deviation divides by B, so that a batch of one image has one",
        "beyond theta - m q = pi the target logit continues linearly, as in arcface; below 0 the angle counts as 0"
        " (the authors' code: the angle is clipped on both sides)",
        "norms are not clipped before they are normalised (the authors' code: to [0.001, 100])",
    )
    default_confidence = "norm"

    class Params(MethodParams):
        """Hyper-parameters of AdaFace: scale s, margin m and h, how much of the margin one deviation of the norm is."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.2, 0.0, 1.0, ge=0, le=1.57)
        h: float = tuned(0.33, 0.0, 1.0, ge=0)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: cross-entropy over the training classes."""
        return AdaFaceLoss(num_classes, dim, self.params.scale, self.params.margin, self.params.h)
