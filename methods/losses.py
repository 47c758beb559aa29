"""Objectives with class weights on the sphere: softmax with the margins of CosFace and ArcFace, class likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import UnfitBase


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy ``[B]`` of each row of logits ``[B, C]`` with its class label ``[B]``, nats.

    It is that of torch, and so is :func:`softplus`, but from operations that torch rounds alike for all widths of a
    processor's vectors.
    """
    shifted = logits - logits.detach().amax(1, keepdim=True)
    return shifted.exp().sum(1).log() - shifted.gather(1, labels[:, None]).squeeze(1)


def softplus(x: Tensor) -> Tensor:
    """The function log(1 + exp(x)) of finite numbers of any shape; beyond 20, as in torch, the numbers themselves."""
    return torch.where(x > 20, x, (x + x.abs()) / 2 + (-x.abs()).exp().log1p())  # with the slope 1/2 at 0


def arcface_cosines(cosine: Tensor, margin: float) -> Tensor:
    """Target cosine cos(theta) after an additive angular margin m in [0, pi] (ArcFace, Deng et al. 2019, Eq. 3).

    It is ``cos(theta + m)`` while ``theta + m <= pi``; beyond, where that would rise again, it is the linear
    continuation ``cos(theta) - m sin(m)`` of the authors' code. Cosines, of any shape and in [-1, 1] up to rounding,
    are clamped away from +-1 because the derivative of the sine is infinite there.
    """
    limit = 1e-6 if cosine.dtype == torch.float32 else 1e-12
    c = cosine.clamp(-1.0 + limit, 1.0 - limit)
    shifted = c * math.cos(margin) - (1.0 - c.square()).sqrt() * math.sin(margin)
    return torch.where(c > math.cos(math.pi - margin), shifted, c - margin * math.sin(margin))


def released_arcface_cosines(cosine: Tensor, margin: float) -> Tensor:
    """Target cosine after an angular margin m as in a public code: ``cos(theta + m)`` up to pi, ``cos(theta)`` beyond.

    The code is that of Probabilistic Embeddings Revisited. The logit jumps up by ``1 - cos(m)`` at ``theta + m = pi``:
    an image on the far side of its class pays less than one at the edge. Cosines are clamped to [-1 + 1e-6, 1 - 1e-6]
    in every precision.
    """
    c = cosine.clamp(-1.0 + 1e-6, 1.0 - 1e-6)
    shifted = c * math.cos(margin) - (1.0 - c.square()).sqrt() * math.sin(margin)
    return torch.where(c >= math.cos(math.pi - margin), shifted, cosine)


def shifted_cosines(cosine: Tensor, margin: Tensor) -> Tensor:
    """Target cosines after angular margins of their own, both ``[B, 1]``, the margins in [-pi, pi].

    A positive margin acts as in :func:`arcface_cosines`. A negative one brings an image closer to its class weight: the
    result is cos(theta + m), or 1, without a gradient, where the image would pass the weight.
    """
    limit = 1e-6 if cosine.dtype == torch.float32 else 1e-12
    c = cosine.clamp(-1.0 + limit, 1.0 - limit)
    # In float32, processors with other instruction sets round these differently.
    cos, sin = (f(margin.double()).to(c.dtype) for f in (torch.cos, torch.sin))
    shifted = c * cos - (1.0 - c.square()).sqrt() * sin
    shifted = torch.where((margin > 0) & (c <= -cos), c - margin * sin, shifted)
    return torch.where((margin < 0) & (c >= cos), 1.0, shifted)


STARTS: Mapping[str, Callable[[Tensor], object]] = {
    "xavier": nn.init.xavier_uniform_,
    "normal": lambda weight: nn.init.normal_(weight, std=1 / 8),
}
"""Where free proxies start, by name; ``normal`` is the start of the public EL-nivMF and NIR code.

The length of a proxy does not enter a loss, yet it divides the angle by which a step of Adam turns it: with D = 512 the
lengths are 2.8 (``normal``) and about 1.3 with 100 classes or 0.3 with 11,000 (``xavier``).
"""


class ClassWeights(nn.Module):
    """Learned weights ``[C, D]`` of C classes, such as proxies: free vectors whose directions alone matter.

    ``scale`` is that of the cosines in a softmax over the classes, from which confidences are computed; the loss of a
    subclass may have the same. ``start`` is ``xavier`` (uniform), or ``normal`` of standard deviation 1/8.
    """

    def __init__(self, num_classes: int, dim: int, scale: float, start: str = "xavier") -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(num_classes, dim))
        STARTS[start](self.weight)

    def cosines(self, points: Tensor) -> Tensor:
        """Cosines ``[B, C]`` between points ``[B, D]`` and class weights."""
        return F.linear(F.normalize(points, dim=-1), F.normalize(self.weight, dim=-1))

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float | Tensor]:
        """Cosines ``[B, C]`` of means to class weights, without margin, and the scale of their softmax."""
        return self.cosines(distribution.mean), self.scale


class CosineClassifier(ClassWeights):
    """Normalised softmax: cross-entropy of ``scale * cos(z, w_c)`` over C training classes with weights ``[C, D]``.

    Samples ``z`` are drawn from the embedding distribution (for a point, the point itself). The scale s, the inverse
    temperature, is positive.
    """

    def with_margin(self, target: Tensor) -> Tensor:
        """Apply the margin, which this class has not, to cosines ``[B]`` of embeddings to their own class weights."""
        return target

    def with_margin_of(self, points: Tensor, target: Tensor) -> Tensor:
        """Apply the margins of points ``[B, D]`` to their cosines ``[B, 1]``: the same for all, unless overridden."""
        return self.with_margin(target)

    def training_logits(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scaled cosines ``[B, C]`` of one draw of each of B embeddings, with the margin in that of the own class."""
        points = distribution.rsample()
        cosine = self.cosines(points)
        target = self.with_margin_of(points, cosine.gather(1, labels[:, None]))
        logits = cosine.scatter(1, labels[:, None], target.to(cosine.dtype))
        return self.scale * logits

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss: mean cross-entropy of a batch of B embeddings, one draw each, with class labels ``[B]``."""
        return cross_entropies(self.training_logits(distribution, labels), labels).mean()


class CosFaceLoss(CosineClassifier):
    """CosFace (Wang et al. 2018, Eq. 4): softmax cross-entropy with the target logit ``s * (cos(theta_y) - m)``."""

    def __init__(self, num_classes: int, dim: int, scale: float, margin: float) -> None:
        super().__init__(num_classes, dim, scale)
        self.margin = margin

    def with_margin(self, target: Tensor) -> Tensor:
        """Target cosines ``[B]`` with the margin: cos(theta) - m."""
        return target - self.margin


class ArcFaceLoss(CosineClassifier):
    """ArcFace (Deng et al. 2019, Eq. 3): softmax cross-entropy with the target logit ``s * cos(theta_y + m)``.

    The angle m is in radians. Beyond pi - m the cosine is :func:`released_arcface_cosines` if ``released``, else
    :func:`arcface_cosines`.
    """

    RELEASED = "beyond theta + m = pi the target logit is the plain cosine"

    def __init__(self, num_classes: int, dim: int, scale: float, margin: float, released: bool = False) -> None:
        super().__init__(num_classes, dim, scale)
        self.margin, self.released = margin, released

    def with_margin(self, target: Tensor) -> Tensor:
        """Target cosines ``[B]`` with the margin: cos(theta + m) for theta <= pi - m.

        Beyond that angle it is cos(theta) - m sin(m), or cos(theta) if ``released``.
        """
        widened = released_arcface_cosines if self.released else arcface_cosines
        return widened(target, self.margin)


class ClassLikelihood(nn.Module):
    """Loss of DUL-reg and SCF: negative log likelihood of each image's class weight under the image's distribution.

    The class weights are those of a trained base model and stay fixed; a base without them is an :class:`UnfitBase`.
    """

    def __init__(self, base: nn.Module | None, method: str) -> None:
        super().__init__()
        weight = getattr(base, "weight", None)
        if not isinstance(weight, nn.Parameter) or weight.dim() != 2:
            raise UnfitBase(f"{method} needs a base with one weight per class, such as cosface or arcface")
        # In a list, so that its weights are not in the state dict a second time.
        self._base = [base]

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``."""
        weight: Tensor = self._base[0].weight.detach()  # type: ignore[operator, union-attr]
        return -distribution.log_prob(F.normalize(weight, dim=-1)[labels]).mean()

    def validation_loss(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of N images whose classes, labels ``[N]``, have no weight, because they are not training classes.

        In place of the class weight, each image has the mean direction of the other images of its class; an image
        without any is left out.
        """
        mode = distribution.loc  # type: ignore[attr-defined]
        total = mode.new_zeros(int(labels.max()) + 1, mode.shape[-1]).index_add(0, labels, mode)
        others = torch.bincount(labels)[labels] > 1
        target = F.normalize(total[labels] - mode, dim=-1)
        return -distribution.log_prob(target)[others].mean()
