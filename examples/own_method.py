"""A method of your own in one file: a softmax over cosines with smoothed labels.

Check it, then compare it:

    uv run bench test --method smoothed_softmax --plugin examples/own_method.py
    uv run bench run --method smoothed_softmax,norm_softmax --dataset ndigit --plugin examples/own_method.py
"""

import torch.nn.functional as F
from bench.methods import CosineClassifier, Method, MethodParams, Paper, register, tuned
from torch import Tensor, nn
from torch.distributions import Distribution


class SmoothedCrossEntropy(nn.Module):
    """Cross-entropy of scaled class cosines with smoothed labels.

    Args:
        num_classes: Number of training classes.
        dim: Size of an embedding.
        scale: Factor of the cosines, the inverse temperature.
        smoothing: Probability that is spread evenly over the classes.
    """

    def __init__(self, num_classes: int, dim: int, scale: float, smoothing: float) -> None:
        super().__init__()
        self.classifier = CosineClassifier(num_classes, dim, scale)
        self.smoothing = smoothing

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float | Tensor]:
        """Cosines to the class weights, and their scale: confidences of the classifier are computed from these."""
        return self.classifier.class_cosines(distribution)

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Loss of a batch: a scalar."""
        cosines, scale = self.class_cosines(distribution)
        return F.cross_entropy(scale * cosines, labels, label_smoothing=self.smoothing)


@register
class SmoothedSoftmax(Method):
    """Softmax over cosines with smoothed labels."""

    name = "smoothed_softmax"
    summary = "deterministic; softmax over cosines with smoothed labels"
    paper = Paper(
        title="Rethinking the Inception Architecture for Computer Vision", venue="CVPR 2016", arxiv="1512.00567"
    )

    class Params(MethodParams):
        """Scale and smoothing: each with its default, its search range and its limits."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        smoothing: float = tuned(0.1, 0.0, 0.3, ge=0, lt=1)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """The module that is trained together with the network: ``(distribution, labels) -> loss``."""
        return SmoothedCrossEntropy(num_classes, dim, self.params.scale, self.params.smoothing)
