"""vMF-loss (Scott et al., ICCV 2021, "von Mises-Fisher Loss: An Exploration of Embedding Geometries").

Image x: vMF(mu_x, k_x) with k_x = alpha |a| of its raw embedding a. Class c: vMF(mu_c, k_c) of a free vector
v_c = k_c mu_c. With z ~ vMF(mu_x, k_x) and the class softmax at inverse temperature beta,

    L = E_z log sum_c E_{w ~ vMF_c} exp(beta w.z) - beta A(k_x) A(k_y) mu_x.mu_y,
    E_{w ~ vMF_c} exp(beta w.z) = C(k_c) / C(|v_c + beta z|),

an upper bound (Jensen) on the expected cross-entropy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution

from ._base import MethodParams, Paper, register, tuned
from .distributions.bessel import (
    log_and_ratio,
    vmf_log_normalizer,
    vmf_log_normalizer_ratio,
    vmf_mean_resultant_length,
)
from .distributions.von_mises_fisher import VonMisesFisher, released_rsample
from .norm_concentration import NormConcentrationMethod, ScaledNorm
from .published import PER

if TYPE_CHECKING:
    from ._model import EmbeddingModel


def surrogate_log_normalizer(k: Tensor, dim: int) -> Tensor:
    """Approximate log normaliser log C(k) of the vMF distribution on the sphere of R^dim, up to a constant.

    It is the closed form of the authors of the vMF-loss (Scott et al., ICCV 2021). Up to the constant it is within 0.1
    nats from dim = 8 (0.11 at dim = 3). Its slope is minus the mean of a lower and an upper bound of the mean resultant
    length A(k).
    """
    low = ((dim - 1) / 2) ** 2 + k.square()
    high = ((dim + 1) / 2) ** 2 + k.square()
    r_low, r_high = low.sqrt(), high.sqrt()
    half = (dim - 1) / 2
    return (dim - 1) / 4 * ((half + r_low).log() + (half + r_high).log()) - 0.5 * (r_low + r_high)


_BLOCK_ELEMENTS, _GPU_BLOCK_ELEMENTS = 1 << 18, 1 << 24
"""Draws times classes worked on at a time: in the cache of a processor, or few and large kernels of a GPU."""


class _MeanLogSum(torch.autograd.Function):
    """Mean over draws z of log sum_c C(k_c) / C(|v_c + beta z|), with its closed-form gradients.

    Draws go through in blocks that stay in the cache and leave nothing behind: autograd would keep half a dozen
    [draws, C] tensors, 0.5 GB on SOP, and walk over them again. With p the softmax over classes and
    q = p A(|v_c + beta z|) / |v_c + beta z|, the gradients are beta q V for z, q^T (V + beta z) - p A(k_c)/k_c V for V
    and q (beta + z.V) for beta.
    """

    @staticmethod
    def forward(ctx: Any, draws: Tensor, weight: Tensor, beta: Tensor) -> Tensor:
        dim = weight.shape[-1]
        on_gpu = beta.device.type != "cpu"
        b: Any = beta.double() if on_gpu else float(beta)  # as a number, it would make the host wait for a GPU
        k_squared = weight.square().sum(-1)
        log_class, ratio_class = log_and_ratio(k_squared, dim)
        grad_draws = torch.empty_like(draws)
        grad_weight = torch.zeros_like(weight)
        share, pull = torch.zeros_like(k_squared), torch.zeros_like(k_squared)
        total, grad_beta = draws.new_zeros((), dtype=torch.float64), draws.new_zeros((), dtype=torch.float64)
        constant = k_squared + b * b
        elements = _BLOCK_ELEMENTS if draws.device.type == "cpu" else _GPU_BLOCK_ELEMENTS
        for rows in torch.arange(len(draws), device=draws.device).split(max(1, elements // len(weight))):
            z = draws[rows]
            inner = z @ weight.mT
            joint = torch.addcmul(constant, inner, beta, value=2.0) if on_gpu else constant.add(inner, alpha=2.0 * b)
            log, ratio = log_and_ratio(joint.clamp_min_(0.0), dim)
            log -= log_class
            top = torch.logsumexp(log, 1, keepdim=True)
            total += top.sum()
            p = log.sub_(top).exp_()
            share += p.sum(0)
            q = p.mul_(ratio)
            pull += q.sum(0)
            grad_draws[rows] = q @ weight
            grad_weight.addmm_(q.mT, z)
            grad_beta += (inner.add_(b).mul_(q)).sum()
        count = len(draws)
        grad_weight.mul_(b).add_((pull - share * ratio_class).unsqueeze(1) * weight)
        ctx.save_for_backward(grad_draws.mul_(b / count), grad_weight.div_(count), (grad_beta / count).to(beta.dtype))
        return (total / count).to(draws.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return tuple(grads[0] * saved for saved in ctx.saved_tensors)


class VmfLoss(nn.Module):
    """The vMF-loss (Scott et al., ICCV 2021) as a module that contains the vMF distributions of the classes.

    Args:
        num_classes: Number C of training classes.
        dim: Embedding size D.
        params: Hyper-parameters of the method.
        released: Compute what the public code of Probabilistic Embeddings Revisited (PER) does: the authors' closed
            form of the normaliser, a faulty sampler, an offset in the loss, and the learning rate of the temperature.
    """

    def __init__(self, num_classes: int, dim: int, params: VmfLossMethod.Params, released: bool) -> None:
        super().__init__()
        self.samples, self.released, self.points = params.samples, released, params.classes == "point"
        self.learning_rates = {} if released else {"log_temperature": ("lr_objective", 0.1)}
        self.log_temperature = nn.Parameter(torch.tensor(math.log(params.temperature)))
        norm = params.class_length * (dim - 1) / (1 - params.class_length**2)
        self.weight = nn.Parameter(torch.randn(num_classes, dim) * (norm / math.sqrt(dim)))

    def class_cosines(self, distribution: Distribution) -> tuple[Tensor, float]:
        """Cosines ``[B, C]`` of the modes to the class modes, and the inverse temperature."""
        assert isinstance(distribution, VonMisesFisher)
        return distribution.loc @ F.normalize(self.weight, dim=-1).mT, float(self.log_temperature.detach().exp())

    def class_logits(self, distribution: VonMisesFisher) -> Tensor:
        """Class logits ``[B, C]`` in float64: log E_w exp(beta w.z) at each image's mean z.

        The expectation is over the distribution of the class; beta is the inverse temperature.
        """
        mean, weight, beta = distribution.mean.double(), self.weight.double(), self.log_temperature.double().exp()
        if self.points:
            return beta * mean @ F.normalize(weight, dim=-1).mT
        log_c = surrogate_log_normalizer if self.released else vmf_log_normalizer
        k_class = weight.square().sum(-1).clamp_min(1e-24).sqrt()
        squared = k_class.square() + beta.square() * mean.square().sum(-1, keepdim=True) + 2.0 * beta * mean @ weight.mT
        joint = squared.clamp_min(1e-24).sqrt()
        return log_c(k_class, distribution.dim) - log_c(joint, distribution.dim)

    def forward(self, distribution: VonMisesFisher, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``."""
        dim, beta = distribution.dim, self.log_temperature.exp()
        k_class = self.weight.square().sum(-1).clamp_min(1e-12).sqrt()
        draws = self._draws(distribution)
        if self.points:
            log_sum = torch.logsumexp(beta * (draws @ F.normalize(self.weight, dim=-1).mT), -1).mean()
        elif self.released or not self.samples:
            # |v_c + beta z| from one matrix product; [K, B, C, D] would not fit in memory.
            squared = k_class.square() + (beta * draws).square().sum(-1, keepdim=True)
            joint = (squared + 2.0 * beta * (draws @ self.weight.mT)).clamp_min(1e-12).sqrt()
            log_c = surrogate_log_normalizer if self.released else vmf_log_normalizer_ratio
            log_sum = torch.logsumexp(log_c(k_class, dim) - log_c(joint, dim), -1).mean()
        else:
            log_sum = _MeanLogSum.apply(draws.reshape(-1, dim), self.weight, beta)
        unit = F.normalize(self.weight, dim=-1)[labels]
        if self.points:
            length = distribution.mean_resultant_length
        else:  # of images and classes in one call, which a GPU does in half as many kernels
            concentrations = torch.cat([distribution.concentration, k_class])
            of_images, of_classes = vmf_mean_resultant_length(concentrations, dim).split([len(labels), len(k_class)])
            length = of_images * of_classes[labels]
        loss = log_sum - (beta * length * (distribution.loc * unit).sum(-1)).mean()
        if self.released and not self.points:
            loss = loss + surrogate_log_normalizer(beta, dim) - vmf_log_normalizer(beta, dim)
        return loss

    def _draws(self, distribution: VonMisesFisher) -> Tensor:
        """Points ``[K, B, D]`` at which the sum over classes is evaluated."""
        if not self.samples:
            return distribution.mean.unsqueeze(0)
        if self.released:
            return released_rsample(distribution, (self.samples,))
        return distribution.rsample((self.samples,))


def _from_per(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters from PER's log scale and its one mean resultant length for images and classes."""
    length = values["kappa_confidence"]
    return {"temperature": math.exp(values["initial_log_scale"]), "image_length": length, "class_length": length}


@register
class VmfLossMethod(NormConcentrationMethod):
    """vMF-loss as a method: vMF images and vMF classes, with the concentration of an image from its norm.

    The parameter ``form`` chooses: ``corrected`` follows the paper (Scott et al. 2021),
    ``released`` the public code of Probabilistic Embeddings Revisited.
    """

    name = "vmf_loss"
    summary = "von Mises-Fisher images and classes, the concentration is the norm; end to end"
    paper = Paper(
        title="von Mises-Fisher Loss: An Exploration of Embedding Geometries for Supervised Learning",
        venue="ICCV 2021",
        arxiv="2103.15718",
        equations="Eq. 5-8",
    )
    deviations = (
        "image_length and class_length set the initial concentrations by their mean resultant lengths (the paper: one"
        " for both); the norm of class vectors is exact, so k starts where it is meant to",
        "the exact normaliser in place of the authors' closed form",
    )
    published = (PER("vmf-loss", _from_per),)
    repository = "per"
    released_behaviour = (
        "draws come from the faulty sampler, the closed form replaces the normaliser",
        "an offset of log-normalisers of the temperature is in the loss and leaks a small gradient into it",
        "the log temperature learns at lr_objective (corrected: 0.1 of it) and decays",
        "alpha comes from the mean coordinate, not from the mean norm, so concentrations start a quarter too high;"
        " ten batches, not an epoch of them, give it",
    )

    class Params(MethodParams):
        """Hyper-parameters of the vMF-loss.

        Attributes:
            temperature: Inverse temperature beta at the start (trained).
            image_length: Mean resultant length of the images at the start.
            class_length: Mean resultant length of the class distributions at the start.
            samples: Draws per image; 0 replaces a draw by its expectation, the mean of the image's distribution.
            classes: Distributions (``vmf``) or points on the sphere (PER's method "vmf-loss-det").
            form: Form of the method, ``corrected`` or ``released``.
        """

        temperature: float = tuned(32.0, 1.0, 64.0, log=True, gt=0)
        image_length: float = tuned(0.6, 0.1, 0.95, gt=0, lt=1)
        class_length: float = tuned(0.4, 0.05, 0.9, gt=0, lt=1)
        samples: int = Field(10, ge=0)
        classes: Literal["vmf", "point"] = "vmf"
        form: Literal["corrected", "released"] = "corrected"

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: the class distributions and the vMF-loss."""
        return VmfLoss(num_classes, dim, self.params, self.released)

    @property
    def warm_start_batches(self) -> int | None:
        """Number of batches whose raw embeddings :meth:`initialise` gets: 10 if released, else None for an epoch's."""
        return 10 if self.released else None

    def initialise(self, model: EmbeddingModel, raw: Tensor, labels: Tensor) -> None:
        """Set the factor from norms to concentrations: images start at the mean resultant length ``image_length``."""
        spread, dim = model.spread, raw.shape[-1]
        assert isinstance(spread, ScaledNorm)
        length = self.params.image_length
        wanted = length * (dim - 1) / (1 - length**2)
        norm = raw.abs().mean() * math.sqrt(dim) if self.released else raw.square().sum(-1).sqrt().mean()
        spread.alpha.fill_(wanted / norm)
