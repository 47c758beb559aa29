"""A loss and a miner of pytorch-metric-learning as a method, with their tuned parameters.

    bench test --method pml_triplet --plugin pml_loss.py
    bench run --method pml_triplet,cosface --dataset ndigit --seeds 5 --trials 15 --plugin pml_loss.py

It needs ``pip install pytorch-metric-learning``. Every method gets the same batches, of as many images of each class as
``MPerClassSampler`` draws: ``--set data.classes_per_batch=32 --set data.images_per_class=4``.
"""

from __future__ import annotations

import torch
from bench.methods import Method, MethodParams, register, tuned
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn
from torch.distributions import Distribution


class Mined(nn.Module):
    """A loss of pytorch-metric-learning on the pairs or triplets that a miner picks from a batch."""

    def __init__(self, loss: nn.Module, miner: nn.Module) -> None:
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Loss of a batch: embeddings ``[B, D]``, which both normalise themselves, and labels ``[B]``."""
        embeddings = distribution.mean
        with torch.no_grad():
            picked = self.miner(embeddings, labels)
        loss: Tensor = self.loss(embeddings, labels, picked)
        return loss


@register
class PMLTriplet(Method):
    """Triplets of semi-hard negatives (Schroff et al. 2015), by pytorch-metric-learning."""

    name = "pml_triplet"
    summary = "deterministic; triplets of semi-hard negatives, by pytorch-metric-learning"

    class Params(MethodParams):
        """The margin of the loss and of the miner."""

        margin: float = tuned(0.2, 0.02, 0.5, gt=0)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss; one with class weights, such as ``losses.ArcFaceLoss``, takes ``num_classes`` and ``dim``."""
        margin = self.params.margin
        return Mined(losses.TripletMarginLoss(margin), miners.TripletMarginMiner(margin, "semihard"))
