"""Rankings of the nearest modes alone, as the public code of "Probabilistic Embeddings Revisited" makes them.

The nearest neighbours are chosen by the distance between modes, and only these are ordered by the scorer: one more than
the largest class or the largest k of Recall@k, the query included. It serves to reproduce published numbers:
an image that a likelihood score would put first is missed if its mode is not near.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .query_metrics import Places, expected_metrics, mean_of_counted
from .ranking import (
    BLOCK_PLACES,
    Ranking,
    Scorer,
    bound_of,
    filter_depth,
    positives_of,
    rank,
    require_finite,
    tie_groups,
    tolerance_of,
)

BLOCK_PAIRS = 1 << 15
"""Pairs that are scored at once."""


def candidate_count(labels: Tensor, ks: Sequence[int]) -> int:
    """Number of candidates per query: one more than the size of the largest class or, if larger, than the largest k.

    The query itself is one of them.
    """
    return 1 + max(int(torch.unique(labels, return_counts=True)[1].max()), *ks)


class NearModes:
    """The gallery images nearest to each of Q queries by the modes of embedding distributions, and scores of them.

    Attributes:
        near: Ranking by the distance of the modes, which ``modes`` computes, with K places per query: usually more than
            the candidates, so that most queries still have enough after images are removed. It may be given.
        scores: Scores of these places by ``scorer``, which orders the candidates, ``[Q, K]`` float64; minus infinity at
            places without an image.
        searched: Which images are in the gallery, bool ``[N]``.
    """

    def __init__(
        self,
        scorer: Scorer,
        modes: Scorer,
        labels: Tensor,
        *,
        ks: Sequence[int] = (1,),
        queries: Tensor | None = None,
        gallery: Tensor | None = None,
        near: Ranking | None = None,
    ) -> None:
        self.scorer, self.modes, self.labels, self.ks = scorer, modes, labels, tuple(ks)
        if near is None:
            near = rank(modes, labels, depth=near_depth(labels, ks), queries=queries, gallery=gallery)
        self.near, self.scores = near, _scores(scorer, near)
        self.searched = torch.ones(len(labels), dtype=torch.bool)
        if gallery is not None:
            self.searched.zero_()[gallery] = True

    def values(self, keep: Tensor | None = None) -> dict[str, Tensor]:
        """MAP@R and Recall@k of each query that is kept, after images have been removed from queries and gallery.

        Only the images nearest by mode in what is left of the gallery are ordered by the score. A value is nan for
        queries without a positive.
        """
        left = self.searched if keep is None else keep & self.searched
        near, scores, gallery = self.near, self.scores, left.nonzero().squeeze(1)
        at = torch.arange(len(near.queries)) if keep is None else keep[near.queries].nonzero().squeeze(1)
        queries = near.queries[at]
        positives = positives_of(self.labels, queries, gallery)
        names = ("map_at_r", *(f"recall_at_{k}" for k in self.ks))
        result = {name: torch.full((len(at),), math.nan, dtype=torch.float64) for name in names}
        if not len(at) or len(gallery) < 2:
            return result
        wanted, waiting = candidate_count(self.labels[left], self.ks) - 1, torch.arange(len(at))
        # From the stored places; else from the modes nearest in what is left; and if modes beyond all of these are tied
        # with the last candidate, from the whole gallery.
        for depth in (None, wanted, len(gallery)):
            again = []
            for block in waiting.split(max(1, BLOCK_PLACES // (depth or near.depth))) if len(waiting) else ():
                rows = at[block]
                if depth is not None:
                    near = rank(self.modes, self.labels, depth=depth, queries=queries[block], gallery=gallery)
                    scores, rows = _scores(self.scorer, near), torch.arange(len(block))
                found, good = self._of_rows(near, scores, rows, left, positives[block], wanted)
                for name in names:
                    result[name][block] = found[name]
                again.append(block[~good])
            waiting = torch.cat(again) if again else waiting
        return result

    def _of_rows(
        self, near: Ranking, scores: Tensor, rows: Tensor, left: Tensor, positives: Tensor, wanted: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Metrics of some rows of a ranking by modes, and which of them are right."""
        stored = near.neighbours[rows].long()
        valid = (stored >= 0) & left[stored.clamp_min(0)]
        group = near.group[rows]
        # Candidates tied with the last one are all taken.
        last = torch.where(valid & (valid.cumsum(1) <= wanted), group, -1).amax(1, keepdim=True)
        exhausted = (near.neighbours[rows, -1] < 0) | (near.depth >= near.gallery_size)
        cut = (near.beyond[rows] > 0) & (last.squeeze(1) == group[:, -1])
        good = ((valid.sum(1) >= wanted) | exhausted) & ~cut
        score = scores[rows].masked_fill(~(valid & (group <= last)), -math.inf)
        score, order = score.sort(dim=1, descending=True, stable=True)
        chosen = score > -math.inf
        typical = score.masked_fill(~chosen, math.nan).abs().nanmedian(1).values.nan_to_num(0.0)
        items = stored.clamp_min(0).gather(1, order)
        tolerance = tolerance_of(bound_of(self.scorer), near.queries[rows], score, items, typical)
        relevant = near.relevant[rows].gather(1, order) & chosen
        none = torch.zeros(len(rows), dtype=torch.long)
        need = max(1, int(positives.max()), *self.ks)
        places = Places.of(relevant, tie_groups(score, tolerance), chosen, none, none, need)
        return expected_metrics(places, positives, self.ks), good


def near_depth(labels: Tensor, ks: Sequence[int]) -> int:
    """Places per query of a ranking by modes with which most queries keep all candidates as images are removed."""
    return min(max(filter_depth(labels), candidate_count(labels, ks)), len(labels))


def _scores(scorer: Scorer, near: Ranking) -> Tensor:
    """Scores of the places of a ranking, ``[Q, K]`` float64."""
    parts = []
    for block in torch.arange(len(near.queries)).split(max(1, BLOCK_PAIRS // near.depth)):
        right = near.neighbours[block].long()
        stored = right >= 0
        left = near.queries[block, None].expand_as(right)
        found = scorer.pairs(left[stored], right[stored]).double().cpu()
        require_finite(scorer, found)
        parts.append(torch.full(right.shape, -math.inf, dtype=torch.float64).masked_scatter_(stored, found))
    return torch.cat(parts)


def with_lone_queries(metric: str, values: Tensor) -> Tensor:
    """Values ``[Q]`` to average for the mean of a metric over queries, of which those without a positive are nan.

    As in the public code of "Probabilistic Embeddings Revisited" (PER), a query without a positive counts as 0 in MAP@R
    and is left out of Recall@k.
    """
    return values.nan_to_num(nan=0.0) if metric == "map_at_r" else values[~values.isnan()]


def reranked_map_at_r(scorer: Scorer, modes: Scorer, labels: Tensor, ks: Sequence[int]) -> float:
    """MAP@R, for model selection, as the public code of "Probabilistic Embeddings Revisited" (PER) computes it.

    Every image is query and gallery; queries without a positive count as 0.
    """
    values = NearModes(scorer, modes, labels, ks=ks).values()["map_at_r"]
    return mean_of_counted(with_lone_queries("map_at_r", values))
