"""NIR: non-isotropy regularisation of proxy losses (Roth et al., CVPR 2022).

A conditional flow tau^{-1}(.|rho_y) maps unit embeddings, given their proxy, to a standard normal:

    NLL_i = 1/2 |tau^{-1}(z_i | rho_{y_i})|^2 - log |det J|,   L = mean_i gamma(NLL_i) + omega L_proxy

Corrected: NLL is a mean over dimensions. As the sum over D dimensions that the public code takes, exp(NLL) and with it
the regulariser's gradient die within the first epoch (``benchmarks/nir_gradient.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from .flow import ConditionalFlow
from .proxies import ProxyAnchorLoss, ProxyNCALoss, SoftTripleLoss
from .published import NivmfScripts

_LARGEST = 50.0
"""NLLs above it count as it inside the exponential, which would overflow float32 at 88."""


class NirLoss(nn.Module):
    """A proxy loss and the likelihood of its embeddings under a flow."""

    def __init__(
        self,
        proxy_loss: nn.Module,
        flow: ConditionalFlow,
        *,
        omega: float,
        gamma: str,
        mean_over_dims: bool,
        detach_condition: bool,
        noise: float,
        flow_rate: float,
    ) -> None:
        super().__init__()
        self.learning_rates = {"flow": ("lr", flow_rate)}
        self.proxy_loss, self.flow = proxy_loss, flow
        self.omega, self.gamma, self.noise = omega, gamma, noise
        self.mean_over_dims, self.detach_condition = mean_over_dims, detach_condition

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float]:
        """Cosines to the classes and their scale, from the proxy loss."""
        cosines: tuple[Tensor, float] = self.proxy_loss.class_cosines(distribution)  # type: ignore[operator]
        return cosines

    def condition(self, points: Tensor, labels: Tensor) -> Tensor:
        """Unit proxy of each sample ``[B, D]``; of several centres their assigned mean, shares detached."""
        weight = self.proxy_loss.weight
        assert isinstance(weight, Tensor)
        if weight.dim() == 3:
            assert isinstance(self.proxy_loss, SoftTripleLoss)
            share = self.proxy_loss.assigned(points)[1].detach()
            picked = share[torch.arange(len(labels)), labels].unsqueeze(-1)
            own = (picked * F.normalize(weight, dim=-1)[labels]).sum(1)
        else:
            own = weight[labels]
        own = F.normalize(own, dim=-1)
        return own.detach() if self.detach_condition else own

    def regulariser(self, points: Tensor, labels: Tensor) -> Tensor:
        """mean_i gamma(NLL_i) of points ``[B, D]``."""
        unit = F.normalize(points, dim=-1)
        if self.noise:
            unit = unit + self.noise * torch.randn_like(unit)
        nll = self.flow.negative_log_likelihood(unit, self.condition(points, labels))
        if self.mean_over_dims:
            nll = nll / points.shape[1]
        if self.gamma == "exp":
            # In float64: a sum over dimensions reaches exp(-900) within an epoch.
            return nll.double().clamp_max(_LARGEST).exp().mean().to(points.dtype)
        return (F.softplus(nll) if self.gamma == "softplus" else nll).mean()

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of a batch."""
        base: Tensor = self.proxy_loss(distribution, labels)
        return self.regulariser(distribution.mean, labels) + self.omega * base


def _from_scripts(values: Mapping[str, str], fields: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Weight of the proxy loss from a row; the rest are defaults of the scripts' code.

    Options may have the name that they had before (``normflow``).
    """
    options = {name.replace("normflow", "nir"): value for name, value in values.items()}
    params = {
        "base_loss": "proxy_anchor",
        "omega": float(options["loss_nir_w_align"]),
        "scale": 32.0,
        "margin": 0.1,
        "blocks": 5,
        "depth": 8,
        "width": 128,
        "flow_rate": float(options.get("loss_nir_lrmulti", 50)),
    }
    return params, {"lr_objective": 0.04}


@register
class NIR(Method):
    """Deterministic embedding whose residuals around the proxies are regularised by a flow."""

    name = "nir"
    summary = "deterministic; a proxy loss plus the likelihood of embeddings under a flow given their proxy"
    paper = Paper(
        title="Non-isotropy Regularization for Proxy-based Deep Metric Learning",
        venue="CVPR 2022",
        arxiv="2203.08547",
        equations="Eq. 7-11",
    )
    deviations = (
        "the negative log likelihood is a mean over dimensions (the paper's sum dies in the first epoch)",
        "omega near 1, because the regulariser does not vanish; the paper's 0.0075 to 0.3 is for the sum",
        "3 blocks, 3 layers, width 64 by default (the paper: 5 blocks, 8 layers, width 128, for D = 512)",
    )
    # Their omega is for the sum over dimensions.
    published = (NivmfScripts(_from_scripts, {"ProxyAnchor+NIR": {}}, released_only=True),)
    fidelities = ("corrected", "released")
    repository = "el"
    released_behaviour = (
        "the negative log likelihood is a sum over dimensions inside the exponential",
        "Proxy-Anchor's positive term is averaged over samples; ProxyNCA counts the own proxy once per sample",
    )

    class Params(MethodParams):
        """Proxy loss and its constants; weight of it; the flow and its rate over ``lr``; the ablations of the paper."""

        base_loss: Literal["proxy_anchor", "proxy_nca", "soft_triple"] = "proxy_anchor"
        omega: float = tuned(1.0, 0.01, 10.0, log=True, ge=0)
        scale: float = tuned(32.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.1, 0.0, 0.5, ge=0, le=2.0)
        gamma: Literal["exp", "softplus", "identity"] = "exp"
        detach_condition: bool = False
        noise: float = 0.0
        blocks: int = 3
        depth: int = 3
        width: int = 64
        conditioned: Literal["all", "start", "mid", "end"] = "all"
        flow_rate: float = Field(0.1, gt=0)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Proxies, flow and loss."""
        p = self.params
        proxy_loss: nn.Module
        if p.base_loss == "proxy_anchor":
            proxy_loss = ProxyAnchorLoss(num_classes, dim, p.scale, p.margin, self.released)
        elif p.base_loss == "proxy_nca":
            proxy_loss = ProxyNCALoss(num_classes, dim, p.scale, "softplus", p.margin, self.released)
        else:
            proxy_loss = SoftTripleLoss(num_classes, dim, p.scale, p.margin, centres=2, gamma=0.1, tau=0.2)
        return NirLoss(
            proxy_loss,
            ConditionalFlow(dim, p.blocks, p.depth, p.width, conditioned=p.conditioned),
            omega=p.omega,
            gamma=p.gamma,
            mean_over_dims=not self.released,
            detach_condition=p.detach_condition,
            noise=p.noise,
            flow_rate=p.flow_rate,
        )
