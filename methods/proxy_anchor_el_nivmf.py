"""EL-nivMF guided by Proxy-Anchor on shared proxy directions (Kirchhof et al., ECCV 2022, Eq. 7).

L = L_EL-nivMF + omega L_ProxyAnchor(mu_c, mu_z)
"""

from __future__ import annotations

from torch import Tensor, nn

from ._base import Paper, register, tuned
from .distributions.von_mises_fisher import VonMisesFisher
from .nivmf_losses import EL_NIVMF_RELEASED, ElNivmfLoss, ElNivmfParams
from .norm_concentration import PROXY_DEVIATIONS, DistributionProxyMethod, from_scripts
from .proxies import proxy_anchor_loss
from .published import NivmfScripts


class GuidedElNivmfLoss(ElNivmfLoss):
    """EL-nivMF loss plus a weighted Proxy-Anchor loss on the same proxy directions (Kirchhof et al. 2022, Eq. 7)."""

    def __init__(self, num_classes: int, dim: int, params: ProxyAnchorElNivmf.Params, released: bool) -> None:
        super().__init__(num_classes, dim, params, released)
        self.omega, self.alpha, self.delta = params.omega, params.alpha, params.delta

    def forward(self, distribution: VonMisesFisher, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``."""
        cosines = distribution.loc @ self.directions().mT
        guide = proxy_anchor_loss(cosines, labels, self.alpha, self.delta, over_samples=self.released)
        return super().forward(distribution, labels) + self.omega * guide


@register
class ProxyAnchorElNivmf(DistributionProxyMethod):
    """Proxy-Anchor + EL-nivMF (expected likelihood under non-isotropic vMF proxies), as a method.

    The parameter ``form`` chooses: ``corrected`` follows the paper (Kirchhof et al. 2022),
    ``released`` its public code.
    """

    name = "proxy_anchor_el_nivmf"
    version = 2
    summary = "EL-nivMF plus Proxy-Anchor on the same proxy directions; end to end"
    paper = Paper(
        title="A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning",
        venue="ECCV 2022",
        arxiv="2207.03784",
        equations="Eq. 7",
    )
    published = (NivmfScripts(from_scripts, {"PANC+EL-nivMF": {}}, released_only=True),)
    deviations = PROXY_DEVIATIONS
    released_behaviour = (*EL_NIVMF_RELEASED, "Proxy-Anchor's positive term is averaged over samples")

    class Params(ElNivmfParams):
        """Hyper-parameters of EL-nivMF, and weight omega, scale alpha and margin delta of the Proxy-Anchor loss."""

        omega: float = tuned(1.0, 0.01, 100.0, log=True, ge=0)
        alpha: float = 32.0
        delta: float = 0.1

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: the shared proxies, and the sum of the EL-nivMF and Proxy-Anchor losses."""
        return GuidedElNivmfLoss(num_classes, dim, self.params, self.released)
