"""Mutual likelihood score: log of the overlap of two densities (PFE, Shi and Jain 2019, Eq. 3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.bessel import LARGE, vmf_log_normalizer_ratio, vmf_log_peak, vmf_log_uniform
from ..distributions.normal import LOG_2PI, DiagonalNormal, IsotropicNormal
from ..distributions.von_mises_fisher import VonMisesFisher
from .inner_products import DistanceBound, Keys, statistic
from .spec import Layout, Matrix, Rows, ScorerSpec

_LOG_4PI = math.log(4 * math.pi)
_BLOCK_ELEMENTS = 1 << 16  # of an intermediate: 512 KiB in float64 stay in the cache
_GPU_BLOCK_ELEMENTS = 1 << 24  # few and large kernels


def mutual_likelihood(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    """Mutual likelihood score: the log of the integral of p_a(z) p_b(z).

    Raises:
        ValueError: If they are neither two normals nor two von Mises-Fisher distributions.
    """
    if isinstance(a, VonMisesFisher) and isinstance(b, VonMisesFisher):
        return _von_mises_fisher(a, b, layout)
    if isinstance(a, IsotropicNormal) and isinstance(b, IsotropicNormal):
        squared = layout.squared_distance(a.loc, b.loc)
        u, v = layout.outer(a.variance, b.variance)
        variance = u + v
        return -0.5 * (squared / variance + a.dim * (variance.log() + LOG_2PI))
    return _diagonal(_as_diagonal(a), _as_diagonal(b), layout)


def _von_mises_fisher(a: VonMisesFisher, b: VonMisesFisher, layout: Layout) -> Tensor:
    """Log C(k_a) + log C(k_b) - log C(|k_a mu_a + k_b mu_b|)."""
    ka, kb = layout.outer(a.concentration, b.concentration)
    # (ka - kb)^2 + 2 ka kb (1 + cos) has no negative part to cancel.
    one_plus = (1.0 + layout.inner(a.loc, b.loc)).clamp(0.0, 2.0)
    squared = (ka - kb).square() + 2.0 * ka * kb * one_plus
    # The root has no slope at 0, where its slope does not matter: the normaliser is flat there.
    joint = squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt()
    ga, gb = layout.outer(
        vmf_log_normalizer_ratio(a.concentration, a.dim), vmf_log_normalizer_ratio(b.concentration, b.dim)
    )
    score = ga + gb - vmf_log_normalizer_ratio(joint, a.dim) + vmf_log_uniform(a.dim)
    if ka.requires_grad or kb.requires_grad or not _any_large(ka, kb):  # a loss must not wait for a GPU to tell
        return score
    away = 0.5 * layout.squared_distance(a.loc, b.loc)  # 1 - cos
    peaks = layout.outer(vmf_log_peak(a.concentration, a.dim), vmf_log_peak(b.concentration, b.dim))
    return torch.where(torch.maximum(ka, kb) > LARGE, _concentrated(away, ka, kb, *peaks, a.dim), score)


def _any_large(*concentrations: Tensor) -> bool:
    return any(k.numel() > 0 and float(k.max()) > LARGE for k in concentrations)


def _concentrated(away: Tensor, ka: Tensor, kb: Tensor, peak_a: Tensor, peak_b: Tensor, dim: int) -> Tensor:
    """The score of two vMFs of which one may be narrow, from 1 - cos: no terms as large as k are left to cancel.

    With P(k) = k + log C(k) - log C(0) and K = |k_a mu_a + k_b mu_b| it is K - k_a - k_b + P(k_a) + P(k_b) - P(K) + log
    C(0), and K - k_a - k_b = -2 k_a k_b (1 - cos) / (K + k_a + k_b).
    """
    away, ka, kb = away.double(), ka.double(), kb.double()  # squares of k leave the range of float32
    total = ka + kb
    joint = ((ka - kb).square() + 2.0 * ka * kb * (2.0 - away).clamp(0.0, 2.0)).sqrt()
    lost = 2.0 * ka * kb * away / (joint + total)
    return (peak_a + peak_b - vmf_log_peak(joint, dim) - lost + vmf_log_uniform(dim)).to(peak_a.dtype)


def _diagonal(a: DiagonalNormal, b: DiagonalNormal, layout: Layout) -> Tensor:
    # v_i + v_j does not separate over dimensions, so this form needs blocks where the isotropic one is a matmul.
    within = all(
        1e-37 < float(end) < 1e37 for d in (a, b) if d.variance.numel() for end in d.variance.detach().aminmax()
    )
    # Eight sums of variances of such sizes multiply without overflow in float64: one logarithm for eight.
    folds = 3 if within and a.loc.dtype == torch.float64 else 0
    if layout is Matrix:
        rows = [_diagonal_block(m[None], u[None], b, layout, folds) for m, u in zip(a.loc, a.variance)]
        return torch.cat(rows) if rows else a.loc.new_zeros(0, len(b.loc))
    return _diagonal_block(a.loc, a.variance, b, layout, folds)


def _diagonal_block(loc: Tensor, variance: Tensor, b: DiagonalNormal, layout: Layout, folds: int) -> Tensor:
    elements = _BLOCK_ELEMENTS if loc.device.type == "cpu" else _GPU_BLOCK_ELEMENTS
    many = max(1, elements // b.dim) if layout is Matrix else max(1, len(loc))
    parts = []
    for other, spread in zip(b.loc.split(many), b.variance.split(many)):
        (m, n), (u, v) = layout.outer(loc, other), layout.outer(variance, spread)
        total = u + v
        squared = ((m - n).square() / total).sum(-1)
        for _ in range(folds):
            if total.shape[-1] % 2 == 0:
                low, high = total.chunk(2, dim=-1)
                total = low * high
        parts.append(-0.5 * (squared + total.log().sum(-1) + b.dim * LOG_2PI))
    return torch.cat(parts, dim=-1)


def _as_diagonal(d: Distribution) -> DiagonalNormal:
    if isinstance(d, DiagonalNormal):
        return d
    if isinstance(d, IsotropicNormal):
        return DiagonalNormal(d.loc, d.variance.unsqueeze(-1).expand(d.loc.shape), validate_args=False)
    raise ValueError(
        f"the mutual likelihood score needs two normals or two von Mises-Fisher distributions; {type(d).__name__} "
        "does not fit (use cosine or l2)"
    )


class NormalBound(DistanceBound):
    """Bound, for exact search, of the mutual likelihood of isotropic normals.

    The score is -1/2 [d^2 / v + D log v + D log 2 pi], with d the distance of the means and v = v_a + v_b the sum of
    the variances. It falls as d^2 rises; at a given d^2 it is largest at v = d^2 / D.
    """

    def __init__(self, rows_at: Rows, count: int) -> None:
        super().__init__(rows_at, count)
        self.per_image: Tensor = statistic(rows_at, count, lambda d: d.variance)
        self._dim = rows_at(torch.zeros(1, dtype=torch.long)).event_shape[0]
        self._size = self._dim * (self.per_image.log().abs() + _LOG_4PI)
        self._steep = self.per_image.rsqrt()
        self._largest = self._size.max(), self._steep.max()

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

    def scale(self, rows: Tensor, scores: Tensor, items: Tensor | None = None) -> Tensor:
        """Size ``[B, M]`` of the terms of scores, with what the rounding of the means moves them by.

        With v = u + w the sum of the two variances and d the distance of the means, d^2 / v is at most twice the score
        and D (|log v| + log 2 pi) together, and |log v| is at most |log u| + |log w| + log 2.
        """
        size, steep = self._largest if items is None else (self._size[items], self._steep[items])
        terms = 2.0 * scores.abs() + self._size[rows, None] + size
        moved = self._norms[rows, None] * torch.minimum(self._steep[rows, None], steep)  # length in standard deviations
        return 1.02 * terms + 0.04 * moved * terms.sqrt() + 1e-16 * moved.square()

    def difference(self, rows: Tensor, items: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Score of items minus that of other items, and the size of its terms, for queries ``rows``, ``[P]`` each."""
        return _difference(*(self._rows_at(index) for index in (rows, items, others)))


class DiagonalTerms(Keys):
    """Sizes of the terms of mutual likelihoods of diagonal normals, which have no :class:`.Bound`."""

    def __init__(self, rows_at: Rows, count: int) -> None:
        self._rows_at, self._count = rows_at, count
        self._size = statistic(rows_at, count, lambda d: (d.variance.log().abs() + _LOG_4PI).sum(1))
        self._largest = self._size.max()

    def scale(self, rows: Tensor, scores: Tensor, items: Tensor | None = None) -> Tensor:
        """Size ``[B, M]`` of the terms of scores; |log(u + v)| is at most |log u| + |log v| + log 2."""
        others = self._largest if items is None else self._size[items]
        return 2.0 * scores.abs() + self._size[rows, None] + others

    def difference(self, rows: Tensor, items: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Score of items minus that of other items, and the size of its terms, for queries ``rows``, ``[P]`` each."""
        return _difference(*(self._rows_at(index) for index in (rows, items, others)))


def _difference(query: Distribution, item: Distribution, other: Distribution) -> tuple[Tensor, Tensor]:
    """Difference of two mutual likelihoods of a query, term by term, so that what both share does not cancel.

    With squared distances c of the other and a of the item, and sums of variances w and v, it is 1/2 [(c - a) / v - c
    (w - v) / (v w) - log(v / w)], summed over dimensions.
    """
    q, i, o = (d.mean for d in (query, item, other))
    spread, v, w = (d.variance.reshape(len(q), -1) for d in (query, item, other))
    change, v, w = v - w, spread + v, spread + w
    step, towards = i - o, 2.0 * q - i - o
    terms = torch.stack(
        [step * towards / v, (q - o).square() / w * (change / v), -torch.log1p(change / w).expand(q.shape)]
    )
    rounded = 0.01 * ((i.abs() + o.abs()) * towards.abs() / v).sum(1)
    return 0.5 * terms.sum((0, 2)), 0.5 * (terms.abs().sum((0, 2)) + rounded)


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
        self.per_image: Tensor = statistic(rows_at, count, lambda d: d.concentration)
        self._dim = rows_at(torch.zeros(1, dtype=torch.long)).event_shape[0]
        self._log = -vmf_log_normalizer_ratio(self.per_image, self._dim)
        self._any_large = _any_large(self.per_image)
        self._peak = vmf_log_peak(self.per_image, self._dim) if self._any_large else torch.zeros_like(self._log)
        self._size = 2.0 * torch.where(self.per_image > LARGE, self._peak, self.per_image)
        self._largest = self._size.max()
        # The joint concentration is at most the sum of two; beyond the last knot the last chord goes on.
        self._step = float(2.0 * self.per_image.max()) / (self.KNOTS - 2) + 1e-300
        knots = torch.arange(self.KNOTS, dtype=self.per_image.dtype, device=self.per_image.device) * self._step
        self._at = -vmf_log_normalizer_ratio(knots, self._dim)
        self._rise = self._at.diff()
        self._sag = self._step**2 / (8 * self._dim)

    def left(self, rows: Tensor) -> Tensor:
        """Modes ``[B, D]`` of the queries, and as ``right`` of the gallery items: the factors of the cosine."""
        d = self._rows_at(rows)
        assert isinstance(d, VonMisesFisher)
        return d.loc

    right = left

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
        score = log - self._log[rows, None] - self._log[items] + vmf_log_uniform(self._dim)
        if not self._any_large:
            return score
        away, peaks = (1.0 - inner).clamp(0.0, 2.0), (self._peak[rows, None], self._peak[items])
        narrow = torch.maximum(own, other) > LARGE
        return torch.where(narrow, _concentrated(away, own, other, *peaks, self._dim), score)

    def upper(self, inner: Tensor, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Upper bounds ``[B, n]``: the larger score at the ends of [low, high], plus the most that one exceeds it."""
        own = self.per_image[rows, None]
        bound = self._above(self._joint(inner, own, high).sqrt_()).sub_(self._above(high.clone()))
        if low is not high:
            other = self._above(self._joint(inner, own, low).sqrt_()).sub_(self._above(low.clone()))
            bound = torch.maximum(bound, other).add_((high - low).square_().div_(8.0 * self._dim))
        return bound.sub_(self._log[rows, None]).add_(self._sag + vmf_log_uniform(self._dim))

    def scale(self, rows: Tensor, scores: Tensor, items: Tensor | None = None) -> Tensor:
        """Size ``[B, M]`` of the terms of scores, from which rounding errors follow.

        It is twice the sum of the concentrations, the score and |log C(0)|, with C the normaliser of the vMF;
        concentrations whose terms do not cancel count by what is left of them, which grows like their logarithm.
        """
        others = self._largest if items is None else self._size[items]
        return scores.abs() + self._size[rows, None] + others + abs(vmf_log_uniform(self._dim))


def likelihood_bound(rows_at: Rows, count: int) -> NormalBound | VonMisesFisherBound | DiagonalTerms | None:
    """Make the bound of the mutual likelihood score that fits the kind of the distributions.

    Diagonal normals, whose variances do not separate from the distance, have the sizes of their terms only; it is None
    for other kinds.
    """
    cls = type(rows_at(torch.zeros(1, dtype=torch.long)))
    if cls is IsotropicNormal:
        return NormalBound(rows_at, count)
    if cls is DiagonalNormal:
        return DiagonalTerms(rows_at, count)
    return VonMisesFisherBound(rows_at, count) if cls is VonMisesFisher else None


SPECS = (
    ScorerSpec(
        "mls",
        "log of the density overlap, log integral p1(z) p2(z) dz (PFE, Eq. 3); normals and von Mises-Fisher",
        mutual_likelihood,
        bound=likelihood_bound,
        invariant=True,
    ),
)
