"""A scorer bound to the embeddings of a data set: the form in which rankings and verification use scores."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.distributions import Distribution

from ..distributions.arrays import in_float64, on_device, rows_of
from .bounds import Bound
from .inner_products import modes_of
from .registry import get_scorer


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

    def _rows(self, index: Tensor) -> Distribution:
        """Some embeddings, prepared in float64; all of them at once would take twice the memory of what was given."""
        rows = in_float64(rows_of(self._distribution, index))
        return rows if self._spec.prepare_once else self._spec.prepare(rows)

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores ``[Q, G]`` between rows ``queries [Q]`` and ``gallery [G]`` of the batch, on the scorer's device."""
        # Rankings ask block after block for the same gallery.
        if self._gallery is None or self._gallery[0] is not gallery:
            self._gallery = (gallery, on_device(self._rows(gallery), self.device))
        return self._spec.matrix(on_device(self._rows(queries), self.device), self._gallery[1], **self._options)

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores ``[P]`` of P pairs of rows of the batch, ``left[i]`` with ``right[i]``."""
        return self._spec.pairs(self._rows(left), self._rows(right), **self._options)

    def bound(self) -> Bound | None:
        """Make the bound of the score for an exact search (:class:`.Bound`); None if the score has none."""
        return self._spec.bound(self._rows, self._distribution.batch_shape[0])


def mode_scorer(distribution: Distribution, device: str = "cpu") -> DistributionScorer:
    """Build a scorer of the negative squared distance of the modes.

    The public code of Probabilistic Embeddings Revisited uses it to choose the candidates that another scorer ranks.
    """
    return DistributionScorer("l2", modes_of(distribution), device=device)
