"""vMF-FL: a softmax whose temperature is the image's own (PER's public code, "vmfmm"; not in its paper).

Class c with unit weight w_c is as likely as the image's distribution says, p(w_c | x), and the loss is the
cross-entropy over the classes. In that softmax the normaliser cancels, so

    L = -log softmax_y(k mu.w_c)                 for vMF(mu, k)
    L = -log softmax_y(-|mu - w_c|^2 / (2 s2))   for N(mu, s2 I), that is a temperature of s2 on the sphere
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Paper, register
from .distributions.normal import IsotropicNormal
from .distributions.von_mises_fisher import VonMisesFisher
from .heads import SpreadHead
from .learned_spread import RELEASED_HEAD, SpreadMethod, SpreadParams
from .losses import CosineClassifier, cross_entropies
from .published import PER


class LikelihoodClassifier(CosineClassifier):
    """Loss of vMF-FL: cross-entropy over the likelihoods of unit class weights under the image's distribution."""

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__(num_classes, dim, scale=1.0)

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, Tensor]:
        """Cosines ``[B, C]`` of the modes to the class weights, and each image's own scale ``[B, 1]``.

        The scale is the concentration of a vMF or 1/variance of a normal.
        """
        if isinstance(distribution, IsotropicNormal):
            return self.cosines(distribution.loc), distribution.variance.reciprocal().unsqueeze(-1)
        assert isinstance(distribution, VonMisesFisher)
        return self.cosines(distribution.loc), distribution.concentration.unsqueeze(-1)

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss: mean cross-entropy of a batch of B embeddings with class labels ``[B]``."""
        cosine, scale = self.class_cosines(distribution)
        return cross_entropies(scale * cosine, labels).mean()


@register
class VmfFl(SpreadMethod):
    """vMF-FL: the concentration is the inverse temperature of a softmax over classes; trained end to end.

    It is a method of the public code of Probabilistic Embeddings Revisited (PER). The parameter ``form`` chooses the
    spread head, which predicts the concentration: with ``released`` the head and its start are those of that code; with
    ``corrected`` the concentration starts at D (the embedding size), the variance of normals at 2/D.
    """

    name = "vmf_fl"
    summary = "vMF (or normal) embedding; softmax over classes with the image's concentration as its scale"
    paper = Paper(
        title="Probabilistic Embeddings Revisited (the public code; not in the paper)",
        venue="2022",
        arxiv="2202.06768",
    )
    deviations = ("the concentration starts at D, the variance at 2/D (PER's code: 1)", SpreadHead.DEVIATION)
    published = (PER("vmfmm"),)
    released_behaviour = (RELEASED_HEAD,)

    class Params(SpreadParams):
        """Hyper-parameter of vMF-FL: the distribution of an embedding, ``vmf`` or ``normal``.

        The network predicts the scale of the softmax, so none is tuned.
        """

        distribution: Literal["normal", "vmf"] = "vmf"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: cross-entropy over the likelihoods of the class weights."""
        return LikelihoodClassifier(num_classes, dim)
