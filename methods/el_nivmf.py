"""EL-nivMF (Kirchhof et al., ECCV 2022): expected likelihood of image vMFs under non-isotropic vMF proxies.

Image: vMF(z/|z|, |z|) of its raw embedding z. Proxy: nivMF(mu_c, K_c), K_c diagonal. With draws z_n of the image,

    l_c = (1/t) log (1/N) sum_n rho_c(z_n),   L = cross-entropy of l
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, Paper, register, tuned
from ._spread import spread_confidence
from .distributions import VonMisesFisher
from .distributions.von_mises_fisher import released_rsample
from .nivmf_losses import el_nivmf_logits
from .vmf_loss import ScaledNorm

if TYPE_CHECKING:
    from ._model import EmbeddingModel


class DistributionProxies(nn.Module):
    """Proxies with a direction, a concentration (one or one per dimension) and a common temperature.

    Corrected: concentration and temperature are exponentials. Released: raw numbers, a concentration below 0.1 counts
    as 0.1 and has no gradient, a temperature may cross zero.
    """

    learning_rates = {  # noqa: RUF012
        "raw_concentration": ("lr_objective", 1.0),
        "raw_temperature": ("lr_objective", 0.1),
    }

    def __init__(
        self, num_classes: int, dim: int, concentration: float, temperature: float, *, vector: bool, released: bool
    ) -> None:
        super().__init__()
        self.released = released
        self.weight = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.weight)
        shape = (num_classes, dim) if vector else (num_classes,)
        start = concentration if released else math.log(concentration)
        self.raw_concentration = nn.Parameter(torch.full(shape, start))
        self.raw_temperature = nn.Parameter(torch.tensor(temperature if released else math.log(temperature)))

    def directions(self) -> Tensor:
        """Unit proxies ``[C, D]``."""
        return F.normalize(self.weight, dim=-1)

    def concentration(self) -> Tensor:
        """``[C]`` or ``[C, D]``, positive."""
        return self.raw_concentration.clamp_min(0.1) if self.released else self.raw_concentration.exp()

    def temperature(self) -> Tensor:
        """t, scalar."""
        return self.raw_temperature if self.released else self.raw_temperature.exp()

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float]:
        """Cosines of the modes to the proxies, and an inverse temperature: the mean concentration over t."""
        mode = distribution.loc if isinstance(distribution, VonMisesFisher) else F.normalize(distribution.mean, dim=-1)
        scale = float((self.concentration().mean() / self.temperature()).detach())
        return mode @ self.directions().mT, scale


class ElNivmfLoss(DistributionProxies):
    """EL-nivMF cross-entropy with its proxies."""

    def __init__(
        self,
        num_classes: int,
        dim: int,
        concentration: float,
        temperature: float,
        samples: int,
        normalizer: str,
        released: bool,
    ) -> None:
        super().__init__(num_classes, dim, concentration, temperature, vector=True, released=released)
        self.samples, self.normalizer = samples, normalizer

    def logits(self, distribution: VonMisesFisher) -> Tensor:
        """``[B, C]``; the same draws of an image meet all proxies, which keeps differences between them quiet."""
        if self.released:
            draws = torch.stack([released_rsample(distribution) for _ in range(self.samples)])
        else:
            draws = distribution.rsample((self.samples,))
        return el_nivmf_logits(
            draws,
            self.directions(),
            self.concentration(),
            self.temperature(),
            normalizer=self.normalizer,
            released=self.released,
        )

    def forward(self, distribution: VonMisesFisher, labels: Tensor) -> Tensor:
        """Scalar loss of a batch."""
        return F.cross_entropy(self.logits(distribution), labels)


class NormConcentrationMethod(Method):
    """A method whose images are vMF(z/|z|, alpha |z|) of their raw embeddings, alpha set once before training."""

    default_confidence = "method"
    warm_start = True

    def spread_head(self, in_features: int, dim: int) -> nn.Module | None:
        """The constant alpha."""
        return ScaledNorm()

    def distribution(self, raw: Tensor, spread: Tensor | None) -> Distribution:
        """vMF(raw/|raw|, alpha |raw|)."""
        assert spread is not None
        k = spread.squeeze(-1) * raw.square().sum(-1).clamp_min(1e-12).sqrt()
        return VonMisesFisher(raw, k, validate_args=False)

    def initialise(self, model: EmbeddingModel, raw: Tensor, labels: Tensor) -> None:
        """Alpha such that the mean concentration of an image is ``image_concentration`` times D."""
        assert isinstance(model.spread, ScaledNorm)
        wanted = self.params.image_concentration * raw.shape[-1]
        model.spread.alpha.fill_(wanted / raw.square().sum(-1).sqrt().mean())

    def confidence(self, distribution: Distribution) -> Tensor | None:
        """Log concentration."""
        return spread_confidence(distribution)


class NormConcentrationParams(MethodParams):
    """Initial concentrations and temperature."""

    image_concentration: float = tuned(1.0, 0.1, 10.0, log=True, gt=0)
    concentration: float = tuned(8.0, 1.0, 64.0, log=True, gt=0)
    temperature: float = tuned(1.0, 0.02, 2.0, log=True, gt=0)


RELEASED = (
    "K is not applied to the draws, which leaves isotropic vMF proxies",
    "draws come from the faulty sampler",
    "the temperature is inside the mean over draws, in effect a maximum",
    "quadratic fit of the normaliser, made for D = 128 and 512",
    "concentrations and temperature are raw numbers, cut off at 0.1 and not at all",
)
DEVIATIONS = (
    "alpha scales the norms once at the start (the paper multiplies the weights of the last layer)",
    "concentrations and temperature are exponentials, so neither can die or change sign",
    "proxies start at random directions, not at class means of the untrained network",
)


@register
class ElNivmf(NormConcentrationMethod):
    """vMF images against non-isotropic vMF proxies by expected likelihood."""

    name = "el_nivmf"
    summary = "von Mises-Fisher images, non-isotropic vMF proxies, expected likelihood by sampling; end to end"
    paper = Paper(
        title="A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning",
        venue="ECCV 2022",
        arxiv="2207.03784",
        equations="Eq. 4-6",
    )
    deviations = DEVIATIONS
    fidelities = ("corrected", "released")
    released_behaviour = RELEASED

    class Params(NormConcentrationParams):
        """Draws and the proxies' normaliser (``heuristic`` is the paper's, ``exact`` makes them densities)."""

        samples: int = 5
        normalizer: Literal["heuristic", "exact", "none"] = "heuristic"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Proxies and loss."""
        p = self.params
        return ElNivmfLoss(num_classes, dim, p.concentration, p.temperature, p.samples, p.normalizer, self.released)
