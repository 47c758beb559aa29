"""Scorers: similarities of rows by index, which rankings and verification are computed with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Scorer(Protocol):
    """Interface of a scorer: similarity of embedded images, given by their positions; higher = more similar."""

    name: str

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores of every query ``[Q]`` with every gallery image ``[G]``, float64 ``[Q, G]``."""

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores of pairs of images, ``[P]`` each, float64 ``[P]``."""


class ScoreMatrix:
    """Scorer that looks scores up in a given matrix ``[N, N]``."""

    def __init__(self, scores: Tensor, name: str = "given") -> None:
        self.scores = scores.double()
        self.name = name

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores of every query with every gallery image, ``[Q, G]``, from the given matrix."""
        return self.scores[queries][:, gallery]

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores of pairs of images, ``[P]``, from the given matrix."""
        return self.scores[left, right]


class MeanScorer:
    """Scorer that averages several scorers, such as those of several models; it has the name of the first.

    Example:
        >>> MeanScorer([ScoreMatrix(torch.eye(2)), ScoreMatrix(torch.zeros(2, 2))]).pairs(
        ...     torch.tensor([0]), torch.tensor([0])).item()
        0.5
    """

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self.name = scorers[0].name
        self._scorers = tuple(scorers)

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Mean scores of every query with every gallery image, ``[Q, G]``."""
        total = self._scorers[0].matrix(queries, gallery).double()
        for scorer in self._scorers[1:]:
            total = total + scorer.matrix(queries, gallery)
        return total / len(self._scorers)

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Mean scores of pairs of images, ``[P]``."""
        return torch.stack([scorer.pairs(left, right).double() for scorer in self._scorers]).mean(0)


class Reranked:
    """Scorer made of two: ``first`` chooses candidates, its nearest images, the other orders them.

    The candidates, the query itself included and all images tied with the last one, come first; the remaining images
    follow in the order of the scorer that chose. Both scorers are computed for the whole gallery;
    :class:`~bench.protocols.near_modes.NearModes` gives the metrics of such a ranking faster.
    """

    def __init__(self, scorer: Scorer, first: Scorer, candidates: int) -> None:
        self.name = scorer.name
        self._scorer, self._first, self._candidates = scorer, first, candidates

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores ``[Q, G]`` of which only the order in a row counts: 0 or more for candidates, else negative."""
        first = self._first.matrix(queries, gallery).double()
        last = first.topk(min(self._candidates, len(gallery)), dim=1).values[:, -1:]
        chosen = first >= last
        score = self._scorer.matrix(queries, gallery).double()
        low = score.masked_fill(~chosen, math.inf).amin(1, keepdim=True)
        high = first.masked_fill(chosen, -math.inf).amax(1, keepdim=True)
        return torch.where(chosen, score - low, first - high - 1.0)

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores of pairs of images, ``[P]``, by the scorer that orders candidates; no pair is excluded."""
        return self._scorer.pairs(left, right)
