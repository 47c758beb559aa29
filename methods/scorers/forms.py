"""Scores as functions of one inner product and one number per image, with bounds over ranges of that number.

What an exact search needs to skip most of a gallery: each class gives the factors of the product, the score from it, an
upper bound of the score for a group of images whose number lies in a range, and the size of the terms that are summed.
Embeddings are asked for by their rows, so that no float64 copy of a whole set is held.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..distributions import IsotropicNormal, VonMisesFisher, vmf_log_normalizer_ratio, vmf_log_uniform

LOG_2PI = math.log(2 * math.pi)
_CHUNK = 1 << 13

Take = Callable[[Tensor], Distribution]
"""Rows to their distributions, in float64."""


def _per_image(take: Take, count: int, what: Callable[[Any], Tensor]) -> Tensor:
    """Something of each of ``count`` images, ``[N]``."""
    return torch.cat([what(take(rows)) for rows in torch.arange(count).split(_CHUNK)])


class InnerForm:
    """The inner product of the means.

    Args:
        take: Prepared distributions of some rows.
        count: Number N of images.
    """

    side: Tensor | None = None

    def __init__(self, take: Take, count: int) -> None:
        self._take = take
        self._norms = _per_image(take, count, lambda d: d.mean.norm(dim=1))

    def left(self, rows: Tensor) -> Tensor:
        """Factors ``[B, D]`` of queries."""
        return self._take(rows).mean

    def right(self, rows: Tensor) -> Tensor:
        """Factors ``[B, D]`` of gallery items."""
        return self._take(rows).mean

    def value(self, inner: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """Scores at these inner products."""
        return inner

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The score depends on nothing else."""
        return inner

    def scale(self, rows: Tensor, gallery: Tensor) -> Tensor:
        """Product of the norms."""
        return self._norms[rows] * self._norms[gallery].max()


class DistanceForm:
    """-(|x - y|^2 + s_x + s_y): squared distance and a term of each image.

    The product ``<(2x, 1), (y, -|y|^2 - s_y)>`` is the score up to the query's own part.

    Args:
        take: Prepared distributions of some rows.
        count: Number N of images.
        terms: The term of each of some distributions, not negative; none if not given.
    """

    side: Tensor | None = None

    def __init__(self, take: Take, count: int, terms: Callable[[Distribution], Tensor] | None = None) -> None:
        self._take = take
        squares = _per_image(take, count, lambda d: d.mean.square().sum(1))
        self._norms = squares.sqrt()
        self._terms = torch.zeros_like(squares) if terms is None else _per_image(take, count, terms)
        self._own = squares + self._terms

    def left(self, rows: Tensor) -> Tensor:
        """Factors ``[B, D + 1]`` of queries."""
        vectors = self._take(rows).mean
        return torch.cat([2.0 * vectors, vectors.new_ones(len(rows), 1)], dim=1)

    def right(self, rows: Tensor) -> Tensor:
        """Factors ``[B, D + 1]`` of gallery items."""
        return torch.cat([self._take(rows).mean, -self._own[rows, None]], dim=1)

    def value(self, inner: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """Scores at these inner products."""
        return inner.double() - self._own[rows, None]

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The score depends on nothing else."""
        return self.value(inner, rows, low)

    def scale(self, rows: Tensor, gallery: Tensor) -> Tensor:
        """Largest distance the norms allow, and the terms."""
        apart = (self._norms[rows] + self._norms[gallery].max()).square()
        return apart + self._terms[rows] + self._terms[gallery].max()


class NormalForm(DistanceForm):
    """Mutual likelihood of isotropic normals: -1/2 [d^2 / v + D log v + D log 2 pi] with v = v_a + v_b.

    Falls with the squared distance d^2; for a given one it is largest at v = d^2 / D.

    Args:
        take: Distributions of some rows.
        count: Number N of images.
    """

    def __init__(self, take: Take, count: int) -> None:
        super().__init__(take, count)
        self.side: Tensor = _per_image(take, count, lambda d: d.variance)
        self._dim = take(torch.zeros(1, dtype=torch.long)).event_shape[0]

    def _score(self, squared: Tensor, variance: Tensor) -> Tensor:
        # In place: these are the largest arrays of a search.
        return squared.div_(variance).add_(variance.log(), alpha=self._dim).add_(self._dim * LOG_2PI).mul_(-0.5)

    def _squared(self, inner: Tensor, rows: Tensor) -> Tensor:
        return (self._own[rows, None] - inner).clamp_min_(0.0)

    def value(self, inner: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """Scores at these inner products."""
        return self._score(self._squared(inner, rows), self.side[rows, None] + self.side[items])

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The best variance of the range for this distance."""
        squared, own = self._squared(inner, rows), self.side[rows, None]
        if low is high:
            return self._score(squared, own + low)
        best = torch.minimum(torch.maximum(squared / self._dim, own + low), own + high)
        return self._score(squared, best)

    def scale(self, rows: Tensor, gallery: Tensor) -> Tensor:
        """Largest distance over the smallest variance, and the logarithms."""
        ends, place = self.side[gallery].topk(min(2, len(gallery)), largest=False)
        # A query's own variance does not count twice: it is not its own neighbour.
        own = (gallery[place[0]] == rows) & (len(ends) > 1)
        smallest = self.side[rows] + torch.where(own, ends[-1], ends[0])
        largest = self.side[rows] + self.side[gallery].max()
        logs = torch.maximum(smallest.log().abs(), largest.log().abs()) + LOG_2PI
        return 0.5 * (super().scale(rows, gallery) / smallest + self._dim * logs)


class VonMisesFisherForm:
    """Mutual likelihood of von Mises-Fisher distributions: log C(k_a) + log C(k_b) - log C(|k_a mu_a + k_b mu_b|).

    With L(k) = log C(0) - log C(k), the score is L(joint) - L(k_a) - L(k_b) + log C(0) and rises with the cosine. L is
    the cumulant of the uniform distribution along a direction, so it is convex and its second derivatives are variances
    in [0, 1/D]. Hence a chord between two knots h apart lies above L by at most h^2 / (8 D), and between two
    concentrations the score exceeds its larger end by at most (difference)^2 / (8 D).

    Args:
        take: Distributions of some rows.
        count: Number N of images.
    """

    KNOTS = 1 << 15

    def __init__(self, take: Take, count: int) -> None:
        self._take = take
        self.side: Tensor = _per_image(take, count, lambda d: d.concentration)
        self._dim = take(torch.zeros(1, dtype=torch.long)).event_shape[0]
        self._log = -vmf_log_normalizer_ratio(self.side, self._dim)
        # The joint concentration is at most the sum of two; beyond the last knot the last chord goes on.
        self._step = float(2.0 * self.side.max()) / (self.KNOTS - 2) + 1e-300
        knots = torch.arange(self.KNOTS, dtype=self.side.dtype, device=self.side.device) * self._step
        self._at = -vmf_log_normalizer_ratio(knots, self._dim)
        self._rise = self._at.diff()
        self._sag = self._step**2 / (8 * self._dim)

    def left(self, rows: Tensor) -> Tensor:
        """Directions ``[B, D]`` of queries."""
        return self._direction(rows)

    def right(self, rows: Tensor) -> Tensor:
        """Directions ``[B, D]`` of gallery items."""
        return self._direction(rows)

    def _direction(self, rows: Tensor) -> Tensor:
        d = self._take(rows)
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
        """Scores at these cosines."""
        own, other = self.side[rows, None], self.side[items]
        joint = self._joint(inner, own, other).sqrt_()
        log = -vmf_log_normalizer_ratio(joint, self._dim)
        return log - self._log[rows, None] - self._log[items] + vmf_log_uniform(self._dim)

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The larger end of the range and what may lie between."""
        own = self.side[rows, None]
        bound = self._above(self._joint(inner, own, high).sqrt_()).sub_(self._above(high.clone()))
        if low is not high:
            other = self._above(self._joint(inner, own, low).sqrt_()).sub_(self._above(low.clone()))
            bound = torch.maximum(bound, other).add_((high - low).square_().div_(8.0 * self._dim))
        return bound.sub_(self._log[rows, None]).add_(self._sag + vmf_log_uniform(self._dim))

    def scale(self, rows: Tensor, gallery: Tensor) -> Tensor:
        """Twice the concentrations, since L(k) <= k, and the constant."""
        return 2.0 * (self.side[rows] + self.side[gallery].max()) + abs(vmf_log_uniform(self._dim))


def likelihood_form(take: Take, count: int) -> NormalForm | VonMisesFisherForm | None:
    """Form of the mutual likelihood; none for diagonal normals, whose variances do not separate from the distance."""
    kind = type(take(torch.zeros(1, dtype=torch.long)))
    if kind is IsotropicNormal:
        return NormalForm(take, count)
    return VonMisesFisherForm(take, count) if kind is VonMisesFisher else None
