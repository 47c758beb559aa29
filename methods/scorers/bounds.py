"""Upper bounds of scores, with which an exact search skips most of a gallery.

Each class writes a score as a function of one inner product and one number per image. It gives the factors of the
product, the score from it, an upper bound of the score for a group of images whose number lies in a range, and the size
of the terms that are summed. Embeddings are read by rows, so that no float64 copy of a whole set is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.bessel import vmf_log_normalizer_ratio, vmf_log_uniform
from ..distributions.normal import IsotropicNormal
from ..distributions.von_mises_fisher import VonMisesFisher

LOG_2PI = math.log(2 * math.pi)
_CHUNK = 1 << 13

Rows = Callable[[Tensor], Distribution]
"""Function from rows ``[B]`` to their prepared distributions, in float64."""


class Bound(Protocol):
    """Protocol of a score that never falls as an inner product rises, with upper bounds of it for an exact search.

    The score of images i and j is f(<left_i, right_j>; i, j), with vectors left_i of the query and right_j of the
    gallery item. Besides the inner product it may depend on one number per image, such as a variance. A
    nearest-neighbour search skips groups of gallery items whose upper bound is below the best scores found. Images are
    rows of a set of N.
    """

    @property
    def per_image(self) -> Tensor | None:
        """Number per image on which the score depends besides the inner product, ``[N]`` float64; None if none."""

    def left(self, rows: Tensor) -> Tensor:
        """Left factors ``[B, K]`` of the inner product, float64, for the queries in ``rows [B]`` of the set."""

    def right(self, rows: Tensor) -> Tensor:
        """Right factors ``[B, K]`` of the inner product, float64, for the gallery items in ``rows [B]`` of the set."""

    def value(self, inner: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """Scores of queries with gallery items from their inner products, both float64 ``[B, M]``."""

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Upper bounds ``[B, n]`` of the scores of queries with n groups at the largest inner products ``[B, n]``.

        ``low`` and ``high`` are the smallest and largest ``per_image`` of each group, ``[n]`` or ``[B, n]``.
        """

    def scale(self, rows: Tensor, gallery: Tensor) -> Tensor:
        """Upper bound ``[B]`` on the absolute size of the terms of a query's scores; rounding errors scale with it."""


def _statistic(rows_at: Rows, count: int, of: Callable[[Any], Tensor]) -> Tensor:
    """A statistic per image, ``[N]``, of ``count`` images."""
    # Filled in place: a new small result after each chunk would keep the chunk's memory from being reused.
    found = torch.empty(count, dtype=torch.float64)
    for rows in torch.arange(count).split(_CHUNK):
        found[rows[0] : rows[-1] + 1] = of(rows_at(rows))
    return found


class InnerBound:
    """Bound, for exact search, of the score that is the inner product of the means; the score is its own bound.

    ``rows_at`` gives the distributions of rows of N images, as the scorer has prepared them (normalised, for example).
    """

    per_image: Tensor | None = None

    def __init__(self, rows_at: Rows, count: int) -> None:
        self._rows_at = rows_at
        self._norms = _statistic(rows_at, count, lambda d: d.mean.norm(dim=1))

    def left(self, rows: Tensor) -> Tensor:
        """Means ``[B, D]`` of the queries."""
        return self._rows_at(rows).mean

    def right(self, rows: Tensor) -> Tensor:
        """Means ``[B, D]`` of the gallery items."""
        return self._rows_at(rows).mean

    def value(self, inner: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """Scores ``[B, M]``: the inner products themselves."""
        return inner

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Upper bounds of scores: the inner products themselves."""
        return inner

    def scale(self, rows: Tensor, gallery: Tensor) -> Tensor:
        """Bound ``[B]`` on the size of a query's scores: its norm times the largest norm of the gallery."""
        return self._norms[rows] * self._norms[gallery].max()


class DistanceBound:
    """Bound, for exact search, of the score -(|x - y|^2 + s_x + s_y), with the means x, y and a term s of each image.

    The inner product ``<(2x, 1), (y, -|y|^2 - s_y)>`` plus the query's own part, -|x|^2 - s_x, is the score. ``terms``
    gives the s ``[B]`` of B distributions, not negative; zero if not given.
    """

    per_image: Tensor | None = None

    def __init__(self, rows_at: Rows, count: int, terms: Callable[[Distribution], Tensor] | None = None) -> None:
        self._rows_at = rows_at
        squares = _statistic(rows_at, count, lambda d: d.mean.square().sum(1))
        self._norms = squares.sqrt()
        self._terms = torch.zeros_like(squares) if terms is None else _statistic(rows_at, count, terms)
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

    def scale(self, rows: Tensor, gallery: Tensor) -> Tensor:
        """Bound ``[B]`` on the size of a query's scores: largest squared distance by the norms, plus terms s."""
        apart = (self._norms[rows] + self._norms[gallery].max()).square()
        return apart + self._terms[rows] + self._terms[gallery].max()


class NormalBound(DistanceBound):
    """Bound, for exact search, of the mutual likelihood of isotropic normals.

    The score is -1/2 [d^2 / v + D log v + D log 2 pi], with d the distance of the means and v = v_a + v_b the sum of
    the variances. It falls as d^2 rises; at a given d^2 it is largest at v = d^2 / D.
    """

    def __init__(self, rows_at: Rows, count: int) -> None:
        super().__init__(rows_at, count)
        self.per_image: Tensor = _statistic(rows_at, count, lambda d: d.variance)
        self._dim = rows_at(torch.zeros(1, dtype=torch.long)).event_shape[0]

    def _score(self, squared: Tensor, variance: Tensor) -> Tensor:
        # In place: these are the largest arrays of a search.
        return squared.div_(variance).add_(variance.log(), alpha=self._dim).add_(self._dim * LOG_2PI).mul_(-0.5)

    def _squared(self, inner: Tensor, rows: Tensor) -> Tensor:
        return (self._own[rows, None] - inner).clamp_min_(0.0)

    def value(self, inner: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """Exact scores of queries with gallery items from the inner products of their factors, ``[B, M]`` float64."""
        return self._score(self._squared(inner, rows), self.per_image[rows, None] + self.per_image[items])

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Upper bounds ``[B, n]`` of the scores of queries with n groups of gallery items.

        A bound is the score at the largest inner product, that is the smallest distance, of query and group, and at the
        variance in [low, high] of the gallery item that is best for this distance.
        """
        squared, own = self._squared(inner, rows), self.per_image[rows, None]
        if low is high:
            return self._score(squared, own + low)
        best = torch.minimum(torch.maximum(squared / self._dim, own + low), own + high)
        return self._score(squared, best)

    def scale(self, rows: Tensor, gallery: Tensor) -> Tensor:
        """Bound ``[B]`` on the absolute size of the terms in a query's scores, each at its largest over the gallery.

        It is 1/2 [d^2 / v + D (|log v| + log 2 pi)] with d the distance of the means and v the sum of the two
        variances.
        """
        ends, place = self.per_image[gallery].topk(min(2, len(gallery)), largest=False)
        # A query's own variance does not count twice: it is not its own neighbour.
        own = (gallery[place[0]] == rows) & (len(ends) > 1)
        smallest = self.per_image[rows] + torch.where(own, ends[-1], ends[0])
        largest = self.per_image[rows] + self.per_image[gallery].max()
        logs = torch.maximum(smallest.log().abs(), largest.log().abs()) + LOG_2PI
        return 0.5 * (super().scale(rows, gallery) / smallest + self._dim * logs)


class VonMisesFisherBound:
    """Bound, for exact search, of the mutual likelihood of two vMFs.

    The score is log C(k_a) + log C(k_b) - log C(|k_a mu_a + k_b mu_b|), with C the normaliser; it rises with the cosine
    of the modes. With L(k) = log C(0) - log C(k), it is L(|k_a mu_a + k_b mu_b|) - L(k_a) - L(k_b) + log C(0). L is the
    cumulant of the uniform distribution along a direction, so it is convex and its second derivatives are variances in
    [0, 1/D]. This bounds two errors. Linear interpolation of L between knots h apart is too large by at most h^2/(8D).
    For k_b in [low, high] the score exceeds the larger of its values at the two ends by at most (high - low)^2/(8D).
    """

    KNOTS = 1 << 15

    def __init__(self, rows_at: Rows, count: int) -> None:
        self._rows_at = rows_at
        self.per_image: Tensor = _statistic(rows_at, count, lambda d: d.concentration)
        self._dim = rows_at(torch.zeros(1, dtype=torch.long)).event_shape[0]
        self._log = -vmf_log_normalizer_ratio(self.per_image, self._dim)
        # The joint concentration is at most the sum of two; beyond the last knot the last chord goes on.
        self._step = float(2.0 * self.per_image.max()) / (self.KNOTS - 2) + 1e-300
        knots = torch.arange(self.KNOTS, dtype=self.per_image.dtype, device=self.per_image.device) * self._step
        self._at = -vmf_log_normalizer_ratio(knots, self._dim)
        self._rise = self._at.diff()
        self._sag = self._step**2 / (8 * self._dim)

    def left(self, rows: Tensor) -> Tensor:
        """Modes ``[B, D]`` of the queries, the left factors of the cosine."""
        return self._direction(rows)

    def right(self, rows: Tensor) -> Tensor:
        """Modes ``[B, D]`` of the gallery items, the right factors of the cosine."""
        return self._direction(rows)

    def _direction(self, rows: Tensor) -> Tensor:
        d = self._rows_at(rows)
        assert isinstance(d, VonMisesFisher)
        return d.loc

    def _above(self, k: Tensor) -> Tensor:
        """The chord of L at concentrations ``k``, which is overwritten."""
        where = k.div_(self._step)
        knot = where.int()
        return self._at[knot].addcmul_(where.sub_(knot), self._rise[knot])

    def _joint(self, cosine: Tensor, own: Tensor, other: Tensor) -> Tensor:
        """Squared |k_a mu_a + k_b mu_b|."""
        one_plus = (1.0 + cosine.double()).clamp_(0.0, 2.0)
        return one_plus.mul_(2.0 * own).mul_(other).add_((own - other).square_())

    def value(self, inner: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """Scores ``[B, M]`` of queries with items at their cosines."""
        own, other = self.per_image[rows, None], self.per_image[items]
        joint = self._joint(inner, own, other).sqrt_()
        log = -vmf_log_normalizer_ratio(joint, self._dim)
        return log - self._log[rows, None] - self._log[items] + vmf_log_uniform(self._dim)

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Upper bounds ``[B, n]``: the larger score at the ends of [low, high], plus the most that one exceeds it."""
        own = self.per_image[rows, None]
        bound = self._above(self._joint(inner, own, high).sqrt_()).sub_(self._above(high.clone()))
        if low is not high:
            other = self._above(self._joint(inner, own, low).sqrt_()).sub_(self._above(low.clone()))
            bound = torch.maximum(bound, other).add_((high - low).square_().div_(8.0 * self._dim))
        return bound.sub_(self._log[rows, None]).add_(self._sag + vmf_log_uniform(self._dim))

    def scale(self, rows: Tensor, gallery: Tensor) -> Tensor:
        """Upper bound ``[B]`` on the absolute size of the terms in a query's scores, from which rounding errors follow.

        It is twice the largest sum of the concentrations of query and gallery item, plus |log C(0)|, with C the
        normaliser of the vMF.
        """
        return 2.0 * (self.per_image[rows] + self.per_image[gallery].max()) + abs(vmf_log_uniform(self._dim))


def likelihood_bound(rows_at: Rows, count: int) -> NormalBound | VonMisesFisherBound | None:
    """Make the bound of the mutual likelihood score that fits the kind of the distributions.

    It is None for other kinds than isotropic normals and vMFs, such as diagonal normals, whose variances do not
    separate from the distance.
    """
    cls = type(rows_at(torch.zeros(1, dtype=torch.long)))
    if cls is IsotropicNormal:
        return NormalBound(rows_at, count)
    return VonMisesFisherBound(rows_at, count) if cls is VonMisesFisher else None
