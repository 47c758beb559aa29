"""EL-nivMF (Kirchhof et al., ECCV 2022): expected likelihood of image vMFs under non-isotropic vMF proxies.

Image: vMF(z/|z|, |z|) of its raw embedding z. Proxy: nivMF(mu_c, K_c), K_c diagonal. With draws z_n of the image,

    l_c = (1/t) log (1/N) sum_n rho_c(z_n),   L = cross-entropy of l
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
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

    Args:
        num_classes: C.
        dim: D.
        params: Initial values, and rates over that of the directions.
        vector: One concentration per class and dimension, not one per class.
        released: As in the public code.
    """

    def __init__(
        self, num_classes: int, dim: int, params: NormConcentrationParams, *, vector: bool, released: bool
    ) -> None:
        super().__init__()
        self.released = released
        self.weight = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.weight)
        shape = (num_classes, dim) if vector else (num_classes,)
        start, temperature = params.concentration, params.temperature
        self.raw_concentration = nn.Parameter(torch.full(shape, start if released else math.log(start)))
        self.raw_temperature = nn.Parameter(torch.tensor(temperature if released else math.log(temperature)))
        self.learning_rates = {
            "raw_concentration": ("lr_objective", params.concentration_rate),
            "raw_temperature": ("lr_objective", params.temperature_rate),
        }

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

    def __init__(self, num_classes: int, dim: int, params: ElNivmf.Params, released: bool) -> None:
        super().__init__(num_classes, dim, params, vector=True, released=released)
        self.samples, self.normalizer = params.samples, params.normalizer

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
    published_for_released = True  # their rates are those of raw concentrations and temperatures

    def spread_head(self, in_features: int, dim: int) -> nn.Module | None:
        """The constant alpha."""
        return ScaledNorm()

    def distribution(self, raw: Tensor, spread: Tensor | None) -> Distribution:
        """vMF(raw/|raw|, alpha |raw|)."""
        assert spread is not None
        k = spread.squeeze(-1) * raw.square().sum(-1).clamp_min(1e-12).sqrt()
        return VonMisesFisher(raw, k, validate_args=False)

    @torch.no_grad()
    def initialise(self, model: EmbeddingModel, raw: Tensor, labels: Tensor) -> None:
        """Alpha such that the mean concentration of an image is ``image_concentration`` times D.

        With ``norm_multiplier``, as the public code does instead: the last layer's weight is multiplied, and the
        proxies start at the class means, as long as the concentration.
        """
        assert isinstance(model.spread, ScaledNorm)
        p = self.params
        if not p.norm_multiplier:
            model.spread.alpha.fill_(p.image_concentration * raw.shape[-1] / raw.square().sum(-1).sqrt().mean())
            return
        proxies = model.objective
        assert isinstance(proxies, DistributionProxies)
        sums = torch.zeros_like(proxies.weight).index_add_(0, labels, raw.to(proxies.weight.dtype))
        seen = torch.bincount(labels, minlength=len(sums)) > 0
        proxies.weight[seen] = p.concentration * F.normalize(sums[seen], dim=-1)
        model.mean.weight.mul_(p.norm_multiplier)

    @classmethod
    def from_script(cls, values: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start and rates of the proxies, and what else of a row has a counterpart here."""
        rate = {name: float(values[f"loss_proxyvmf_{name}lrmulti"]) for name in ("proxy", "conc", "temp")}
        params: dict[str, Any] = {
            "concentration": float(values["loss_proxyvmf_concentration"]),
            "temperature": float(values["loss_proxyvmf_temp"]),
            # The scripts set it for every loss; their code heeds it for those of this name.
            "norm_multiplier": float(values["loss_proxyvmf_init_norm_multiplier"])
            if "proxyvmf" in values["loss"]
            else 0.0,
            "concentration_rate": rate["conc"] / rate["proxy"],
            "temperature_rate": rate["temp"] / rate["proxy"],
        }
        renamed = {"samples": ("n_samples", int), "omega": ("guidance_w", float)}
        for ours, (theirs, kind) in renamed.items():
            if ours in cls.Params.model_fields and f"loss_proxyvmf_{theirs}" in values:
                params[ours] = kind(values[f"loss_proxyvmf_{theirs}"])
        return params, {"lr_objective": 1e-5 * rate["proxy"]}

    def confidence(self, distribution: Distribution) -> Tensor | None:
        """Log concentration."""
        return spread_confidence(distribution)


class NormConcentrationParams(MethodParams):
    """Initial concentrations and temperature; the rates of both over ``lr_objective``; the public code's start."""

    image_concentration: float = tuned(1.0, 0.1, 10.0, log=True, gt=0)
    concentration: float = tuned(8.0, 1.0, 64.0, log=True, gt=0)
    temperature: float = tuned(1.0, 0.02, 2.0, log=True, gt=0)
    concentration_rate: float = Field(1.0, gt=0)
    temperature_rate: float = Field(0.1, gt=0)
    norm_multiplier: float = Field(0.0, ge=0)


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
    "proxies start at random directions, not at class means of the untrained network, unless norm_multiplier is set",
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
    in_scripts: ClassVar = {"EL-nivMF": {}}
    deviations = DEVIATIONS
    fidelities = ("corrected", "released")
    released_behaviour = RELEASED

    class Params(NormConcentrationParams):
        """Draws and the proxies' normaliser (``heuristic`` is the paper's, ``exact`` makes them densities)."""

        samples: int = 5
        normalizer: Literal["heuristic", "exact", "none"] = "heuristic"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Proxies and loss."""
        return ElNivmfLoss(num_classes, dim, self.params, self.released)
