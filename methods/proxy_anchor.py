"""Proxy-Anchor (Kim et al., CVPR 2020).

With s_ic the cosine of sample i and proxy c, P+ the classes of the batch and P all classes:

    L = 1/|P+| sum_{c in P+} log(1 + sum_{y_i = c} exp(-a (s_ic - m)))
        + 1/|P| sum_{c in P} log(1 + sum_{y_i != c} exp(a (s_ic + m)))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from .proxies import Proxies, proxy_anchor_loss


class ProxyAnchorLoss(Proxies):
    """Proxy-Anchor loss with its proxies."""

    def __init__(self, num_classes: int, dim: int, scale: float, margin: float, released: bool = False) -> None:
        super().__init__(num_classes, dim, scale)
        self.margin, self.released = margin, released

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch."""
        cosines = self.cosines(distribution.mean)
        return proxy_anchor_loss(cosines, labels, self.scale, self.margin, over_samples=self.released)


@register
class ProxyAnchor(Method):
    """Deterministic embedding; each proxy sees all samples of a batch."""

    name = "proxy_anchor"
    summary = "deterministic; proxies pull and push all samples of a batch, hard ones most"
    paper = Paper(
        title="Proxy Anchor Loss for Deep Metric Learning",
        venue="CVPR 2020",
        arxiv="2003.13911",
        equations="Eq. 4",
    )
    in_scripts: ClassVar = {"ProxyAnchor": {}}
    fidelities = ("corrected", "released")
    released_behaviour = ("the positive term is averaged over samples, not over classes (EL-nivMF and NIR code)",)

    class Params(MethodParams):
        """Scale and margin."""

        scale: float = tuned(32.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.1, 0.0, 0.5, ge=0, le=2.0)

    @classmethod
    def from_published(cls, values: dict[str, float], variant: str) -> dict[str, Any]:
        """PER's margin is the whole gap, twice the delta of the paper."""
        return {"scale": values["scale"], "margin": values["margin"] / 2}

    @classmethod
    def from_script(cls, values: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The scripts leave their code's defaults: scale 32, margin 0.1, proxies at 2000 times the rate."""
        return {"scale": 32.0, "margin": 0.1}, {"lr_objective": 0.02}

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Proxies and loss."""
        return ProxyAnchorLoss(num_classes, dim, self.params.scale, self.params.margin, self.released)
