"""NIR: non-isotropy regularisation of proxy losses (Roth et al., CVPR 2022).

A conditional flow tau^{-1}(.|rho_y) maps unit embeddings, given their proxy, to a standard normal (Eq. 10, 11):

    NLL_i = 1/2 |tau^{-1}(z_i | rho_{y_i})|^2 - log |det J|,   L = mean_i gamma(NLL_i) + omega L_proxy

Corrected: NLL is a mean over dimensions. As the sum over D dimensions that the public code takes, exp(NLL) and with it
the regulariser's gradient die within the first epoch (docs/public_code.md).

Ablations of Table 4, by parameters: ``gamma``, ``gamma_temperature`` (gamma(x) = exp(x / T)), ``detach_condition``
("No Proxy Backprop"), ``negative_pairs``, ``omega=0``, ``blocks``, ``depth``, ``width``, ``conditioned``. Of "Negative
Pairs" the paper says that the NLL of pairs of different classes is maximised; here, with a class c_i != y_i drawn per
sample,

    L + w mean_i gamma(-NLL(z_i | rho_{c_i}))

Table 5 adds L_proxy of synthetic samples z~_i = tau(zeta_i | rho_{y_i}), zeta_i ~ N(0, I), to L_proxy (``synthetic``):

    generate         proxies learn from them: z~ is detached
    reverse_match    the flow learns from them: proxies are detached, in tau and in L_proxy
    generate_match   both learn: nothing is detached
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.func import functional_call

from ._base import Method, MethodParams, Paper, register, tuned
from .distributions.normal import PointMass
from .flow import ConditionalFlow
from .losses import softplus
from .proxies import ProxyAnchorLoss, ProxyNCALoss, SoftTripleLoss
from .published import NivmfScripts

_LARGEST = 50.0
"""NLLs above it count as it inside the exponential, which would overflow float32 at 88."""


class NirLoss(nn.Module):
    """Loss of NIR: a weighted proxy loss plus the flow's negative log likelihood of embeddings given their proxies.

    NIR is non-isotropy regularisation (Roth et al., CVPR 2022).

    Args:
        proxy_loss: Loss with proxies ``weight [C, D]``, or SoftTriple with its centres ``[C, K, D]``.
        flow: Conditional flow from embeddings to a standard normal latent.
        params: Hyper-parameters of NIR; negative pairs need two classes.
        released: Compute what the public code does: the negative log likelihood is summed over dimensions, not
            averaged, and the noise added to embeddings is uniform, not normal.
    """

    def __init__(self, proxy_loss: nn.Module, flow: ConditionalFlow, params: NIR.Params, released: bool) -> None:
        super().__init__()
        self.learning_rates = {"flow": ("lr", params.flow_rate)}
        self.proxy_loss, self.flow = proxy_loss, flow
        self.params, self.released = params, released
        if params.negative_pairs and len(self.proxies) < 2:
            raise ValueError("negative_pairs needs at least two classes")

    @property
    def proxies(self) -> Tensor:
        """Proxies ``[C, D]`` or centres ``[C, K, D]``, not normalised."""
        weight = self.proxy_loss.weight
        assert isinstance(weight, Tensor)
        return weight

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float]:
        """Cosines ``[B, C]`` of the means to the class proxies, and the scale of the proxy loss's softmax."""
        cosines: tuple[Tensor, float] = self.proxy_loss.class_cosines(distribution)  # type: ignore[operator]
        return cosines

    def condition(self, points: Tensor, labels: Tensor) -> Tensor:
        """Conditions ``[B, D]`` of the flow for points ``[B, D]`` with labels ``[B]``: unit proxies of their classes.

        With several centres per class it is the mean of the class's centres, weighted by the point's softmax shares
        (without their gradient) and scaled to unit length.
        """
        weight = self.proxies
        if weight.dim() == 3:
            assert isinstance(self.proxy_loss, SoftTripleLoss)
            share = self.proxy_loss.assigned(points)[1].detach()
            picked = share[torch.arange(len(labels), device=labels.device), labels].unsqueeze(-1)
            own = (picked * F.normalize(weight, dim=-1)[labels]).sum(1)
        else:
            own = weight[labels]
        own = F.normalize(own, dim=-1)
        return own.detach() if self.params.detach_condition else own

    def negative_log_likelihood(self, unit: Tensor, condition: Tensor) -> Tensor:
        """Negative log likelihood ``[B]`` of unit embeddings under the flow, given conditions: a mean over dimensions.

        In the released form (the public code) it is a sum.
        """
        nll = self.flow.negative_log_likelihood(unit, condition)
        return nll if self.released else nll / unit.shape[1]

    def gamma(self, nll: Tensor) -> Tensor:
        """Scalar regulariser: the mean over a batch of an increasing function of the negative log likelihoods ``[B]``.

        The function is chosen by the hyper-parameter ``gamma``: the exponential, the softplus or the identity.
        """
        if self.params.gamma == "exp":
            # In float64: a sum over dimensions reaches exp(-900) within an epoch.
            exponent = (nll.double() / self.params.gamma_temperature).clamp_max(_LARGEST)
            return exponent.exp().mean().to(nll.dtype)
        return (softplus(nll) if self.params.gamma == "softplus" else nll).mean()

    def regulariser(self, points: Tensor, labels: Tensor) -> Tensor:
        """Regulariser of a batch, a scalar: mean_i gamma(NLL_i), with NLL_i the negative log likelihood of point i.

        If ``negative_pairs`` is positive, a term that lowers the likelihood of points given proxies of other classes is
        added.
        """
        unit = F.normalize(points, dim=-1)
        if self.params.noise:
            unit = self._noisy(unit)
        result = self.gamma(self.negative_log_likelihood(unit, self.condition(points, labels)))
        if self.params.negative_pairs:
            shift = torch.randint(1, len(self.proxies), labels.shape, device=labels.device)
            other = self.condition(points, (labels + shift) % len(self.proxies))
            result = result + self.params.negative_pairs * self.gamma(-self.negative_log_likelihood(unit, other))
        return result

    def _noisy(self, unit: Tensor) -> Tensor:
        if self.released:
            return F.normalize(unit + self.params.noise * torch.rand_like(unit), dim=-1)
        return unit + self.params.noise * torch.randn_like(unit)

    def synthetic_loss(self, points: Tensor, labels: Tensor) -> Tensor:
        """Proxy loss of synthetic samples, a scalar: for each sample of the batch the flow draws one of the same class.

        The hyper-parameter ``synthetic`` says whether the proxies, the flow or both learn from them.
        """
        condition, latent = self.condition(points, labels), torch.randn_like(points)
        flow_alone = self.params.synthetic == "reverse_match"
        with torch.no_grad() if self.params.synthetic == "generate" else nullcontext():
            made = self.flow.inverse(latent, condition.detach() if flow_alone else condition)
        fixed = {name: value.detach() for name, value in self.proxy_loss.named_parameters() if flow_alone}
        loss: Tensor = functional_call(self.proxy_loss, fixed, (PointMass(made), labels))
        return loss

    def forward(self, distribution: Distribution, labels: Tensor) -> Tensor:
        """Scalar loss of B embeddings with class labels ``[B]``: the regulariser plus the weighted proxy loss."""
        base: Tensor = self.proxy_loss(distribution, labels)
        if self.params.synthetic != "none":
            base = base + self.synthetic_loss(distribution.mean, labels)
        return self.regulariser(distribution.mean, labels) + self.params.omega * base


_BASES: Mapping[str, Mapping[str, Any]] = {
    "proxy_anchor": {"scale": 32.0, "margin": 0.1},
    "proxy_nca": {"scale": 32.0, "margin": 0.1},
    "soft_triple": {"scale": 20.0, "margin": 0.01, "centres": 10},
}
"""Constants of the base losses: defaults of the scripts' code, which lacks SoftTriple; that one's are of its own paper
(Qian et al., ICCV 2019) and of NIR's section 4.2, which has 10 centres on CUB and Cars and 2 on SOP."""


def _from_scripts(values: Mapping[str, str], base_loss: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Weight of the proxy loss from a row; the rest are defaults of the scripts' code.

    The scripts run Proxy-Anchor only. The paper did not tune again for the other base losses (section 4.2), so the row
    holds for them too. Options may have the name that they had before (``normflow``).
    """
    options = {name.replace("normflow", "nir"): value for name, value in values.items()}
    params = {
        "base_loss": base_loss,
        **_BASES[base_loss],
        "omega": float(options["loss_nir_w_align"]),
        "start": "normal",
        "blocks": 5,
        "depth": 8,
        "width": 128,
        "flow_rate": float(options.get("loss_nir_lrmulti", 50)),
    }
    if base_loss == "soft_triple" and values["dataset"] == "sop":
        params["centres"] = 2
    return params, {"lr_objective": 0.04}


@register
class NIR(Method):
    """NIR: deterministic embeddings whose residuals around their proxies are regularised by a normalising flow.

    NIR is non-isotropy regularisation. The parameter ``form`` chooses: ``corrected`` follows the paper (Roth et al.,
    CVPR 2022), ``released`` its public code.
    """

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
        "3 blocks, 3 layers, width 64 by default (the paper: 8 blocks of width 128, its code 5 blocks of 8 layers)",
        "a negative log likelihood above 50 counts as 50 in the exponential; an overflow would end the training",
        "the fixed permutations of the flow are drawn by another generator than in the public code",
        "with noise, the noise is normal and the sum is not normalised again, so that the density is one of R^D",
        "the public code has no SoftTriple, negative pairs or synthetic samples and the paper no formulas for these:"
        " the condition on several centres is their assigned mean, the forms of the others are at the head of the file",
    )
    # Their omega is for the sum over dimensions.
    published = tuple(
        NivmfScripts(partial(_from_scripts, base_loss=base), {"ProxyAnchor+NIR": {"base_loss": base}}, True)
        for base in _BASES
    )
    repository = "el"
    released_behaviour = (
        "the negative log likelihood is a sum over dimensions inside the exponential",
        "Proxy-Anchor's positive term is averaged over samples; ProxyNCA counts the own proxy once per sample",
        "proxies start at normal draws of variance 1/64 (start=normal)",
        "noise is uniform in [0, 1) times its size, and the sum is normalised again",
    )
    form_defaults = {"released": {"start": "normal"}}  # noqa: RUF012

    class Params(MethodParams):
        """Hyper-parameters of NIR: the proxy loss, its weight, the flow and the ablations of the paper.

        Attributes:
            base_loss: Proxy loss.
            omega: Weight of the proxy loss.
            scale: Scale of the cosines in the proxy loss.
            margin: Margin of the cosines in the proxy loss.
            centres: Centres per class of SoftTriple.
            start: Where proxies start: Xavier uniform, or normal of variance 1/64; not for SoftTriple's centres.
            gamma: Function gamma of the negative log likelihood of a sample; its mean is the regulariser.
            gamma_temperature: T of gamma(x) = exp(x / T).
            negative_pairs: Weight of a term that lowers the likelihood of samples given proxies of other classes.
            synthetic: Part that learns from a proxy loss of samples drawn from the flow: the proxies (``generate``),
                the flow (``reverse_match``), both (``generate_match``), or no such loss (``none``).
            detach_condition: Whether the proxies get no gradient through the flow.
            noise: Size of the noise added to unit embeddings before the flow: the standard deviation of normal noise,
                in the released form (the public code) the upper end of uniform noise from 0.
            blocks: Number of couplings of the flow.
            depth: Number of linear layers of each of its small networks.
            width: Number of hidden units of these layers.
            conditioned: Couplings that see the proxy: all, or only the one at the start, middle or end.
            flow_rate: Learning rate of the flow, relative to that of the network.
        """

        base_loss: Literal["proxy_anchor", "proxy_nca", "soft_triple"] = "proxy_anchor"
        omega: float = tuned(1.0, 0.01, 10.0, log=True, ge=0)
        scale: float = tuned(32.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.1, 0.0, 0.5, ge=0, le=2.0)
        centres: int = Field(2, ge=1)
        start: Literal["xavier", "normal"] = "xavier"
        gamma: Literal["exp", "softplus", "identity"] = "exp"
        gamma_temperature: float = Field(1.0, gt=0)
        negative_pairs: float = Field(0.0, ge=0)
        synthetic: Literal["none", "generate", "reverse_match", "generate_match"] = "none"
        detach_condition: bool = False
        noise: float = 0.0
        blocks: int = 3
        depth: int = 3
        width: int = 64
        conditioned: Literal["all", "start", "mid", "end"] = "all"
        flow_rate: float = Field(0.1, gt=0)
        form: Literal["corrected", "released"] = "corrected"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: class proxies, the flow conditioned on them, and the loss."""
        p = self.params
        proxy_loss: nn.Module
        if p.base_loss == "proxy_anchor":
            proxy_loss = ProxyAnchorLoss(num_classes, dim, p.scale, p.margin, self.released, p.start)
        elif p.base_loss == "proxy_nca":
            proxy_loss = ProxyNCALoss(num_classes, dim, p.scale, "softplus", p.margin, self.released, p.start)
        else:
            proxy_loss = SoftTripleLoss(num_classes, dim, p.scale, p.margin, p.centres, gamma=0.1, tau=0.2)
        flow = ConditionalFlow(dim, p.blocks, p.depth, p.width, conditioned=p.conditioned)
        return NirLoss(proxy_loss, flow, p, self.released)
