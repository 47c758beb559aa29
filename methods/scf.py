"""SCF: spherical confidence (Li et al., CVPR 2021).

The direction of a trained, frozen classifier becomes the mode of a vMF; a concentration head is trained so that the
fixed unit class weight w_y is likely:

    L = -log vMF(w_y; mu, k) = -k mu.w_y - log C(k),   stationary where A(k) = mu.w_y

The map k = D / phi(r) lies in (0, inf), and for large r it falls like D / r: nothing bounds k away from 0. A head that
collapses there (k = 6e-5 at r = 1e6, D = 64) leaves the mutual likelihood little to rank by: in float64, in which
rankings are made, it still tells cosines apart that differ by 0.001; in PER's float32 all pairs are equal.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from ._base import Paper, register
from .heads import SpreadHead
from .learned_spread import RELEASED_HEAD, SpreadMethod, SpreadParams
from .losses import ClassLikelihood
from .published import PER


@register
class SCF(SpreadMethod):
    """SCF (spherical confidence learning): a concentration head trained on a frozen base model and its class weights.

    The parameter ``form`` chooses: ``corrected`` follows the paper (Li et al. 2021),
    ``released`` the public code of Probabilistic Embeddings Revisited.
    """

    name = "scf"
    summary = "von Mises-Fisher embedding; a concentration head on a frozen base and its class weights"
    paper = Paper(
        title="Spherical Confidence Learning for Face Recognition",
        venue="CVPR 2021",
        equations="Eq. 4-7",
    )
    deviations = (
        "head on pooled features, as in PER (the paper: last feature map)",
        "the unit sphere (the paper's radius 64 shifts the loss by a constant)",
        "the concentration starts at D (PER's code: 1); k = D/phi(r) is positive, but falls like D/r without a bound",
        SpreadHead.DEVIATION,
    )
    scorer = "mls"
    on_base = True
    published = (PER("scl", kinds={"scl-gmm": {"distribution": "normal"}}),)
    trains = ("spread",)
    released_behaviour = (RELEASED_HEAD,)

    class Params(SpreadParams):
        """Hyper-parameter of SCF: the distribution of an embedding, ``vmf`` or ``normal``."""

        distribution: Literal["normal", "vmf"] = "vmf"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: negative log likelihood of the class weights of a trained base model."""
        return ClassLikelihood(base, self.name)
