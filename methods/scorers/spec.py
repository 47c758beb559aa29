"""What a scorer is: its score in two layouts, the preparation of an embedding, a bound for fast searches.

A layout is a full matrix or aligned pairs, so that every score is written once. Bound to the embeddings of a data set,
a scorer has the form in which rankings and verification use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.arrays import from_arrays, in_float64, on_device, rows_of, to_arrays
from ..distributions.normal import DiagonalNormal, IsotropicNormal, PointMass
from .registry import get_scorer

CANCELLED = 1 / 32
"""Share of two squared lengths below which a squared distance is computed anew: 32 roundings are below 1e-13 of it."""

_ELEMENTS = 1 << 18


class Matrix:
    """Layout in which all pairs of two batches ``[Na]`` and ``[Nb]`` are scored, ``[Na, Nb]``, by matrix products.

    A score function gets the layout as an argument and calls its functions, so that one formula serves both layouts.
    """

    @staticmethod
    def inner(x: Tensor, y: Tensor) -> Tensor:
        """Inner products ``[Na, Nb]`` of all pairs of ``x [Na, D]`` and ``y [Nb, D]``."""
        return x @ y.mT

    @staticmethod
    def outer(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Values per image ``u [Na, *]`` and ``v [Nb, *]``, reshaped to broadcast to all pairs ``[Na, Nb, *]``."""
        return u.unsqueeze(1), v.unsqueeze(0)

    @staticmethod
    def squared_distance(x: Tensor, y: Tensor) -> Tensor:
        """Squared Euclidean distances ``[Na, Nb]`` of all pairs of ``x [Na, D]`` and ``y [Nb, D]``, at least zero.

        In float64 and without a gradient, as for rankings, each has the relative accuracy of a sum of squared
        differences, however long other vectors are.
        """
        squares = x.square().sum(-1)[:, None] + y.square().sum(-1)[None, :]
        squared = torch.sub(squares, x @ y.mT, alpha=2.0).clamp_min_(0.0)
        if squared.dtype == torch.float64 and not squared.requires_grad:
            # Where little is left of the squares, so are few of their digits: these pairs are computed anew.
            row, column = (squared < squares.mul_(CANCELLED)).nonzero(as_tuple=True)
            for part in torch.arange(len(row), device=row.device).split(max(1, _ELEMENTS // x.shape[-1])):
                i, j = row[part], column[part]
                squared[i, j] = Pairs.squared_distance(x[i], y[j])
        return squared


class Pairs:
    """Layout in which aligned pairs of two batches ``[N]`` are scored, ``[N]``."""

    @staticmethod
    def inner(x: Tensor, y: Tensor) -> Tensor:
        """Inner products ``[N]`` of aligned rows of ``x`` and ``y``, each ``[N, D]``."""
        return (x * y).sum(-1)

    @staticmethod
    def outer(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Values per image ``u`` and ``v``, each ``[N, *]``, unchanged, because they are aligned already."""
        return u, v

    @staticmethod
    def squared_distance(x: Tensor, y: Tensor) -> Tensor:
        """Squared Euclidean distances ``[N]`` of aligned rows of ``x`` and ``y``, each ``[N, D]``."""
        return (x - y).square().sum(-1)


Layout = type[Matrix] | type[Pairs]


PAIRS_AT_ONCE = 2048
"""Pairs that are scored at once: both embeddings of each are copied."""

Rows = Callable[[Tensor], Distribution]
"""Function from rows ``[B]`` to their prepared distributions, in float64."""


Bound = Any
"""Bound of a score for an exact search, or the sizes of its terms alone: ``Bound`` and ``Terms`` of the rankings."""


def as_is(distribution: Distribution, seed: int = 0) -> Distribution:
    """Return the distribution unchanged: the preparation of embeddings for a scorer that needs none."""
    return distribution


def no_bound(rows_at: Rows, count: int) -> None:
    """Return None in place of a bound for exact search: for a scorer whose score is no function of an inner product."""
    return None


@dataclass(frozen=True)
class ScorerSpec:
    """Description of a scorer, a function that compares two batches of embeddings.

    Attributes:
        name: Name on the command line and in results.
        formula: Formula of the score, as text.
        score: Function ``(a, b, layout, **options) -> scores`` of prepared distributions; the layout is
            :class:`.Matrix` (all pairs) or :class:`.Pairs` (aligned pairs).
        prepare: Function ``(distribution, seed=0) -> distribution`` for work that concerns one image only, done once
            per image and not once per pair; different seeds keep the draws of two batches apart.
        prepare_once: Whether preparation is expensive or random, so that it must be done once for a whole set.
        options: Names of the keyword options of ``score`` (trained parameters of a scorer).
        bound: Function ``(rows_at, count) -> bound`` for exact search. ``rows_at`` maps rows of a set of ``count``
            images to their prepared distributions. The bound writes the score as a function of one
            inner product and one number per image and gives upper bounds of it, so that a search skips most of a
            gallery. If the score is no such function, it is the sizes of its terms, or None.
        rough: Function ``(a, b, **options) -> (scores, error)`` of a full matrix that is faster than ``score``, float64
            ``[Na, Nb]``, with a bound on the error of each; rankings score anew what it leaves open. None if there is
            no such function.
        invariant: Whether the score stays the same if all means are moved by one vector.
        version: Number to raise when the scorer gives other values than before; it is part of the ids of results.
    """

    name: str
    formula: str
    score: Callable[..., Tensor]
    prepare: Callable[..., Distribution] = as_is
    options: tuple[str, ...] = ()
    prepare_once: bool = False
    bound: Callable[[Rows, int], Bound | None] = no_bound
    rough: Callable[..., tuple[Tensor, Tensor]] | None = None
    invariant: bool = False
    version: int = 1

    def matrix(self, a: Distribution, b: Distribution, **options: float) -> Tensor:
        """Scores ``[Na, Nb]`` of all pairs of two batches that were passed through ``prepare``."""
        return self.score(a, b, Matrix, **options)

    def pairs(self, a: Distribution, b: Distribution, **options: float) -> Tensor:
        """Scores ``[N]`` of the aligned pairs of two batches that were passed through ``prepare``."""
        return self.score(a, b, Pairs, **options)


_OFFSET = 16.0
_SAMPLE = 1 << 10


def spread_rows(count: int) -> Tensor:
    """Positions of about a thousand of ``count`` images, at equal distances."""
    return torch.arange(0, count, -(-count // _SAMPLE))


def centre_of(distribution: Distribution) -> Tensor | None:
    """Point ``[D]`` to move to the origin if the means lie far from it and near each other, else None.

    It is the median, which a few images far away do not move, rounded so that differences from it are exact for
    embeddings in float32.
    """
    if not isinstance(distribution, (PointMass, IsotropicNormal, DiagonalNormal)):
        return None
    centre = distribution.loc.median(0).values.float().double()
    spread = (distribution.loc - centre).norm(dim=1).median()
    return centre if centre.norm() > _OFFSET * spread else None


def moved(distribution: Distribution, centre: Tensor) -> Distribution:
    """Points or normals with their means moved by ``-centre``."""
    kind, arrays = to_arrays(distribution)
    return from_arrays(kind, {**arrays, "loc": arrays["loc"] - centre})


class DistributionScorer:
    """Scorer, a function that compares two sets of embeddings, together with one batch of N distributions to compare.

    It gives scores in float64 between images that are named by their rows in the batch; higher = more similar.

    Args:
        name: Name of the scorer, such as ``cosine``.
        distribution: All embeddings, batch shape ``[N]``.
        options: Trained parameters of the scorer, such as HIB's scale and bias; those it does not take are left out.
        device: Where matrices of scores are computed. Aligned pairs and searches with :meth:`bound` stay on the CPU.
    """

    def __init__(
        self,
        name: str,
        distribution: Distribution,
        options: Mapping[str, float] | None = None,
        device: str = "cpu",
    ) -> None:
        self.name = name
        self.device = device
        self._spec = get_scorer(name)
        self._options = {key: value for key, value in (options or {}).items() if key in self._spec.options}
        if self._spec.prepare_once:
            distribution = self._spec.prepare(in_float64(distribution))
        self._distribution = distribution
        self._gallery: tuple[Tensor, Distribution] | None = None
        self._bound: Bound | None = None
        self._centre: Tensor | None = None
        if self._spec.invariant:
            self._centre = centre_of(self._rows(spread_rows(distribution.batch_shape[0])))

    def _rows(self, index: Tensor) -> Distribution:
        """Some embeddings, prepared in float64; all of them at once would take twice the memory of what was given."""
        rows = in_float64(rows_of(self._distribution, index))
        rows = rows if self._spec.prepare_once else self._spec.prepare(rows)
        return rows if self._centre is None else moved(rows, self._centre)

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores ``[Q, G]`` between rows ``queries [Q]`` and ``gallery [G]`` of the batch, on the scorer's device."""
        return self._spec.score(*self._sides(queries, gallery), Matrix, **self._options)

    def rough(self, queries: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor] | None:
        """Scores near those of :meth:`matrix`, with bounds on their errors; None if there are none that save time."""
        if self._spec.rough is None or self.device != "cpu" or torch.get_float32_matmul_precision() != "highest":
            return None
        return self._spec.rough(*self._sides(queries, gallery), **self._options)

    def _sides(self, queries: Tensor, gallery: Tensor) -> tuple[Distribution, Distribution]:
        # Rankings ask block after block for the same gallery.
        if self._gallery is None or self._gallery[0] is not gallery:
            self._gallery = (gallery, on_device(self._rows(gallery), self.device))
        return on_device(self._rows(queries), self.device), self._gallery[1]

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores ``[P]`` of P pairs of rows of the batch, ``left[i]`` with ``right[i]``."""
        blocks = zip(left.split(PAIRS_AT_ONCE), right.split(PAIRS_AT_ONCE))
        return torch.cat([self._spec.pairs(self._rows(a), self._rows(b), **self._options) for a, b in blocks])

    def bound(self) -> Bound | None:
        """Bound of the score for an exact search (:data:`Bound`), or the sizes of its terms; None without either."""
        if self._bound is None:
            self._bound = self._spec.bound(self._rows, self._distribution.batch_shape[0])
        return self._bound
