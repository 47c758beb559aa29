"""Description of a scorer: its score, the preparation of an embedding, and a bound for fast searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution

from .bounds import Bound, Rows
from .layout import Matrix, Pairs


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
            images to their prepared distributions. The bound, a :class:`.Bound`, writes the score as a function of one
            inner product and one number per image and gives upper bounds of it, so that a search skips most of a
            gallery; None if the score is no such function.
        version: Number to raise when the scorer gives other values than before; it is part of the ids of results.
    """

    name: str
    formula: str
    score: Callable[..., Tensor]
    prepare: Callable[..., Distribution] = as_is
    options: tuple[str, ...] = ()
    prepare_once: bool = False
    bound: Callable[[Rows, int], Bound | None] = no_bound
    version: int = 1

    def matrix(self, a: Distribution, b: Distribution, **options: float) -> Tensor:
        """Scores ``[Na, Nb]`` of all pairs of two batches that were passed through ``prepare``."""
        return self.score(a, b, Matrix, **options)

    def pairs(self, a: Distribution, b: Distribution, **options: float) -> Tensor:
        """Scores ``[N]`` of the aligned pairs of two batches that were passed through ``prepare``."""
        return self.score(a, b, Pairs, **options)
