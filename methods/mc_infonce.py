"""MCInfoNCE: Monte-Carlo InfoNCE (Kirchhof, Kasneci and Oh, ICML 2023).

An image is vMF(mu, k) with a learned concentration k. With an image x of the same class, x+, and the M images of other
classes in the batch, x-_m,

    L(x, x+) = -log E exp(kappa z.z+) / (exp(kappa z.z+) + sum_m exp(kappa z.z-_m)),
    z ~ q(z | x), z+ ~ q(z | x+), z-_m ~ q(z | x-_m),

and the loss is the mean over all ordered pairs (x, x+) of the batch. The expectation, inside the logarithm, is a mean
over K joint draws of the whole batch. In the paper the denominator is divided by M, which adds the constant -log M.
For k -> infinity the draws are the modes, and L is InfoNCE. Retrieval compares modes by cosine, as the authors do.
"""

from __future__ import annotations

import math

from pydantic import Field
from torch import Tensor, nn

from ._base import MethodParams, Paper, register, tuned
from .distributions.von_mises_fisher import VonMisesFisher
from .heads import positive_from_raw
from .learned_spread import SpreadMethod
from .pair_likelihoods import pair_log_likelihoods


class MonteCarloInfoNCE(nn.Module):
    """Loss MCInfoNCE: InfoNCE over the genuine pairs of a batch, its likelihood averaged over ``samples`` joint draws.

    ``kappa`` is the concentration of latent positives around their anchor, the inverse temperature of InfoNCE.
    """

    def __init__(self, kappa: float, samples: int) -> None:
        super().__init__()
        self.kappa, self.samples = kappa, samples

    def pair_losses(self, draws: Tensor, labels: Tensor) -> Tensor:
        """Losses ``[P]`` of ordered pairs of one class, in row-major order, from joint draws ``[K, B, D]``."""
        log_likelihood = pair_log_likelihoods(self.kappa * draws @ draws.mT, labels)
        return math.log(len(draws)) - log_likelihood.logsumexp(0)

    def forward(self, distribution: VonMisesFisher, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``, at least two of them of one class."""
        losses = self.pair_losses(distribution.rsample((self.samples,)), labels)
        if not len(losses):
            raise ValueError("MCInfoNCE needs batches with at least two images of some class")
        return losses.mean()


@register
class McInfoNCE(SpreadMethod):
    """MCInfoNCE as a method: von Mises-Fisher embeddings trained by InfoNCE on their draws, without a classifier."""

    name = "mc_infonce"
    summary = "von Mises-Fisher embedding; InfoNCE of draws, genuine pairs of the batch, end to end, no classifier"
    paper = Paper(
        title="Probabilistic Contrastive Learning Recovers the Correct Aleatoric Uncertainty of Ambiguous Inputs",
        venue="ICML 2023",
        arxiv="2302.02865",
        equations="the loss MCInfoNCE",
    )
    deviations = (
        "supervised: x+ is each other image of the class in the batch, x-_m all images of other classes; every pair has"
        " a loss of its own and their mean is taken (the paper: one x+ per x; URL's code: one sum over all x+)",
        "the constant -log M is left out; the authors' code divides only the sum over x-_m by M, so that x+ weighs as"
        " much as all of them (docs/footguns.md)",
        "K = 16 draws, the default of URL's code (the authors' scripts: 128 and 512), by an exact sampler",
        "kappa is fixed, as in the authors' scripts (URL's code trains it), at 16, which their README recommends; the"
        " range contains their 16 to 64 and URL's 50 and 52",
        "a head gives the concentration, trained along with the means, as in URL (the authors' scripts: a network of"
        " its own or the norm of the embedding; first the means, then the concentrations)",
        "the head has the hidden layers F/2 and F/4 of every method here (URL: three of width 1024), and its last layer"
        " starts small",
        "concentrations start at image_concentration * D, mean resultant length 0.62, at any D (the authors' scripts:"
        " 16 to 64 at D = 8 and 10; URL: 1000)",
        "as everywhere here, from D = 64 on the gradient in a concentration follows the accepted proposal only, 1.2 %"
        " too small or less",
    )
    repository = ""

    class Params(MethodParams):
        """Hyper-parameters: those of :class:`MonteCarloInfoNCE`, and the initial concentration of images over D."""

        kappa: float = tuned(16.0, 4.0, 64.0, log=True, gt=0)
        image_concentration: float = tuned(1.0, 0.1, 10.0, log=True, gt=0)
        samples: int = Field(16, ge=1)

    def distribution(self, raw: Tensor, spread: Tensor | None) -> VonMisesFisher:
        """Embedding distribution vMF(raw/|raw|, k), with k mapped from ``spread [B, 1]``."""
        assert spread is not None
        start = self.params.image_concentration * raw.shape[-1]
        return VonMisesFisher(raw, start * positive_from_raw(spread.squeeze(-1)), validate_args=False)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module, which has no trained parameters."""
        return MonteCarloInfoNCE(self.params.kappa, self.params.samples)
