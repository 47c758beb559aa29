"""Scorers: similarities of rows by index, which rankings and verification are computed with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Scorer(Protocol):
    """Similarity of rows, higher = more similar, in float64."""

    name: str

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores ``[Q, G]`` between two lists of rows."""

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores ``[P]`` of aligned rows."""


class ScoreMatrix:
    """Scorer that looks scores up in a given matrix ``[N, N]``.

    Example:
        >>> scorer = ScoreMatrix(torch.eye(2))
        >>> scorer.pairs(torch.tensor([0]), torch.tensor([1])).item()
        0.0
    """

    def __init__(self, scores: Tensor, name: str = "given") -> None:
        self.scores = scores.double()
        self.name = name

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores ``[Q, G]``."""
        return self.scores[queries][:, gallery]

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores ``[P]``."""
        return self.scores[left, right]


class MeanScorer:
    """Scorer that averages several scorers, as for embeddings of several models side by side.

    Example:
        >>> MeanScorer([ScoreMatrix(torch.eye(2)), ScoreMatrix(torch.zeros(2, 2))]).pairs(
        ...     torch.tensor([0]), torch.tensor([0])).item()
        0.5
    """

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self.name = scorers[0].name
        self._scorers = tuple(scorers)

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores ``[Q, G]``."""
        total = self._scorers[0].matrix(queries, gallery).double()
        for scorer in self._scorers[1:]:
            total = total + scorer.matrix(queries, gallery)
        return total / len(self._scorers)

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores ``[P]`` of aligned rows."""
        return torch.stack([scorer.pairs(left, right).double() for scorer in self._scorers]).mean(0)


class Reranked:
    """Scorer by which the nearest ``candidates`` of another scorer are ranked; the others follow in the other's order.

    It scores the whole gallery: :class:`~bench.protocols.near_modes.NearModes` is the fast form of the ranking.

    Args:
        scorer: Scorer of the candidates.
        first: Scorer that chooses them.
        candidates: How many, the query itself included; candidates tied with the last one are all taken.

    Example:
        >>> near = ScoreMatrix(torch.tensor([[9.0, 2.0, 1.0]]))
        >>> likely = ScoreMatrix(torch.tensor([[0.0, 3.0, 7.0]]))
        >>> Reranked(likely, near, candidates=2).matrix(torch.tensor([0]), torch.arange(3)).argsort().tolist()
        [[2, 0, 1]]
    """

    def __init__(self, scorer: Scorer, first: Scorer, candidates: int) -> None:
        self.name = scorer.name
        self._scorer, self._first, self._candidates = scorer, first, candidates

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores ``[Q, G]``: candidates at 0 and above, the rest below."""
        first = self._first.matrix(queries, gallery).double()
        last = first.topk(min(self._candidates, len(gallery)), dim=1).values[:, -1:]
        chosen = first >= last
        score = self._scorer.matrix(queries, gallery).double()
        low = score.masked_fill(~chosen, math.inf).amin(1, keepdim=True)
        high = first.masked_fill(chosen, -math.inf).amax(1, keepdim=True)
        return torch.where(chosen, score - low, first - high - 1.0)

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores ``[P]`` of aligned rows: pairs are not ranked, so nothing is chosen."""
        return self._scorer.pairs(left, right)
