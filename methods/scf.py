"""SCF: spherical confidence (Li et al., CVPR 2021).

The direction of a trained, frozen classifier becomes the mode of a vMF; a concentration head is trained so that the
fixed unit class weight w_y is likely:

    L = -log vMF(w_y; mu, k) = -k mu.w_y - log C(k),   stationary where A(k) = mu.w_y
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from ._base import Paper, register
from .heads import SpreadHead
from .learned_spread import RERANKED, SpreadMethod, SpreadParams
from .losses import ClassLikelihood
from .published import PER


@register
class SCF(SpreadMethod):
    """Concentration head on a frozen deterministic base."""

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
        "the concentration starts at D (PER's code: 1), bounded away from 0 by the map 1/k = phi(r)/D",
        SpreadHead.DEVIATION,
    )
    scorer = "mls"
    on_base = True
    published = (PER("scl", kinds={"scl-gmm": {"distribution": "normal"}}),)
    trains = ("spread",)
    fidelities = ("corrected", "released")
    released_behaviour = ("the head is linear, and the concentration starts at 1", RERANKED)

    class Params(SpreadParams):
        """Choice of the distribution."""

        distribution: Literal["normal", "vmf"] = "vmf"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Likelihood of the class weights."""
        return ClassLikelihood(base, self.name)
