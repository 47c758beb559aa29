"""A plug-in with mistakes, which a type checker must find through the public names of ``bench.methods``.

Only type checked, never run: mypy reports each ``type: ignore`` here that hides no error.
"""

from bench.methods import CosineClassifier, Method, MethodParams, Paper, tuned
from bench.methods.distributions import PointMass
from bench.methods.scorers import DistributionScorer
from torch import Tensor, nn
from torch.distributions import Distribution
from typing_extensions import override


class Right(Method):
    """A method without mistakes."""

    name = "right"
    summary = "softmax"
    paper = Paper(title="A title", venue="2024")

    class Params(MethodParams):
        """Scale."""

        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)

    @override
    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Cross-entropy."""
        return CosineClassifier(num_classes, dim, self.params.scale)

    @override
    def confidence(self, distribution: Distribution) -> Tensor:
        """Norm."""
        norm: Tensor = distribution.mean.norm(dim=-1)
        return norm


class Wrong(Method):
    """A method with mistakes."""

    name = 3  # type: ignore[assignment]
    summary = "softmax"
    trains = "spread"  # type: ignore[assignment]
    published = ("scl",)  # type: ignore[assignment]

    @override
    def objectve(self, num_classes: int, dim: int) -> nn.Module:  # type: ignore[misc]
        """A name that is not one of a method's."""
        return CosineClassifier(num_classes, dim, "16")  # type: ignore[arg-type]

    @override
    def spread_head(self, in_features: str, dim: int) -> nn.Module:  # type: ignore[override]
        """A parameter of another type."""
        return nn.Linear(8, dim)


def scores(rows: Tensor) -> Tensor:
    """A misspelt method of a public class."""
    return DistributionScorer("cosine", PointMass(rows)).matrx(rows, rows)  # type: ignore[attr-defined, no-any-return]
