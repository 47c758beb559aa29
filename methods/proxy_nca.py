"""ProxyNCA, ProxyNCA++ and the form the NIR paper calls ProxyNCA.

With unit embeddings and unit proxies, s_c = cos(z, p_c) and d_c = |z - p_c|^2 = 2 - 2 s_c:

    original   L = -log exp(-s d_y / 2) / sum_{c != y} exp(-s d_c / 2)
    plusplus   L = -log exp(-s d_y / 2) / sum_c exp(-s d_c / 2)
    softplus   L = log(1 + exp(-a (s_y - m))) + log(1 + sum_{c != y} exp(a (s_c + m)))
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from ._base import Method, MethodParams, Paper, register, tuned
from .proxies import ProxyNCALoss
from .published import PER


@register
class ProxyNCA(Method):
    """ProxyNCA as a method: deterministic embeddings, one proxy per class, each sample compared with all proxies.

    The parameter ``form`` chooses: ``corrected`` follows the paper of the chosen loss, such as
    Teh et al. 2020 for ProxyNCA++; ``released_per`` follows the public code of Probabilistic Embeddings Revisited,
    ``released_el`` that of EL-nivMF (Kirchhof et al. 2022) and NIR (Roth et al. 2022).
    """

    name = "proxy_nca"
    summary = "deterministic; neighbourhood components with one proxy per class (original, ++ or NIR's form)"
    paper = Paper(
        title="ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis",
        venue="ECCV 2020",
        arxiv="2004.01113",
        equations="Eq. 4; original: Movshovitz-Attias et al., ICCV 2017; softplus: Roth et al., CVPR 2022, Eq. 6",
    )
    deviations = (
        "scale is the inverse temperature of the cosine, tuned; ProxyNCA++'s 1/9 on squared distances is scale 18",
    )
    # PER has the original form on squared distances as they are: that is scale 2.
    published = (PER("proxy-nca", lambda values: {"loss": "original", "scale": 2.0, "start": "xavier"}),)
    released_behaviour = (
        "released_per (PER's code): loss=original at scale 2, as corrected",
        "released_el (NIR's code): loss=softplus counts the own proxy once per sample of its class in the batch",
        "released_el: proxies start at normal draws of variance 1/64 (start=normal)",
    )
    form_defaults = {"released_el": {"start": "normal"}}  # noqa: RUF012

    class Params(MethodParams):
        """Hyper-parameters of ProxyNCA: loss, scale, margin and initialisation of the proxies."""

        loss: Literal["plusplus", "original", "softplus"] = "plusplus"
        scale: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        margin: float = 0.1
        start: Literal["xavier", "normal"] = "xavier"
        form: Literal["corrected", "released_per", "released_el"] = "corrected"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: the class proxies and the ProxyNCA loss in the chosen form."""
        p = self.params
        return ProxyNCALoss(num_classes, dim, p.scale, p.loss, p.margin, self.form == "released_el", p.start)
