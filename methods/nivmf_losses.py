"""Logits of the EL-nivMF paper (Kirchhof et al., ECCV 2022), and its loss by expected likelihood."""

from __future__ import annotations

import math
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .distributions.arrays import rows_of
from .distributions.bessel import vmf_log_normalizer, vmf_mean_resultant_length
from .distributions.non_isotropic import nivmf_log_prob
from .distributions.von_mises_fisher import VonMisesFisher, released_rsample
from .norm_concentration import DistributionProxies, NormConcentrationParams

EL_NIVMF_RELEASED = (
    "K is not applied to the draws, which leaves isotropic vMF proxies, so normalizer has no effect",
    "draws come from the faulty sampler",
    "the temperature is inside the mean over draws, in effect a maximum",
    "quadratic fit of the normaliser, made for D = 128 and 512; any other D gets that of 512",
    "concentrations and temperature are raw numbers: the one counts as 0.1 below that, the other may cross zero",
    "proxies start scaled by the concentration (start=scaled)",
)
"""Differences between the public code of EL-nivMF and its equations."""


def quadratic_log_normalizer(k: Tensor, dim: int) -> Tensor:
    """Quadratic fit of the vMF log normaliser log C(k) from the EL-nivMF paper (Kirchhof et al. 2022).

    It was made for k in [10, 50] and D = 128 and 512; any other D gets the fit of 512.
    """
    if dim == 128:
        return 127.0 - 0.01909 * k - 0.003355 * k.square()
    return 868.0 - 0.0002662 * k - 0.0009685 * k.square()


def _quadratic_512(k: Tensor, dim: int) -> Tensor:
    return quadratic_log_normalizer(k, 512)


def el_nivmf_logits(
    draws: Tensor, loc: Tensor, concentration: Tensor, temperature: Tensor, normalizer: str, released: bool
) -> Tensor:
    """Logits of EL-nivMF, ``[B, C]``: (1/t) log mean_n rho_c(z_n) for the draws z_n of an image and proxy c.

    The mean estimates the expected likelihood of the image under the proxy. The proxies are non-isotropic vMFs with
    densities rho_c, each with a diagonal matrix K (Kirchhof et al. 2022, Eq. 4-6).

    Args:
        draws: Unit vectors ``[N, B, D]``, N draws per image.
        loc: Directions of the proxies ``[C, D]``, unit vectors.
        concentration: Diagonals of K ``[C, D]``, positive, one per proxy.
        temperature: Temperature t of the softmax.
        normalizer: Normaliser of the proxies' densities: ``heuristic`` (the paper's), ``exact`` or ``none``, see
            :func:`nivmf_log_prob`.
        released: Compute what the public code does: K is not applied to the draws, which leaves isotropic vMFs; the
            normaliser is a quadratic fit; the temperature is inside, log mean_n rho_c(z_n)^{1/t}, as in the paper's
            Algorithm 1: at a small t the draw of highest density dominates.
    """
    if released:
        stretched = concentration * loc
        kt = stretched.square().sum(-1).sqrt()
        log_rho = draws @ stretched.mT + quadratic_log_normalizer(kt, loc.shape[-1])
        log_rho = log_rho + concentration.log().sum(-1) - kt.log()
        return torch.logsumexp(log_rho / temperature, 0) - math.log(len(draws))
    log_rho = nivmf_log_prob(draws, loc, concentration, normalizer)
    return (torch.logsumexp(log_rho, 0) - math.log(len(draws))) / temperature


def negative_distances(
    distance: str, raw: Tensor, loc: Tensor, concentration: Tensor, normalizer: str, released: bool
) -> Tensor:
    """One of the six closed-form distances of the EL-nivMF paper (Kirchhof et al. 2022), times -1.

    Args:
        distance: ``cosine``, ``l2``, ``nivmf`` (point against non-isotropic vMF), or of two vMFs ``el_vmf`` (expected
            likelihood), ``b_vmf`` (Bhattacharyya) or ``kl_vmf`` (Kullback-Leibler divergence KL(image || proxy)).
        raw: Raw embeddings ``[B, D]``; their norm is the concentration of the image.
        loc: Directions of the proxies ``[C, D]``, unit vectors.
        concentration: Concentrations of the proxies ``[C]``, or ``[C, D]`` for ``nivmf``.
        normalizer: Normaliser of ``nivmf``: ``heuristic`` (the paper's), ``exact`` or ``none``, see
            :func:`nivmf_log_prob`.
        released: Compute what the public code does: a quadratic fit replaces the normaliser, and the KL has the
            opposite sign and lacks the factor of the mean resultant length.

    Returns:
        Negative distances ``[B, C]`` of images and proxies.
    """
    dim = raw.shape[-1]
    unit = F.normalize(raw, dim=-1)
    cosine = unit @ loc.mT
    if distance == "cosine":
        return cosine
    if distance == "nivmf":
        log_c = _quadratic_512 if released else vmf_log_normalizer
        return nivmf_log_prob(unit, loc, concentration, normalizer, log_c)
    k_image = raw.square().sum(-1).clamp_min(1e-24).sqrt().unsqueeze(1)
    if distance == "l2":
        return -(concentration.square() + k_image.square() - 2.0 * concentration * k_image * cosine)
    if distance == "kl_vmf":
        if released:
            log_ratio = _quadratic_512(k_image, dim) - _quadratic_512(concentration, dim)
            return log_ratio + k_image - concentration * cosine
        log_ratio = vmf_log_normalizer(k_image, dim) - vmf_log_normalizer(concentration, dim)
        return -(log_ratio + vmf_mean_resultant_length(k_image, dim) * (k_image - concentration * cosine))
    log_c = quadratic_log_normalizer if released else vmf_log_normalizer
    order = 1.0 if distance == "el_vmf" else 0.5
    squared = k_image.square() + concentration.square() + 2.0 * k_image * concentration * cosine
    joint = log_c(order * squared.clamp_min(1e-24).sqrt(), dim)
    return -(joint - order * (log_c(k_image, dim) + log_c(concentration, dim)))


class ElNivmfParams(NormConcentrationParams):
    """Hyper-parameters of EL-nivMF (Kirchhof et al. 2022): those of its proxies, draws per image and normaliser.

    The normaliser ``heuristic`` is the paper's; only ``exact`` makes the proxies' densities integrate to one; ``none``
    leaves out the factor for the stretch of the axes.
    """

    samples: int = 5
    normalizer: Literal["heuristic", "exact", "none"] = "heuristic"


class ElNivmfLoss(DistributionProxies):
    """Loss of EL-nivMF: cross-entropy of expected likelihoods under non-isotropic vMF proxies, which it contains.

    ``released`` computes what the public code of the paper does (Kirchhof et al. 2022).
    """

    def __init__(self, num_classes: int, dim: int, params: ElNivmfParams, released: bool) -> None:
        super().__init__(num_classes, dim, params, vector=True, released=released)
        self.samples, self.normalizer = params.samples, params.normalizer

    def logits(self, distribution: VonMisesFisher) -> Tensor:
        """Logits ``[B, C]`` from fresh draws: log expected likelihoods under the proxies, divided by the temperature.

        With ``released`` the temperature is inside the mean over draws. All proxies see the same draws of an image, so
        the differences of its logits are less noisy.
        """
        if self.released:
            draws = torch.stack([released_rsample(distribution) for _ in range(self.samples)])
        else:
            draws = distribution.rsample((self.samples,))
        loc, concentration, temperature = self.parameters_as(draws)
        return el_nivmf_logits(draws, loc, concentration, temperature, self.normalizer, self.released)

    def class_logits(self, distribution: VonMisesFisher) -> Tensor:
        """Logits ``[B, C]`` in float64, from the same random numbers for every image, for confidences."""
        loc, found = distribution.loc, []
        with torch.random.fork_rng(devices=[loc.device] if loc.is_cuda else []):
            for row in torch.arange(len(loc), device=loc.device).split(1):
                torch.manual_seed(0)
                found.append(super().class_logits(cast(VonMisesFisher, rows_of(distribution, row))))
        return torch.cat(found)
