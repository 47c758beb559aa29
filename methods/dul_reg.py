"""DUL-reg: data uncertainty learning, regression (Chang et al., CVPR 2020).

Starts from a trained classifier whose unit class weights w_c stay fixed. Each image regresses its class weight:

    L = -log p(w_y | x) = |w_y - mu|^2 / (2 s2) + D/2 log s2 + D/2 log 2 pi   (normal)
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Paper, register
from ._spread import SpreadMethod, SpreadParams
from .heads import SpreadHead


class ClassLikelihood(nn.Module):
    """Negative log likelihood of the fixed class weight of each image.

    Args:
        base: Trained objective of the base, with class weights ``weight [C, D]``.
        method: Name of the method, for the error.

    Raises:
        TypeError: If the base has no class weights.
    """

    def __init__(self, base: nn.Module | None, method: str) -> None:
        super().__init__()
        weight = getattr(base, "weight", None)
        if not isinstance(weight, nn.Parameter) or weight.dim() != 2:
            raise TypeError(f"{method} needs a base with one weight per class, such as cosface or arcface")
        # The base module keeps its weights; this is a view of them, not a second copy in the state dict.
        self._weight = [weight]

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch."""
        return -distribution.log_prob(F.normalize(self._weight[0].detach(), dim=-1)[labels]).mean()

    def validation_loss(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """The same for classes that have no weight: each image regresses the mean direction of its class's others."""
        mode = distribution.loc  # type: ignore[attr-defined]
        total = mode.new_zeros(int(labels.max()) + 1, mode.shape[-1]).index_add(0, labels, mode)
        others = torch.bincount(labels)[labels] > 1
        target = F.normalize(total[labels] - mode, dim=-1)
        return -distribution.log_prob(target)[others].mean()


@register
class DulReg(SpreadMethod):
    """Normal (or vMF) embedding regressed to the fixed class weights of a trained base."""

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
    fidelities = ("corrected", "released")
    released_behaviour = ("the head is linear, and the spread starts at s2 = 1 or k = 1",)

    class Params(SpreadParams):
        """Which parts are trained."""

        train: Literal["heads", "variance", "all"] = "heads"

    @classmethod
    def from_published(cls, values: dict[str, float], variant: str) -> dict[str, Any]:
        """PER's rows train everything but the class weights ("-cont")."""
        return {"train": "all"}

    @property
    def trained_parts(self) -> tuple[str, ...]:
        """Mean and variance head; with ``all`` the backbone too, with ``variance`` nothing else."""
        return {"heads": ("mean", "spread"), "variance": ("spread",), "all": ("backbone", "mean", "spread")}[
            self.params.train
        ]

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Likelihood of the class weights."""
        return ClassLikelihood(base, self.name)
