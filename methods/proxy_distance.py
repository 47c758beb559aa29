"""Six closed-form distances between images and proxy distributions, from the EL-nivMF paper (its Fig. 5).

Cross-entropy of -d / t with d one of: cosine, l2, nivmf (point against nivMF), el_vmf (expected likelihood of two
vMFs), b_vmf (Bhattacharyya), kl_vmf (Kullback-Leibler).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from . import norm_concentration
from ._base import Paper, register
from .distributions.von_mises_fisher import VonMisesFisher
from .nivmf_losses import negative_distances
from .published import NivmfScripts


class DistanceLoss(norm_concentration.DistributionProxies):
    """Cross-entropy of the logits -d / t, with d a closed-form distance of image and class proxy.

    The module contains the proxies and the temperature t; ``released`` computes what the public code of the EL-nivMF
    paper does (Kirchhof et al. 2022).
    """

    def __init__(self, num_classes: int, dim: int, params: ProxyDistance.Params, released: bool) -> None:
        super().__init__(num_classes, dim, params, vector=params.distance == "nivmf", released=released)
        self.distance, self.normalizer = params.distance, params.normalizer

    def logits(self, distribution: VonMisesFisher) -> Tensor:
        """Logits ``[B, C]``: the negative distances of B images and C proxies, divided by the temperature."""
        raw = distribution.loc * distribution.concentration.unsqueeze(-1)
        loc, concentration, temperature = self.parameters_as(raw)
        found = negative_distances(self.distance, raw, loc, concentration, self.normalizer, self.released)
        return found / temperature


@register
class ProxyDistance(norm_concentration.DistributionProxyMethod):
    """Proxy distance: vMF embeddings compared with proxies by a closed-form distance of the EL-nivMF paper.

    The parameter ``form`` chooses: ``corrected`` follows that paper (Kirchhof et al. 2022),
    ``released`` its public code.
    """

    name = "proxy_distance"
    summary = "von Mises-Fisher images against proxies by cosine, L2, nivMF, EL-vMF, B-vMF or KL-vMF distance"
    paper = Paper(
        title="A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning",
        venue="ECCV 2022",
        arxiv="2207.03784",
        equations="Section 4, Eq. 29-39",
    )
    published = (
        NivmfScripts(
            norm_concentration.from_scripts,
            {
                "Cos": {"distance": "cosine"},
                "L2": {"distance": "l2"},
                "nivMF point": {"distance": "nivmf"},
                "EL-vMF": {"distance": "el_vmf"},
                "B-vMF": {"distance": "b_vmf"},
                "KL-vMF": {"distance": "kl_vmf"},
            },
            released_only=True,
        ),
    )
    deviations = norm_concentration.PROXY_DEVIATIONS
    released_behaviour = (
        "quadratic fit of the normaliser (nivmf and kl_vmf: always that of D = 512)",
        "kl_vmf: the sign is turned, so that the loss pushes images away from their class, and A(k) is left out",
        "concentrations and temperature are raw numbers: the one counts as 0.1 below that, the other may cross zero",
        "proxies start scaled by the concentration (start=scaled); scalar concentrations start at their lengths",
    )

    class Params(norm_concentration.NormConcentrationParams):
        """Hyper-parameters: those of the proxies, the distance and its normaliser (:func:`negative_distances`)."""

        distance: Literal["cosine", "l2", "nivmf", "el_vmf", "b_vmf", "kl_vmf"] = "el_vmf"
        normalizer: Literal["heuristic", "exact", "none"] = "heuristic"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: the proxies and the cross-entropy of negative distances."""
        return DistanceLoss(num_classes, dim, self.params, self.released)
