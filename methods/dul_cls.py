"""DUL-cls: data uncertainty learning, classification (Chang et al., CVPR 2020).

An image is N(mu, sigma^2 I) with mu on the unit sphere. One reparametrised sample goes through a margin softmax, and
a KL term keeps the variance from vanishing:

    z = mu + sigma * eps,  eps ~ N(0, I)
    L = L_margin(z / |z|, y) + kl_weight * KL(N(mu, sigma^2 I) || N(0, I)),   KL summed over dimensions

What the scale s does to the confidence, -log sigma^2: while D sigma^2 and s^2 sigma^2 are small,

    dE[L] / dlog sigma^2 = sigma^2 / 2 (s (D - 1) A + s^2 V) - kl_weight D / 2 (1 - sigma^2),

with the softmax p over class weights w_c, margin included, A = cos_y - sum_c p_c cos_c, and V the variance of w_c under
p, across mu. The pull of A shrinks the variance of easy images, as it should, until p_y is near 1, where A and V
vanish; that of V shrinks it for images between classes, which would turn the confidence over at large s (D sigma^2 is 2
at the start, not small; on Grocery no scale from 5 to 64 turned it). V counts s / D as much
as A: the range of s, 4 to 64, is s / D = 1/16 to 1 at D = 64 (here), 1/32 to 1/2 at D = 128 (PER), 1/128 to 1/8 at
D = 512. At D = 64 validation MAP@R prefers large s, but the confidence followed the size of crops in all our networks
with s <= 14, and ran against it in 88 % (`ndigit`) and 96 % (`ndigit_smoke`) of those with s >= 20 (148 in all).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Paper, register, tuned
from .distributions.bessel import released_log_uniform, vmf_log_normalizer
from .distributions.normal import IsotropicNormal, PointMass, kl_to_standard_normal
from .distributions.von_mises_fisher import VonMisesFisher, released_rsample
from .heads import SpreadHead
from .learned_spread import RELEASED_HEAD, SpreadMethod, SpreadParams
from .losses import ArcFaceLoss, CosFaceLoss
from .published import PER


def released_prior(distribution: VonMisesFisher) -> Tensor:
    """Term ``[B]`` that a public code computes in place of the KL to the uniform vMF: k + log C(k) - log C(1e-6).

    The code is that of Probabilistic Embeddings Revisited. The term is no KL divergence: that has k A(k) in place of k,
    with the mean resultant length A.
    """
    k, dim = distribution.concentration, distribution.dim
    return k + vmf_log_normalizer(k, dim) - released_log_uniform(dim)


class SampledClassification(nn.Module):
    """Loss of DUL-cls (Chang et al. 2020): margin softmax of one draw per image plus a weighted KL divergence.

    The KL is to N(0, I) for a normal, to the uniform distribution for a vMF.

    Args:
        classifier: CosFace or ArcFace loss applied to the draws.
        kl_weight: Weight of the KL.
        released: Use the faulty vMF sampler of the public code of Probabilistic Embeddings Revisited, and its term in
            place of the KL to the uniform distribution; no effect on normals.
    """

    def __init__(self, classifier: CosFaceLoss | ArcFaceLoss, kl_weight: float, released: bool = False) -> None:
        super().__init__()
        self.classifier = classifier
        self.kl_weight = kl_weight
        self.released = released

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float | Tensor]:
        """Cosines ``[B, C]`` of the means to the class weights, and the scale of the softmax."""
        return self.classifier.class_cosines(distribution)

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of B embeddings with labels ``[B]``: margin softmax of one draw each plus the weighted KL."""
        if isinstance(distribution, IsotropicNormal):
            sample, prior = distribution.rsample(), kl_to_standard_normal(distribution)
        else:
            assert isinstance(distribution, VonMisesFisher)
            if self.released:
                sample, prior = released_rsample(distribution), released_prior(distribution)
            else:
                sample, prior = distribution.rsample(), distribution.kl_to_uniform()
        loss: Tensor = self.classifier(PointMass(sample, validate_args=False), labels)
        return loss + self.kl_weight * prior.mean()


def _from_per(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters from PER's constants; the name of a row ends with its classifier."""
    return {**values, "kl_weight": values["prior_kld_weight"], "classifier": values["variant"].split("-")[-1]}


@register
class DulCls(SpreadMethod):
    """DUL-cls: isotropic normal (or vMF) embedding trained end to end by a margin softmax of one draw.

    DUL is data uncertainty learning. The parameter ``form`` chooses: ``corrected`` follows the paper (Chang et al.
    2020), ``released`` the public code of Probabilistic Embeddings Revisited.
    """

    name = "dul_cls"
    summary = "normal embedding; margin softmax of a sample plus KL to the standard normal, end to end"
    paper = Paper(
        title="Data Uncertainty Learning in Face Recognition",
        venue="CVPR 2020",
        arxiv="2003.11339",
        equations="Eq. 3-6",
    )
    deviations = (
        "one variance per image and means on the unit sphere, as in PER (the paper: one per dimension, free means)",
        "kl_weight multiplies the KL summed over dimensions (the paper: 0.01, per-dimension reading left open)",
        "variance starts at 2/D (PER's code: 1, where a sample carries no signal at D = 128)",
        SpreadHead.DEVIATION,
    )
    published = (PER("dul-cls", _from_per),)
    released_behaviour = (
        RELEASED_HEAD,
        f"classifier=arcface: {ArcFaceLoss.RELEASED}",
        "distribution=vmf: draws come from the faulty sampler, and the prior term is k + log C(k) - log C(0), no KL,"
        " with log C(0) in float32",
    )

    class Params(SpreadParams):
        """Hyper-parameters: distribution of an embedding, scale, margin and kind of the softmax, weight of the KL."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.2, 0.0, 1.0, ge=0, le=2.0)
        kl_weight: float = tuned(3e-3, 1e-5, 1e-2, log=True, ge=0)
        classifier: Literal["cosface", "arcface"] = "cosface"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: margin softmax of a draw plus the weighted KL divergence to the prior."""
        p = self.params
        classifier = (
            ArcFaceLoss(num_classes, dim, p.scale, p.margin, self.released)
            if p.classifier == "arcface"
            else CosFaceLoss(num_classes, dim, p.scale, p.margin)
        )
        return SampledClassification(classifier, p.kl_weight, self.released)
