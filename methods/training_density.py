"""Free confidences of the training data: how near an embedding is to the training embeddings of its network.

They need the training embeddings and their classes, but no gallery and no label of the image. For a unit embedding z
and N training embeddings of unit length, with the mean m_c of the N_c of class c, and the mean m of all:

    knn_density           mean cosine of z to the 10 nearest training embeddings (after Sun et al., ICML 2022,
                          arXiv:2204.06507, who take the distance to the k-th of normalised features)
    mahalanobis           -min_c (z - m_c)' S^-1 (z - m_c), with one covariance S around the class means
                          (Lee et al., NeurIPS 2018; of unit features: Mueller and Hein, ICML 2025, arXiv:2505.18032)
    relative_mahalanobis  mahalanobis + (z - m)' T^-1 (z - m), with the covariance T around the mean of all
                          (Ren et al., 2021, arXiv:2106.09022)
    vmf_mixture           log sum_c (N_c / N) exp(k cos(z, m_c)), the log density of a mixture of von Mises-Fisher
                          distributions of one concentration k, up to a constant

S and T are shrunk towards a multiple of the identity by the rule of Ledoit and Wolf (2004), so that nothing is tuned.
k has maximum likelihood if each embedding is a draw around the mean direction of the others of its class
(:func:`.concentration_of`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .distributions.von_mises_fisher import concentration_of, cosines_to_others

NEAREST = 10
"""Nearest training embeddings whose cosines are averaged."""

SOUGHT = 2048
"""Most training embeddings among which they are sought: the first ones."""

CLASSES = 1024
"""Most classes whose means are compared with: those of the first embeddings. Covariances are of all that are given."""

EXACT = 16_384
"""Most embeddings whose products are float64; of more they are float32, which takes half the time."""

_ROWS = 1024
"""Embeddings at a time: 8 MiB of products."""

_FLOOR, _SHARE = 1e-12, 1e-10
"""Least variance along an axis, and its least share of the largest: fewer embeddings than axes leave some without."""

_LARGE = 1e4
"""Concentration from which on float32 does not tell the log densities of a mixture apart."""

Rows = Callable[[Tensor], Tensor]
"""Function from positions ``[B]`` to unit embeddings, float64 ``[B, D]``."""


class TrainingDensity:
    """What is kept of N training embeddings of one network to give embeddings their confidences.

    Args:
        rows: Function that gives the embeddings, one or more, which are read twice, some at a time, in an order that is
            as good as random.
        labels: Class labels, ``[N]``.

    Attributes:
        nearest: Training embeddings ``[M, D]`` that are compared with.
        means: Class means ``[C, D]``.
        log_weights: Logarithms of the shares of the classes, ``[C]``.
        mean: Mean of all, ``[D]``.
        within: Matrix W ``[D, D]`` with W W' = S^-1.
        total: Matrix W ``[D, D]`` with W W' = T^-1.
        concentration: Concentration k that the classes share; 0 if no class has two images, or those of a class are no
            nearer to each other than chance.
        peak: Log density at the mode of that concentration, above the uniform one.
    """

    def __init__(self, rows: Rows, labels: Tensor) -> None:
        places = torch.arange(len(labels))
        self.nearest = rows(places[:SOUGHT])
        count, dim = len(labels), self.nearest.shape[1]
        _, classes, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
        sums = torch.zeros(len(sizes), dim, dtype=torch.float64)
        moment = torch.zeros(dim, dim, dtype=torch.float64)
        for part in places.split(_ROWS):
            z = rows(part)
            sums.index_add_(0, classes[part], z)
            moment += z.mT @ z
        means, self.mean = sums / sizes[:, None], sums.sum(0) / count
        fourth, cosines = torch.zeros(2, dtype=torch.float64), torch.empty(count, dtype=torch.float64)
        for part in places.split(_ROWS):
            z, own = rows(part), classes[part]
            around = torch.stack([z - means[own], z - self.mean])
            fourth += around.square().sum(-1).square().sum(-1)
            cosines[part] = cosines_to_others(z, sums[own])
        within = moment - means.mT @ sums
        total = moment - count * torch.outer(self.mean, self.mean)
        first = torch.full_like(sizes, count).scatter_reduce(0, classes, places, "amin")
        shown = first.argsort()[:CLASSES]
        paired = sizes[classes] > 1
        self.concentration, self.peak = concentration_of(cosines[paired], dim) if dim > 1 else (0.0, 0.0)
        self.means, self.log_weights = means[shown], (sizes[shown] / sizes[shown].sum()).double().log()
        self.within, self.total = (
            _whitening(scatter / count, power / count, count) for scatter, power in zip((within, total), fourth)
        )

    def confidences(self, rows: Rows, count: int) -> dict[str, Tensor]:
        """The four confidences of N embeddings by name, float64 ``[N]``, higher = nearer to the training data."""
        names = ("knn_density", "mahalanobis", "relative_mahalanobis", "vmf_mixture")
        # Filled in place: small results between large blocks would keep the memory of the blocks from being reused.
        knn, mahalanobis, relative, mixture = (torch.empty(count, dtype=torch.float64) for _ in names)
        products = torch.float64 if count <= EXACT else torch.float32
        white = self.means @ self.within
        to_white, offset = white.mT.to(products), white.square().sum(1).to(products) / 2
        to_nearest, weights = self.nearest.mT.to(products), self.log_weights.to(products)
        finer = torch.float64 if self.concentration > _LARGE else products
        to_directions = (self.concentration * F.normalize(self.means, dim=1)).mT.to(finer)
        for part in torch.arange(count).split(_ROWS):
            z = rows(part)
            single = z.to(products)
            cosines = (single @ to_nearest).topk(min(NEAREST, len(self.nearest)), 1, sorted=False).values
            knn[part] = cosines.double().mean(1)
            own = z @ self.within
            closest = torch.addmm(offset, own.to(products), to_white, beta=-1).argmax(1)
            distance = (own - white[closest]).square().sum(1)
            mahalanobis[part] = -distance
            relative[part] = ((z - self.mean) @ self.total).square().sum(1) - distance
            mixture[part] = torch.addmm(weights.to(finer), z.to(finer), to_directions).logsumexp(1).double()
        if len(self.means) == 1:  # what is left of equal distances is rounding
            relative.zero_()
        return dict(zip(names, (knn, mahalanobis, relative, mixture)))


def _whitening(covariance: Tensor, fourth: Tensor, count: int) -> Tensor:
    """Matrix W with W W' = C^-1, C the covariance shrunk by Ledoit and Wolf's rule.

    ``fourth`` is the mean fourth power of the lengths of what the covariance ``[D, D]`` is of.
    """
    dim = len(covariance)
    mean = covariance.trace() / dim
    spread = covariance.square().sum() - dim * mean**2
    noise = ((fourth - covariance.square().sum()) / count).clamp_min(0.0)
    share = (noise / spread).clamp_max(1.0) if spread > 0 else 1.0
    variances, axes = torch.linalg.eigh((1.0 - share) * covariance)
    variances = variances + share * mean
    whitened: Tensor = axes / variances.clamp_min(max(_FLOOR, _SHARE * float(variances[-1]))).sqrt()
    return whitened
