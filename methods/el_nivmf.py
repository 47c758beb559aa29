"""EL-nivMF (Kirchhof et al., ECCV 2022): expected likelihood of image vMFs under non-isotropic vMF proxies.

Image: vMF(z/|z|, |z|) of its raw embedding z. Proxy: nivMF(mu_c, K_c), K_c diagonal. With draws z_n of the image,

    l_c = (1/t) log (1/N) sum_n rho_c(z_n),   L = cross-entropy of l
"""

from __future__ import annotations

from torch import nn

from ._base import Paper, register
from .nivmf_losses import EL_NIVMF_RELEASED, ElNivmfLoss, ElNivmfParams
from .norm_concentration import PROXY_DEVIATIONS, DistributionProxyMethod, from_scripts
from .published import NivmfScripts


@register
class ElNivmf(DistributionProxyMethod):
    """EL-nivMF: vMF embeddings compared with non-isotropic vMF proxies by expected likelihood (Kirchhof et al. 2022).

    The parameter ``form`` chooses: ``corrected`` follows that paper, ``released`` its public
    code.
    """

    name = "el_nivmf"
    version = 2
    summary = "von Mises-Fisher images, non-isotropic vMF proxies, expected likelihood by sampling; end to end"
    paper = Paper(
        title="A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning",
        venue="ECCV 2022",
        arxiv="2207.03784",
        equations="Eq. 4-6",
    )
    published = (NivmfScripts(from_scripts, {"EL-nivMF": {}}, released_only=True),)
    deviations = PROXY_DEVIATIONS
    released_behaviour = EL_NIVMF_RELEASED

    class Params(ElNivmfParams):
        """Hyper-parameters of EL-nivMF, the same as :class:`ElNivmfParams`.

        They are the initial values and learning rates of the proxies, the draws per image and the proxies' normaliser.
        """

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: non-isotropic vMF proxies and the cross-entropy of expected likelihoods."""
        return ElNivmfLoss(num_classes, dim, self.params, self.released)
