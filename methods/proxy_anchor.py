"""Proxy-Anchor (Kim et al., CVPR 2020).

With s_ic the cosine of sample i and proxy c, P+ the classes of the batch and P all classes:

    L = 1/|P+| sum_{c in P+} log(1 + sum_{y_i = c} exp(-a (s_ic - m)))
        + 1/|P| sum_{c in P} log(1 + sum_{y_i != c} exp(a (s_ic + m)))
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from ._base import Method, MethodParams, Paper, register, tuned
from .proxies import ProxyAnchorLoss
from .published import PER, NivmfScripts


@register
class ProxyAnchor(Method):
    """Proxy-Anchor as a method: deterministic embeddings; each proxy pulls and pushes all samples of a batch.

    The parameter ``form`` chooses: ``corrected`` follows the paper (Kim et al. 2020),
    ``released_per`` the public code of Probabilistic Embeddings Revisited, and ``released_el`` that of EL-nivMF
    (Kirchhof et al. 2022) and NIR (Roth et al. 2022).
    """

    name = "proxy_anchor"
    summary = "deterministic; proxies pull and push all samples of a batch, hard ones most"
    paper = Paper(
        title="Proxy Anchor Loss for Deep Metric Learning",
        venue="CVPR 2020",
        arxiv="2003.13911",
        equations="Eq. 4",
    )
    published = (
        # PER's margin is the whole gap, twice the delta of the paper.
        PER("proxy-anchor", lambda values: {"scale": values["scale"], "margin": values["margin"] / 2}),
        # Defaults of the scripts' code, which they leave alone; proxies learn at 2000 times the rate.
        NivmfScripts(
            lambda values: ({"scale": 32.0, "margin": 0.1, "start": "normal"}, {"lr_objective": 0.02}),
            {"ProxyAnchor": {}},
        ),
    )
    released_behaviour = (
        "released_per (PER's code): as corrected, the positive term is averaged over the classes of the batch",
        "released_el (EL-nivMF and NIR code): the positive term is averaged over samples, not over classes; proxies"
        " start at normal draws of variance 1/64 (start=normal)",
    )
    form_defaults = {"released_el": {"start": "normal"}}  # noqa: RUF012

    class Params(MethodParams):
        """Hyper-parameters of Proxy-Anchor: scale and margin of the cosines, and initialisation of the proxies."""

        scale: float = tuned(32.0, 4.0, 64.0, log=True, gt=0)
        margin: float = tuned(0.1, 0.0, 0.5, ge=0, le=2.0)
        start: Literal["xavier", "normal"] = "xavier"
        form: Literal["corrected", "released_per", "released_el"] = "corrected"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: the class proxies and the Proxy-Anchor loss."""
        p, over_samples = self.params, self.form == "released_el"
        return ProxyAnchorLoss(num_classes, dim, p.scale, p.margin, over_samples, p.start)
