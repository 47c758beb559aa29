"""Base of methods whose concentration is the norm of the raw embedding, and the proxies they are compared with.

An image is vMF(z/|z|, alpha |z|) of its raw embedding z. The size of raw embeddings depends on the network, so the
constant alpha is set from the data before training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams, tuned
from .distributions.von_mises_fisher import VonMisesFisher
from .learned_spread import spread_confidence
from .losses import cross_entropies

if TYPE_CHECKING:
    from ._model import EmbeddingModel

PROXY_DEVIATIONS = (
    "alpha scales the norms once at the start (the paper multiplies the weights of the last layer)",
    "concentrations and temperature are exponentials, so neither can die or change sign",
    "proxies start at random directions, not at class means of the untrained network, unless start=class_means; these"
    " come from one epoch of training batches (the public code: all training images under the test transform)",
)
"""Deviations of all methods with :class:`DistributionProxies`."""


class ScaledNorm(nn.Module):
    """Module without trained parameters, in place of a spread head, that gives the constant alpha for every image.

    The concentration of an image is alpha times the norm of its raw embedding. Alpha is 1 until it is set.
    """

    alpha: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("alpha", torch.ones(()))

    def forward(self, features: Tensor) -> Tensor:
        """The constant alpha, repeated to ``[B, 1]`` for features ``[B, F]``."""
        return self.alpha.expand(features.shape[0], 1)


class NormConcentrationMethod(Method):
    """Base of methods that embed an image as vMF(z/|z|, alpha |z|), z its raw embedding, alpha set at the start."""

    def spread_head(self, in_features: int, dim: int) -> nn.Module:
        """Build the module that gives alpha, the constant factor from norms to concentrations."""
        return ScaledNorm()

    def distribution(self, raw: Tensor, spread: Tensor | None) -> VonMisesFisher:
        """Embedding distribution vMF(raw/|raw|, alpha |raw|), with alpha in ``spread [B, 1]``."""
        assert spread is not None
        k = spread.squeeze(-1) * raw.square().sum(-1).clamp_min(1e-12).sqrt()
        return VonMisesFisher(raw, k, validate_args=False)

    def confidence(self, distribution: Distribution) -> Tensor:
        """Confidence ``[B]`` of the embeddings: the log concentration."""
        return spread_confidence(distribution)


class NormConcentrationParams(MethodParams):
    """Hyper-parameters of class proxies that are distributions: initial values and learning rates.

    Attributes:
        image_concentration: Initial mean concentration of the images, divided by the embedding size D.
        concentration: Initial concentration of the proxies.
        temperature: Initial temperature of the softmax over the proxies.
        concentration_rate: Learning rate of concentrations, relative to that of the objective (``lr_objective``).
        temperature_rate: Learning rate of the temperature, relative to that of the objective.
        start: Initial vectors of the proxies. ``xavier``: Xavier normal. ``scaled``: the same times ``concentration``;
            a proxy with one concentration starts with the length of its vector as the concentration (the public
            EL-nivMF code, Kirchhof et al. 2022). ``class_means``: class means of the untrained network's raw
            embeddings, scaled to the length ``concentration`` (the public code with its warm start). Only the
            directions of the vectors enter a loss, but a step of Adam turns a longer vector less: with D = 512, 100
            classes and ``concentration`` 200 the length is 259 for ``scaled``, 1.3 for ``xavier``.
        norm_multiplier: Factor of the weight of the last layer at the start, the public code's way to larger norms; 0
            sets the factor from norms to concentrations from the data instead.
        form: Form of the method, ``corrected`` or ``released``.
    """

    image_concentration: float = tuned(1.0, 0.1, 10.0, log=True, gt=0)
    concentration: float = tuned(8.0, 1.0, 64.0, log=True, gt=0)
    temperature: float = tuned(1.0, 0.02, 2.0, log=True, gt=0)
    concentration_rate: float = Field(1.0, gt=0)
    temperature_rate: float = Field(0.1, gt=0)
    start: Literal["xavier", "scaled", "class_means"] = "xavier"
    norm_multiplier: float = Field(0.0, ge=0)
    form: Literal["corrected", "released"] = "corrected"


class DistributionProxies(nn.Module):
    """Class proxies that are distributions: a direction and one concentration, or (``vector``) one per dimension.

    All proxies share a temperature. Without ``released``, concentration and temperature are exponentials of the trained
    numbers. With ``released`` (as in the public EL-nivMF code, Kirchhof et al. 2022) they are the trained numbers
    themselves: a concentration below 0.1 counts as 0.1 and has no gradient, and the temperature may cross zero.
    """

    def __init__(
        self, num_classes: int, dim: int, params: NormConcentrationParams, *, vector: bool, released: bool
    ) -> None:
        super().__init__()
        self.released = released
        self.weight = nn.Parameter(torch.empty(num_classes, dim))
        scaled, temperature = params.start == "scaled", params.temperature
        nn.init.xavier_normal_(self.weight, gain=params.concentration if scaled else 1.0)
        shape = (num_classes, dim) if vector else (num_classes,)
        concentration = torch.full(shape, params.concentration, dtype=torch.float64)
        if scaled and not vector:
            concentration = self.weight.detach().double().square().sum(-1).sqrt()
        raw = concentration if released else concentration.log()
        self.raw_concentration = nn.Parameter(raw.to(self.weight.dtype))
        self.raw_temperature = nn.Parameter(torch.tensor(temperature if released else math.log(temperature)))
        self.learning_rates = {
            "raw_concentration": ("lr_objective", params.concentration_rate),
            "raw_temperature": ("lr_objective", params.temperature_rate),
        }

    def directions(self) -> Tensor:
        """Directions of the proxies, unit vectors ``[C, D]``."""
        return F.normalize(self.weight, dim=-1)

    def concentration(self) -> Tensor:
        """Concentrations of the proxies, positive: ``[C]``, or ``[C, D]`` with one per dimension."""
        return self.raw_concentration.clamp_min(0.1) if self.released else self.raw_concentration.exp()

    def temperature(self) -> Tensor:
        """Temperature t of the logits, a scalar."""
        return self.raw_temperature if self.released else self.raw_temperature.exp()

    def parameters_as(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Directions, concentrations and temperature in the dtype and on the device of another tensor."""
        return self.directions().to(like), self.concentration().to(like), self.temperature().to(like)

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float]:
        """Cosines ``[B, C]`` of the embeddings' modes to the proxy directions, and the inverse temperature 1/t."""
        mode = distribution.loc if isinstance(distribution, VonMisesFisher) else F.normalize(distribution.mean, dim=-1)
        return mode @ self.directions().mT, float(1.0 / self.temperature().detach())

    def logits(self, distribution: VonMisesFisher) -> Tensor:
        """Logits ``[B, C]`` of the cross-entropy, in the dtype of the distribution; a subclass defines them."""
        raise NotImplementedError

    def class_logits(self, distribution: VonMisesFisher) -> Tensor:
        """Logits ``[B, C]`` for confidences, in float64: at a small temperature they still differ between images."""
        loc, concentration = distribution.loc.double(), distribution.concentration.double()
        return self.logits(VonMisesFisher(loc, concentration, validate_args=False))

    def forward(self, distribution: VonMisesFisher, labels: Tensor) -> Tensor:
        """Scalar loss: mean cross-entropy of a batch of B embeddings with class labels ``[B]``."""
        return cross_entropies(self.logits(distribution), labels).mean()


class DistributionProxyMethod(NormConcentrationMethod):
    """Base of methods that compare images vMF(z/|z|, alpha |z|) with class proxies, :class:`DistributionProxies`."""

    repository = "el"
    form_defaults = {"released": {"start": "scaled"}}  # noqa: RUF012

    @torch.no_grad()
    def initialise(self, model: EmbeddingModel, raw: Tensor, labels: Tensor) -> None:
        """Set alpha, the factor from norms to concentrations, so that images start at the chosen mean concentration.

        That is ``image_concentration`` times the embedding size D. With ``norm_multiplier``, multiply the weight of the
        last layer instead, as the public EL-nivMF code does (Kirchhof et al. 2022). With ``start=class_means``, start
        the proxies at the class means of the raw embeddings; a class without images keeps its random direction.
        """
        assert isinstance(model.spread, ScaledNorm)
        p = self.params
        if p.start == "class_means":
            proxies = model.objective
            assert isinstance(proxies, DistributionProxies)
            sums = torch.zeros_like(proxies.weight).index_add_(0, labels, raw.to(proxies.weight.dtype))
            seen = torch.bincount(labels, minlength=len(sums)) > 0
            proxies.weight[seen] = p.concentration * F.normalize(sums[seen], dim=-1)
        if p.norm_multiplier:
            model.mean.weight.mul_(p.norm_multiplier)
        else:
            model.spread.alpha.fill_(p.image_concentration * raw.shape[-1] / raw.square().sum(-1).sqrt().mean())


def from_scripts(values: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert one setting of the public EL-nivMF and NIR run scripts to hyper-parameters and rates of the objective.

    The scripts are those of Kirchhof et al. 2022 and Roth et al. 2022. Their learning rates apply to the concentrations
    and temperatures themselves, so they suit released forms only; with ``corrected`` the logarithms are trained.
    """
    rate = {name: float(values[f"loss_proxyvmf_{name}lrmulti"]) for name in ("proxy", "conc", "temp")}
    # The scripts ask for both starts whatever the loss; their code heeds them for losses of this name.
    heeded = "proxyvmf" in values["loss"]
    warm = heeded and values.get("loss_proxyvmf_warmstart") == "true"
    params: dict[str, Any] = {
        "concentration": float(values["loss_proxyvmf_concentration"]),
        "temperature": float(values["loss_proxyvmf_temp"]),
        "start": "class_means" if warm else "scaled",
        "norm_multiplier": float(values["loss_proxyvmf_init_norm_multiplier"]) if heeded else 1.0,
        "concentration_rate": rate["conc"] / rate["proxy"],
        "temperature_rate": rate["temp"] / rate["proxy"],
    }
    if "loss_proxyvmf_n_samples" in values:
        params["samples"] = int(values["loss_proxyvmf_n_samples"])
    if "loss_proxyvmf_guidance_w" in values:
        params["omega"] = float(values["loss_proxyvmf_guidance_w"])
    return params, {"lr_objective": 1e-5 * rate["proxy"]}
