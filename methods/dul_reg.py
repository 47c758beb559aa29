"""DUL-reg: data uncertainty learning, regression (Chang et al., CVPR 2020).

Starts from a trained classifier whose unit class weights w_c stay fixed. Each image regresses its class weight:

    L = -log p(w_y | x) = |w_y - mu|^2 / (2 s2) + D/2 log s2 + D/2 log 2 pi   (normal)
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
class DulReg(SpreadMethod):
    """DUL-reg: normal (or vMF) embedding regressed to the fixed class weights of a trained base model.

    DUL is data uncertainty learning. The parameter ``form`` chooses: ``corrected`` follows the paper (Chang et al.
    2020), ``released`` the public code of Probabilistic Embeddings Revisited.
    """

    name = "dul_reg"
    summary = "normal embedding; mean and variance heads regress the class weights of a trained base"
    paper = Paper(
        title="Data Uncertainty Learning in Face Recognition",
        venue="CVPR 2020",
        arxiv="2003.11339",
        equations="Eq. 7-9",
    )
    deviations = (
        "one variance per image (the paper: one per dimension)",
        "train=heads as in the paper; PER's text trains the variance head only, its code the backbone too (train=all)",
        SpreadHead.DEVIATION,
    )
    on_base = True
    # PER's rows train everything but the class weights ("-cont").
    published = (PER("dul-reg", lambda values: {"train": "all"}, {"dul-reg-vmf": {"distribution": "vmf"}}),)
    released_behaviour = (RELEASED_HEAD,)

    class Params(SpreadParams):
        """Hyper-parameters: the distribution of an embedding, and the trained parts.

        ``train`` is ``heads`` (mean and spread), ``variance`` (the spread head only) or ``all`` (the backbone too).
        """

        train: Literal["heads", "variance", "all"] = "heads"

    @property
    def trained_parts(self) -> tuple[str, ...]:
        """Names of the trained parts: both heads, with ``all`` the backbone too, with ``variance`` only ``spread``."""
        return {"heads": ("mean", "spread"), "variance": ("spread",), "all": ("backbone", "mean", "spread")}[
            self.params.train
        ]

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: negative log likelihood of the class weights of a trained base model."""
        return ClassLikelihood(base, self.name)
