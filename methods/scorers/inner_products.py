"""Scores of the means or of the raw embeddings, cosine and squared distance, and their bounds for an exact search.

A bound writes a score as a function of one inner product and one number per image. Embeddings are read by rows, so that
no float64 copy of a whole set is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.arrays import to_arrays
from ..distributions.normal import PointMass
from ..distributions.von_mises_fisher import VonMisesFisher
from .spec import DistributionScorer, Layout, Rows, ScorerSpec

_CHUNK = 1 << 10


def _mode(d: Distribution) -> Tensor:
    return d.loc if isinstance(d, VonMisesFisher) else d.mean


def unit_mean(d: Distribution) -> Tensor:
    """Direction of the mean of N distributions, ``[N, D]``. A zero vector stays zero."""
    mode = _mode(d)
    largest = mode.detach().abs().amax(-1, keepdim=True)
    # Squares of very small or very large coordinates leave the range of numbers.
    extreme = ((largest < 1e-15) & (largest > 0)) | (largest > 1e15)
    if mode.requires_grad or bool(extreme.any()):  # a loss must not wait for a GPU to tell
        mode = mode / torch.where(extreme, largest, torch.ones_like(largest))
    return F.normalize(mode, dim=-1, eps=1e-30)


def modes_of(d: Distribution) -> PointMass:
    """Modes of N distributions, as points ``[N, D]``.

    They have unit length for points, of which only directions are compared, and for von Mises-Fisher distributions.
    """
    return PointMass(unit_mean(d) if isinstance(d, PointMass) else _mode(d), validate_args=False)


def inner_of_means(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    """Inner products of the means of two batches of distributions, as scores."""
    return layout.inner(a.mean, b.mean)


def _unit_point(d: Distribution, seed: int = 0) -> PointMass:
    return PointMass(unit_mean(d), validate_args=False)


def _raw_point(d: Distribution, seed: int = 0) -> PointMass:
    """Raw embeddings: points as they are, and k mu of a von Mises-Fisher, which is raw if the norm gives its k.

    Raises:
        ValueError: If the distribution does not say what its raw embedding was.
    """
    if isinstance(d, VonMisesFisher):
        return PointMass(d.concentration.unsqueeze(-1) * d.loc, validate_args=False)
    if isinstance(d, PointMass):
        return d
    raise ValueError(
        f"raw_l2 needs points or von Mises-Fisher distributions; {type(d).__name__} does not keep the raw embedding"
        " (use l2)"
    )


def _l2(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    return -layout.squared_distance(a.mean, b.mean)


def statistic(rows_at: Rows, count: int, of: Callable[[Any], Tensor]) -> Tensor:
    """A statistic per image, ``[N]`` float64, of ``count`` images."""
    # Filled in place: a new small result after each chunk would keep the chunk's memory from being reused.
    found = torch.empty(count, dtype=torch.float64)
    for rows in torch.arange(count).split(_CHUNK):
        found[rows[0] : rows[-1] + 1] = of(rows_at(rows))
    return found


def nearness(queries: Tensor, items: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """How much less the squared distance of a query to an item is than that to another, all ``[P, D]``, and its scale.

    |q - o|^2 - |q - i|^2 = <i - o, 2q - i - o> has digits left where both squared distances are large and nearly equal.
    The scale counts the sum of the products in full and the rounding of the vectors, 1e-15 of their lengths, as 1 %.
    """
    step, towards = items - others, 2.0 * queries - items - others
    lengths = step.norm(dim=1) + 0.01 * (items.norm(dim=1) + others.norm(dim=1))
    return (step * towards).sum(1), lengths * towards.norm(dim=1)


class InnerBound:
    """Bound, for exact search, of the score that is the inner product of the means; the score is its own bound.

    ``rows_at`` gives the distributions of rows of N images, as the scorer has prepared them (normalised, for example).
    """

    per_image: Tensor | None = None

    def __init__(self, rows_at: Rows, count: int) -> None:
        self._rows_at, self._count = rows_at, count
        self._norms = statistic(rows_at, count, lambda d: d.mean.norm(dim=1))
        self._longest = self._norms.max()

    def left(self, rows: Tensor) -> Tensor:
        """Means ``[B, D]`` of the queries, and as ``right`` of the gallery items."""
        return self._rows_at(rows).mean

    right = left

    def value(self, inner: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """Scores ``[B, M]``: the inner products themselves."""
        return inner

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Upper bounds of scores: the inner products themselves."""
        return inner

    def scale(self, rows: Tensor, scores: Tensor, items: Tensor | None = None) -> Tensor:
        """Largest size ``[B, M]`` of a score of query and item: the product of their norms."""
        return self._norms[rows, None] * (self._longest if items is None else self._norms[items])


class Keys:
    """Number of each image that equal embeddings share, ``[N]``, made on first use: these need no comparison."""

    _rows_at: Rows
    _count: int

    @cached_property
    def keys(self) -> Tensor:
        """A hash of the bits of all parameters: sums lose a small number, or two signs that change, beside others."""

        def of(d: Any) -> Tensor:
            joined = torch.cat([value.reshape(len(value), -1).double() for value in to_arrays(d)[1].values()], dim=1)
            return torch.tensor([hash(row.tobytes()) for row in joined.detach().numpy()])

        return statistic(self._rows_at, self._count, of)


class CosineBound(InnerBound, Keys):
    """Bound of the inner product of unit vectors, which is one minus half of the squared distance."""

    def difference(self, rows: Tensor, items: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Score of items minus that of other items, and the size of its terms, for queries ``rows``, ``[P]`` each."""
        nearer, size = nearness(*(self._rows_at(index).mean for index in (rows, items, others)))
        return 0.5 * nearer, 0.5 * size


class DistanceBound(Keys):
    """Bound, for exact search, of the score -(|x - y|^2 + s_x + s_y), with the means x, y and a term s of each image.

    The inner product ``<(2x, 1), (y, -|y|^2 - s_y)>`` plus the query's own part, -|x|^2 - s_x, is the score. ``terms``
    gives the s ``[B]`` of B distributions, not negative; zero if not given.
    """

    per_image: Tensor | None = None

    def __init__(self, rows_at: Rows, count: int, terms: Callable[[Distribution], Tensor] | None = None) -> None:
        self._rows_at, self._count = rows_at, count
        squares = statistic(rows_at, count, lambda d: d.mean.square().sum(1))
        if squares.max() < 1e-280 and bool(statistic(rows_at, count, lambda d: d.mean.abs().amax(1)).max() > 0):
            raise ValueError("embeddings are too small to compare: their squares are no numbers; scale them")
        self._norms = squares.sqrt()
        self._terms = torch.zeros_like(squares) if terms is None else statistic(rows_at, count, terms)
        self._own = squares + self._terms

    def left(self, rows: Tensor) -> Tensor:
        """Left factors (2x, 1) ``[B, D + 1]`` of the inner product."""
        vectors = self._rows_at(rows).mean
        return torch.cat([2.0 * vectors, vectors.new_ones(len(rows), 1)], dim=1)

    def right(self, rows: Tensor) -> Tensor:
        """Right factors (y, -|y|^2 - s_y) ``[B, D + 1]`` of the inner product."""
        return torch.cat([self._rows_at(rows).mean, -self._own[rows, None]], dim=1)

    def value(self, inner: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """Exact scores of queries with gallery items from the inner products of their factors, ``[B, M]`` float64."""
        return inner.double() - self._own[rows, None]

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Upper bounds of scores at the inner products ``[B, n]``: the scores themselves."""
        return self.value(inner, rows, low)

    def scale(self, rows: Tensor, scores: Tensor, items: Tensor | None = None) -> Tensor:
        """Size ``[B, M]`` of the terms of scores: the scores, and what the rounding of the vectors moves them by."""
        return scores.abs() + self._rounded(rows, (-scores - self._terms[rows, None]).clamp_min(0.0))

    def difference(self, rows: Tensor, items: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Score of items minus that of other items, and the size of its terms, for queries ``rows``, ``[P]`` each."""
        nearer, size = nearness(*(self._rows_at(index).mean for index in (rows, items, others)))
        more = self._terms[others] - self._terms[items]  # no rounding is left of equal ones, as of clamped variances
        return nearer + more, size + (self._terms[items] + self._terms[others]) * (more != 0)

    def _rounded(self, rows: Tensor, squared: Tensor) -> Tensor:
        """Change of a squared distance as vectors change by 1e-15 of their lengths, in units of 1e-13."""
        apart = squared.sqrt()
        length = 2.0 * self._norms[rows, None] + apart  # of both vectors, at most
        return 0.02 * length * apart + 1e-17 * length.square()


SPECS = (
    ScorerSpec("cosine", "cos(E[z1], E[z2])", inner_of_means, _unit_point, bound=CosineBound),
    ScorerSpec("l2", "-||E[z1] - E[z2]||^2", _l2, bound=DistanceBound, invariant=True),
    ScorerSpec(
        "raw_l2",
        "-||z1 - z2||^2 of raw embeddings with their norms: points, or k mu of a von Mises-Fisher whose concentration"
        " is the norm (EL-nivMF, Supplement J)",
        _l2,
        _raw_point,
        bound=DistanceBound,
        invariant=True,
    ),
)


def mode_scorer(distribution: Distribution, device: str = "cpu") -> DistributionScorer:
    """Build a scorer of the negative squared distance of the modes.

    The public code of Probabilistic Embeddings Revisited uses it to choose the candidates that another scorer ranks.
    """
    return DistributionScorer("l2", modes_of(distribution), device=device)
