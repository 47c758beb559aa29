"""PER's ranking of the nearest modes from whole matrices: slow, and what the fast form is compared with."""

import torch
from bench.protocols.ranking import bound_of, tie_groups, tolerance_of


def _order(scorer, queries, gallery):
    """Minus the number of the tie group of each gallery item, float64 ``[Q, G]``."""
    scores = scorer.matrix(queries, gallery).double().cpu()
    descending, order = scores.sort(dim=1, descending=True)
    typical = scores.abs().median(1).values
    group = tie_groups(descending, tolerance_of(bound_of(scorer), queries, descending, gallery[order], typical))
    return -torch.zeros_like(scores).scatter(1, order, group.double())


class Reranked:
    """Scorer made of two: ``first`` chooses candidates, its nearest images, the other orders them.

    The candidates, the query itself included and all images tied with the last one, come first; the remaining images
    follow in the order of the scorer that chose.
    """

    def __init__(self, scorer, first, candidates):
        self.name = scorer.name
        self._scorer, self._first, self._candidates = scorer, first, candidates

    def matrix(self, queries, gallery):
        """Scores ``[Q, G]`` of which only the order in a row counts: more than 0 for candidates, else not."""
        first, score = (_order(scorer, queries, gallery) for scorer in (self._first, self._scorer))
        last = first.topk(min(self._candidates, len(gallery)), dim=1).values[:, -1:]
        return torch.where(first >= last, score + len(gallery), first)

    def pairs(self, left, right):
        """Scores of pairs of images, ``[P]``, by the scorer that orders candidates; no pair is excluded."""
        return self._scorer.pairs(left, right)
