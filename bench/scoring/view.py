"""Conversion of an embedding set to the object that the tests work on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from ..errors import BadInput
from ..methods._model import norm_confidence
from ..methods.distributions.arrays import rows_of
from ..methods.distributions.normal import DiagonalNormal, IsotropicNormal, PointMass
from ..methods.distributions.von_mises_fisher import VonMisesFisher
from ..methods.learned_spread import spread_confidence
from ..methods.scorers.inner_products import unit_mean
from ..methods.scorers.spec import DistributionScorer
from ..methods.training_density import TrainingDensity
from ..protocols.embeddings import Embeddings, Options, Quality
from ..protocols.retrieval_confidence import random_confidence
from ..seeds import seed_for
from .embedding_set import EmbeddingSet, StoredRows, refuse_zeros

FLAT_NORM, UNIT_NORM = 1e-5, 1e-3
"""Raw embeddings whose norms differ by no more than the first share (float32), or are 1 up to the second (half
precision), were normalised and then rounded: an order by their norms would be an order by rounding errors."""

SMALLEST = 1e-150
"""Squares of smaller numbers lose digits."""


class GivenPoints(PointMass):
    """Embeddings without a spread as points, float64, which are made, and normalised if wanted, when they are read.

    A float64 copy of the whole set would take more memory than all that a search needs.
    """

    array_kind, array_names = "point", ("loc",)

    def __init__(self, rows: StoredRows, normalize: bool) -> None:
        self._stored = rows
        self._divisors: tuple[Tensor, ...] = ()
        if normalize:
            # By the largest entry first: squares of very large or small numbers are not representable.
            # Filled in place: small results between large blocks would keep the memory of the blocks from being reused.
            largest, length = (torch.empty(len(rows), 1, dtype=torch.float64) for _ in range(2))
            start = 0
            for block in map(torch.from_numpy, rows.blocks()):
                here = slice(start, start := start + len(block))
                largest[here] = block.abs().amax(1, keepdim=True)
                length[here] = (block / largest[here]).norm(dim=1, keepdim=True)
            self._divisors = (largest, length)
        Distribution.__init__(self, torch.Size(rows.shape[:1]), torch.Size(rows.shape[1:]), validate_args=False)

    @property
    def loc(self) -> Tensor:  # type: ignore[override]  # an attribute of its base
        """All points, ``[N, D]``."""
        return self.rows_at(torch.arange(len(self._stored))).loc

    def rows_at(self, index: Tensor) -> PointMass:
        """Some of the points, ``[B, D]``; the index is one of positions ``[B]`` or a mask ``[N]``."""
        loc = torch.from_numpy(self._stored[index.numpy()])
        for divisor in self._divisors:
            loc /= divisor[index]
        return PointMass(loc, validate_args=False)


@dataclass(frozen=True)
class UnitRows:
    """Unit embeddings of N images, float64 ``[N, D]``: some by an index of rows, all by a call."""

    images: Distribution

    @property
    def shape(self) -> torch.Size:
        """Number of images and of dimensions."""
        return self.images.batch_shape + self.images.event_shape

    def __getitem__(self, index: Tensor) -> Tensor:
        return unit_mean(rows_of(self.images, index))

    def __call__(self) -> Tensor:
        """All of them."""
        return unit_mean(self.images)


def distribution_of(images: EmbeddingSet, normalize: bool = True) -> Distribution:
    """The embeddings of a set as one batched distribution, float64, batch shape ``[N]``.

    It is a vMF if the set has concentrations, a normal if the set has variances, and else a point mass.

    Raises:
        BadInput: If an embedding that needs a direction is zero, or a vMF would have a single dimension.
    """
    if normalize or images.concentration is not None:
        refuse_zeros("embeddings", images.embeddings)
    points = GivenPoints(images.embeddings, normalize)
    if images.concentration is None and images.variance is None:
        return points
    loc = points.loc
    if images.concentration is not None:
        if loc.shape[1] < 2:
            raise BadInput("a von Mises-Fisher (concentration) needs embeddings of at least two dimensions")
        return VonMisesFisher(loc, torch.from_numpy(images.concentration), validate_args=False)
    variance = torch.from_numpy(images.variance)
    normal = IsotropicNormal if variance.dim() == 1 else DiagonalNormal
    return normal(loc, variance, validate_args=False)


def _norms(rows: Tensor) -> Tensor:
    """Norms ``[B]``, also of rows whose squares float64 does not represent."""
    norm = norm_confidence(rows)
    odd = ~(norm.isfinite() & (norm > SMALLEST))
    scale = rows[odd].abs().amax(1).clamp_min(SMALLEST**2)
    norm[odd] = scale * norm_confidence(rows[odd] / scale[:, None])
    return norm


def confidences_of(images: EmbeddingSet, distribution: Distribution) -> dict[str, Tensor]:
    """Confidences of the images by name, each ``[N]``.

    ``given`` is the set's ``confidence``. ``method`` is computed from its variance or concentration. Every set has
    ``norm`` (of the embeddings as given) and ``random``, a random order as a control.
    """
    confidences: dict[str, Tensor] = {}
    if images.confidence is not None:
        confidences["given"] = torch.from_numpy(images.confidence)
    if isinstance(distribution, DiagonalNormal):
        # -log s2 of an isotropic normal, and like it monotone in the entropy.
        confidences["method"] = -distribution.variance.log().mean(-1)
    elif not isinstance(distribution, PointMass):
        confidences["method"] = spread_confidence(distribution)
    norm, start = torch.empty(len(images), dtype=torch.float64), 0
    for block in images.embeddings.blocks():  # filled in place, as the divisors are
        norm[start : (start := start + len(block))] = _norms(torch.from_numpy(block))
    if not bool(norm.isfinite().all()):
        rows = images.embeddings.named(~norm.isfinite().numpy(), "whose norm is beyond float64")
        raise BadInput(f"embeddings has {rows}; give embeddings / 1e300")
    flat = bool(norm.max() - norm.min() <= FLAT_NORM * norm.max() or (norm - 1.0).abs().max() <= UNIT_NORM)
    confidences["norm"] = torch.ones_like(norm) if flat else norm
    confidences["random"] = random_confidence(images.ids, seed_for("score", "random confidence"))
    return confidences


def primary_of(confidences: Mapping[str, Tensor]) -> str:
    """Name of the confidence to judge: ``given``, else ``method`` (of the distribution); empty if there is neither."""
    return next((name for name in ("given", "method") if name in confidences), "")


def numbered_classes(labels: np.ndarray) -> np.ndarray:
    """Renumber labels as classes 0..C-1, in the order in which they first occur.

    Example:
        >>> numbered_classes(np.array([7, 3, 7]))
        array([0, 1, 0])
    """
    _, first, place = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[place]


def view_of(
    images: EmbeddingSet,
    distribution: Distribution,
    scorers: tuple[str, ...],
    *,
    ks: tuple[int, ...] = (1,),
    device: str = "cpu",
    curves: bool = False,
) -> Embeddings:
    """Convert a set of embeddings, sorted by identity, to the object that the tests read.

    Confidences are judged once per scorer; filter-out curves, which need a deeper ranking, are for a set that has a
    confidence of its own, or if asked for.
    """
    confidences, scatter = confidences_of(images, distribution), None
    if images.train is not None:
        known, tested = (GivenPoints(rows, normalize=True) for rows in (images.train.embeddings, images.embeddings))
        density = TrainingDensity(lambda rows: known.rows_at(rows).loc, torch.from_numpy(images.train.labels))
        confidences |= density.confidences(lambda rows: tested.rows_at(rows).loc, len(images))
        scatter = (density.concentration, density.peak) if density.concentration else None
    options = Options(recall_ks=ks, risk_ks=ks, held_out_threshold=True)
    quality = None if images.quality is None else Quality(values=torch.from_numpy(images.quality), variant="quality")
    return Embeddings(
        labels=torch.from_numpy(numbered_classes(images.labels)),
        ids=images.ids,
        scorers={name: partial(DistributionScorer, name, distribution, device=device) for name in scorers},
        own_scorers=scorers,
        confidences=confidences,
        queries=torch.from_numpy(images.is_query).nonzero().squeeze(1),
        gallery=torch.from_numpy(images.is_gallery).nonzero().squeeze(1),
        groups=None if images.groups is None else torch.from_numpy(images.groups),
        directions=UnitRows(distribution),
        concentration=None if scatter is None else lambda: scatter,
        quality=quality,
        seed=lambda purpose: seed_for("score", purpose),
        options=options if curves or primary_of(confidences) else replace(options, filter_fractions=()),
    )
