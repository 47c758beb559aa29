"""Retrieval over the full gallery, exact under ties: Recall@k, MAP@R, R-precision.

A query's own row is removed by identity. Scores that are equal up to rounding are tied, and every metric is its
expectation over the random orders of tied items, in closed form (McSherry and Najork 2008), so nothing depends on the
order in which images are stored. Queries without a positive are left out of every metric and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .embeddings import Row, row
from .search import search, usable

TIE_TOLERANCE = 1e-13
"""Two neighbouring scores are tied if they differ by less than this share of the row's scale: the bound on the terms of
a score that a scorer with a bound gives, else the largest score of the row. A matrix product in float64 may round equal
embeddings to scores some 1e-16 of that apart, depending on where they are stored."""

BLOCK_BYTES = 44 << 20
"""Bound on the memory of one block of scores and what is made of it."""

BLOCK_PLACES = 1 << 18
"""Places of a block of a ranking: 2 MiB per float64 intermediate."""


class Scorer(Protocol):
    """Similarity of rows, higher = more similar, in float64."""

    name: str

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores ``[Q, G]`` between two lists of rows."""

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores ``[P]`` of aligned rows."""


class ScoreMatrix:
    """A scorer from a given matrix ``[N, N]``.

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
    """The mean of several scorers: embeddings of several models side by side.

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
    """What PER's public code ranks with: only the nearest ``candidates`` of another scorer get the scores of this one.

    The others follow in the order of the first scorer, so an image that a likelihood score would put first is missed
    if its mean is not near. Here to reproduce published numbers; every other ranking is over the whole gallery.

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


@dataclass(frozen=True)
class Ranking:
    """The nearest neighbours of some queries, with their groups of tied scores.

    Attributes:
        gallery_size: Items in the gallery, the query itself included where it is one.
        queries: Rows of the queries, ``[Q]``.
        neighbours: Rows of the nearest gallery items, best first, ``[Q, K]`` int32; -1 where the gallery is exhausted.
            Tied items are in the order of their rows.
        relevant: Whether a neighbour has the query's class, ``[Q, K]``.
        group: Number of the tie group of each place, ascending along a row, ``[Q, K]`` int32.
        beyond: How many items of a row's last stored group lie beyond place K, ``[Q]``.
        beyond_relevant: How many of those are relevant, ``[Q]``.
        positives: Relevant items in the whole gallery, R, ``[Q]``.
    """

    gallery_size: int
    queries: Tensor
    neighbours: Tensor
    relevant: Tensor
    group: Tensor
    beyond: Tensor
    beyond_relevant: Tensor
    positives: Tensor

    @property
    def depth(self) -> int:
        """Places K."""
        return self.neighbours.shape[1]

    @property
    def exhausted(self) -> bool:
        """Whether no place is missing: the whole gallery is stored."""
        return self.depth >= self.gallery_size or bool((self.neighbours[:, -1] == -1).any())

    def blocks(self) -> Iterator[Ranking]:
        """The same by parts of the queries, so that what is computed from them stays small."""
        for part in torch.arange(len(self.queries)).split(max(1, BLOCK_PLACES // self.depth)):
            rows = slice(int(part[0]), int(part[-1]) + 1)
            yield Ranking(
                self.gallery_size,
                self.queries[rows],
                self.neighbours[rows],
                self.relevant[rows],
                self.group[rows],
                self.beyond[rows],
                self.beyond_relevant[rows],
                self.positives[rows],
            )


def rank(
    scorer: Scorer,
    labels: Tensor,
    *,
    depth: int,
    queries: Tensor | None = None,
    gallery: Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Ranking:
    """Rank the whole gallery for every query and keep the ``depth`` nearest.

    Args:
        scorer: Similarity of rows.
        labels: Classes of all rows, ``[N]``.
        depth: Places kept per query, at least 1.
        queries: Rows that are queries; all if not given.
        gallery: Rows that are in the gallery; all if not given.
        block_bytes: Memory of one block, up to four times as much where the gallery is so large that it would hold
            fewer than 64 queries; does not change the result.

    Raises:
        ValueError: If a score is not finite, or there is nothing to rank.

    Example:
        >>> scores = torch.tensor([[9.0, 2.0, 1.0], [2.0, 9.0, 0.0], [1.0, 0.0, 9.0]])
        >>> rank(ScoreMatrix(scores), torch.tensor([0, 0, 1]), depth=2).neighbours.tolist()
        [[1, 2], [0, 2], [0, 1]]
    """
    rows = torch.arange(len(labels))
    queries = rows if queries is None else queries
    gallery = rows if gallery is None else gallery
    if len(gallery) < 2 or depth < 1:
        raise ValueError("ranking needs a gallery of at least two items and a depth of at least 1")
    if not len(queries):
        raise ValueError("ranking needs at least one query")
    find = getattr(scorer, "bound", None)
    bound = None if find is None else find()
    table = _Table.empty(labels, queries, gallery, min(depth, len(gallery)))
    waiting = torch.ones(len(queries), dtype=torch.bool)
    tolerance = None if bound is None else TIE_TOLERANCE * bound.scale(queries, gallery)
    if bound is not None and tolerance is not None and usable(bound, queries, gallery, tolerance, depth):
        for found in search(bound, queries, gallery, tolerance, depth=depth, block_bytes=block_bytes):
            table.put(found.place, found.items, found.scores, tolerance[found.place])
            waiting[found.place] = False
    per_block = max(1, block_bytes // (40 * len(gallery)))
    for place in waiting.nonzero().squeeze(1).split(per_block) if bool(waiting.any()) else ():
        _rank_block(scorer, table, place, queries[place], gallery, None if tolerance is None else tolerance[place])
    return table.ranking()


@dataclass
class _Table:
    """A ranking that is filled in parts."""

    labels: Tensor
    gallery_size: int
    queries: Tensor
    neighbours: Tensor
    relevant: Tensor
    group: Tensor
    beyond: Tensor
    beyond_relevant: Tensor
    positives: Tensor

    @classmethod
    def empty(cls, labels: Tensor, queries: Tensor, gallery: Tensor, depth: int) -> _Table:
        label = torch.unique(labels, return_inverse=True)[1]
        searched = torch.zeros(len(labels), dtype=torch.bool)
        searched[gallery] = True
        positives = torch.bincount(label[gallery], minlength=int(label.max()) + 1)[label[queries]]
        shape = (len(queries), depth)
        return cls(
            label,
            len(gallery),
            queries,
            torch.full(shape, -1, dtype=torch.int32),
            torch.zeros(shape, dtype=torch.bool),
            torch.zeros(shape, dtype=torch.int32),
            torch.zeros(len(queries), dtype=torch.int32),
            torch.zeros(len(queries), dtype=torch.int32),
            positives - searched[queries].long(),
        )

    def put(self, place: Tensor, items: Tensor, scores: Tensor, tolerance: Tensor) -> None:
        """Enter rows of sorted scores ``[B, M]``, M over the depth unless that is the gallery; -inf is no item.

        The scores of a row must reach to the end of the tie group at the depth. Tied items are put in the order of
        their rows, so that nothing depends on how they were found.
        """
        depth = self.neighbours.shape[1]
        group = _groups(scores, tolerance)
        valid = scores > -math.inf
        tied = (group[:, 1:] == group[:, :-1]).any(1).nonzero().squeeze(1)
        if len(tied):
            key = group[tied] * len(self.labels) + items[tied]
            items = items.clone()
            items[tied] = items[tied].gather(1, key.argsort(dim=1))
        relevant = (self.labels[items] == self.labels[self.queries[place], None]) & valid
        tail = (group[:, depth:] == group[:, depth - 1 : depth]) & valid[:, depth:]
        self.neighbours[place] = items[:, :depth].masked_fill(~valid[:, :depth], -1).int()
        self.relevant[place] = relevant[:, :depth]
        self.group[place] = group[:, :depth].int()
        self.beyond[place] = tail.sum(1).int()
        self.beyond_relevant[place] = (tail & relevant[:, depth:]).sum(1).int()

    def ranking(self) -> Ranking:
        """The whole, once every row is in."""
        return Ranking(
            self.gallery_size,
            self.queries,
            self.neighbours,
            self.relevant,
            self.group,
            self.beyond,
            self.beyond_relevant,
            self.positives,
        )


def _rank_block(
    scorer: Scorer, table: _Table, place: Tensor, queries: Tensor, gallery: Tensor, tolerance: Tensor | None
) -> None:
    """Rank some queries by their scores with the whole gallery."""
    scores = scorer.matrix(queries, gallery).double()
    if not torch.isfinite(scores).all():
        raise ValueError(
            f"scorer {scorer.name!r} gave {int((~torch.isfinite(scores)).sum())} scores that are not finite"
        )
    if tolerance is None:
        tolerance = TIE_TOLERANCE * scores.abs().amax(1).cpu()
    scores = scores.masked_fill((queries[:, None] == gallery[None, :]).to(scores.device), -math.inf)
    kept = table.neighbours.shape[1]
    top, order = (found.cpu() for found in scores.topk(min(kept + 1, len(gallery)), dim=1))
    cut = torch.zeros(len(queries), dtype=torch.bool)
    if top.shape[1] > kept:
        cut = (top[:, kept - 1] - top[:, kept] <= tolerance) & torch.isfinite(top[:, kept])
        # The group is cut by the depth: only a full sort of these rows says how far it reaches.
        if bool(cut.any()):
            full, every = (found.cpu() for found in scores[cut.to(scores.device)].sort(dim=1, descending=True))
            table.put(place[cut], gallery[every], full, tolerance[cut])
    if not bool(cut.all()):
        table.put(place[~cut], gallery[order[~cut]], top[~cut], tolerance[~cut])


def _groups(descending: Tensor, tolerance: Tensor) -> Tensor:
    """Numbers of the tie groups along rows of sorted scores; what follows the gallery's end is apart."""
    gap = descending[:, :-1] - descending[:, 1:]
    # -inf - (-inf) is nan, and no comparison with nan is true: places beyond the gallery share a group of their own.
    new = gap > tolerance[:, None]
    return torch.cat([torch.zeros_like(new[:, :1], dtype=torch.long), new.long().cumsum(1)], dim=1)


@dataclass(frozen=True)
class _Places:
    """Per place of each row: its tie group's size m, relevant r, places s and relevant b before the group."""

    size: Tensor
    hits: Tensor
    start: Tensor
    before: Tensor

    @classmethod
    def of(
        cls,
        relevant: Tensor,
        group: Tensor,
        valid: Tensor,
        beyond: Tensor,
        beyond_relevant: Tensor,
        need: int | None = None,
    ) -> _Places:
        """The first ``need`` places of rows ``[Q, K]`` whose valid places come first; all places if not given."""
        relevant = relevant & valid
        need = group.shape[1] if need is None else min(need, group.shape[1])
        if need < group.shape[1]:
            # What follows counts only as far as it is tied with the last place that is kept.
            tail = (group[:, need:] == group[:, need - 1 : need]) & valid[:, need:]
            reaches = group[:, -1] == group[:, need - 1]
            beyond = tail.sum(1) + torch.where(reaches, beyond, 0)
            beyond_relevant = (tail & relevant[:, need:]).sum(1) + torch.where(reaches, beyond_relevant, 0)
            relevant, group, valid = relevant[:, :need], group[:, :need], valid[:, :need]
        # Group numbers may have gaps, once filtering has removed items: number them anew from 0.
        new = torch.cat([torch.ones_like(valid[:, :1]), group[:, 1:] != group[:, :-1]], dim=1)
        hits = relevant.double()
        start = torch.arange(need, dtype=torch.float64).repeat(len(hits), 1)
        places = cls(valid.double(), hits, start, hits.cumsum(1) - hits)
        tied = ((~new).any(1) | (beyond > 0)).nonzero().squeeze(1)
        if len(tied):
            whole = cls._tied(relevant[tied], new[tied], valid[tied], beyond[tied], beyond_relevant[tied])
            for table, rows in zip(places.tables(), whole.tables()):
                table[tied] = rows
        return places

    @classmethod
    def _tied(cls, relevant: Tensor, new: Tensor, valid: Tensor, beyond: Tensor, beyond_relevant: Tensor) -> _Places:
        index = new.long().cumsum(1) - 1
        zeros = torch.zeros(index.shape, dtype=torch.float64)
        size = zeros.scatter_add(1, index, valid.double())
        hits = zeros.scatter_add(1, index, relevant.double())
        last = torch.where(valid, index, -1).amax(1, keepdim=True).clamp_min(0)
        size = size.scatter_add(1, last, beyond.double()[:, None])
        hits = hits.scatter_add(1, last, beyond_relevant.double()[:, None])
        start = size.cumsum(1) - size
        before = hits.cumsum(1) - hits
        return cls(*(table.gather(1, index) for table in (size, hits, start, before)))

    def tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Sizes, hits, starts and hits before."""
        return self.size, self.hits, self.start, self.before


def _expected_precisions(places: _Places) -> Tensor:
    """Expectation of (relevant at place i) * (precision at i), ``[Q, K]``."""
    m, r, s, b = places.size.clamp_min(1.0), places.hits, places.start, places.before
    i = torch.arange(1, m.shape[1] + 1, dtype=torch.float64)[None, :]
    within = (i - s - 1.0) * (r - 1.0) / (m - 1.0).clamp_min(1.0)
    return r / m * (b + 1.0 + torch.where(m > 1.0, within, 0.0)) / i


def _expected(places: _Places, positives: Tensor, ks: Sequence[int]) -> dict[str, Tensor]:
    """Expected metrics per query; nan for lone queries."""
    m, r, s, b = places.size.clamp_min(1.0), places.hits, places.start, places.before
    i = torch.arange(1, m.shape[1] + 1, dtype=torch.float64)[None, :]
    share = r / m
    precision = _expected_precisions(places)
    total = positives.double()
    counted = (i <= total[:, None]).double()
    lone = positives == 0
    divisor = total.clamp_min(1.0)
    result = {
        "map_at_r": (precision * counted).sum(1) / divisor,
        "r_precision": (share * counted).sum(1) / divisor,
        "precision_at_1": share[:, 0].clone(),
    }
    for k in ks:
        place = min(k, m.shape[1]) - 1
        result[f"recall_at_{k}"] = _recall(m[:, place], r[:, place], s[:, place], b[:, place], place + 1)
    return {name: values.masked_fill(lone, math.nan) for name, values in result.items()}


def _recall(m: Tensor, r: Tensor, s: Tensor, b: Tensor, k: int) -> Tensor:
    """P(a relevant item among the first k): 1 - C(m-r, t) / C(m, t) with t = k - s draws from the group of place k."""
    t = (k - s).clamp(min=0.0)
    t = torch.minimum(t, m)
    possible = t <= m - r
    log_miss = (
        torch.lgamma(m - r + 1)
        - torch.lgamma((m - r - t).clamp_min(0.0) + 1)
        - torch.lgamma(m + 1)
        + torch.lgamma(m - t + 1)
    )
    miss = torch.where(possible, log_miss.exp().clamp(max=1.0), 0.0)
    miss = torch.where(r == 0, 1.0, miss)
    return torch.where(b > 0, 1.0, 1.0 - miss)


def per_query(ranking: Ranking, ks: Sequence[int] = (1,)) -> dict[str, Tensor]:
    """Expected metrics of every query.

    Args:
        ranking: Ranking whose depth reaches the largest R and the largest k (or the whole gallery).
        ks: k of Recall@k.

    Returns:
        ``map_at_r``, ``r_precision``, ``precision_at_1``, ``recall_at_{k}``, each ``[Q]``; nan for lone queries.

    Raises:
        ValueError: If the ranking is not deep enough.

    Example:
        >>> scores = torch.tensor([[9.0, 2.0, 2.0], [2.0, 9.0, 0.0], [2.0, 0.0, 9.0]])
        >>> per_query(rank(ScoreMatrix(scores), torch.tensor([0, 0, 1]), depth=2))["recall_at_1"].tolist()
        [0.5, 1.0, nan]
    """
    need = max([int(ranking.positives.max()), *ks])
    if need > ranking.depth and not ranking.exhausted:
        raise ValueError(f"ranking holds {ranking.depth} places, metrics need {need}")
    parts = []
    for block in ranking.blocks():
        valid = block.neighbours >= 0
        places = _Places.of(block.relevant, block.group, valid, block.beyond, block.beyond_relevant, need)
        parts.append(_expected(places, block.positives, ks))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def full_depth(labels: Tensor, ks: Sequence[int] = (1,)) -> int:
    """Places that all metrics need: the largest class size less one, or the largest k; at most the gallery.

    Example:
        >>> full_depth(torch.tensor([0, 0, 0, 1])), full_depth(torch.tensor([0, 0, 0, 1]), ks=(1, 8))
        (2, 4)
    """
    most = int(torch.unique(labels, return_counts=True)[1].max()) - 1
    return max(1, min(max(most, *ks), len(labels)))


def mean_of_counted(values: Tensor) -> float:
    """Mean over the queries that count, the same for any order of them; nan if none counts.

    Example:
        >>> mean_of_counted(torch.tensor([1.0, 0.0, float("nan")]))
        0.5
    """
    counted = values[~values.isnan()].tolist()
    return math.fsum(counted) / len(counted) if counted else math.nan


def retrieval_rows(
    scorer: Scorer,
    labels: Tensor,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    queries: Tensor | None = None,
    gallery: Tensor | None = None,
    ranking: Ranking | None = None,
) -> Iterator[Row]:
    """Recall@k, MAP@R, R-precision and P@1 of every query against the gallery; every image is both if not said.

    MAP@R of a query with R positives is ``1/R sum_{i<=R} rel_i * precision_i`` (Musgrave et al. 2020, Section 3).

    Args:
        scorer: Similarity of rows.
        labels: Classes ``[N]``.
        ks: k of Recall@k.
        queries: Rows that are queries; all if not given.
        gallery: Rows that are searched; all if not given.
        ranking: Ranking by this scorer of these queries and this gallery, if there is one already; deep enough for the
            largest R and the largest k.

    Example:
        >>> scores = torch.tensor([[9.0, 2.0, 1.0], [2.0, 9.0, 0.0], [1.0, 0.0, 9.0]])
        >>> [(r["metric"], r["value"]) for r in retrieval_rows(ScoreMatrix(scores), torch.tensor([0, 0, 1]), ks=(1,))]
        [('map_at_r', 1.0), ('r_precision', 1.0), ('precision_at_1', 1.0), ('recall_at_1', 1.0)]
    """
    if ranking is None:
        ranking = rank(scorer, labels, depth=full_depth(labels, ks), queries=queries, gallery=gallery)
    values = per_query(ranking, ks)
    for metric, each in values.items():
        lone = int(each.isnan().sum())
        yield row(metric, mean_of_counted(each), scorer=scorer.name, n_queries=len(each) - lone, n_lone=lone)


def map_at_k_rows(
    scorer: Scorer,
    labels: Tensor,
    *,
    k: int = 1000,
    queries: Tensor | None = None,
    gallery: Tensor | None = None,
) -> Iterator[Row]:
    """mAP@1000 as deep metric learning reports it, under two denominators.

    The precisions at the relevant places among the first k are summed and divided by ``n``, the class's images with the
    query (Roth et al. 2020; a perfect ranking then has (n - 1) / n), or by ``min(k, n - 1)``, what can be found.
    The expectation over the orders of tied scores is exact.

    Example:
        >>> scores = torch.tensor([[9.0, 2.0, 1.0], [2.0, 9.0, 0.0], [1.0, 0.0, 9.0]])
        >>> [(r["variant"], r["value"]) for r in map_at_k_rows(ScoreMatrix(scores), torch.tensor([0, 0, 1]))]
        [('denominator=n', 0.5), ('denominator=min(k,n-1)', 1.0)]
    """
    size = len(labels) if gallery is None else len(gallery)
    asked = torch.arange(len(labels)) if queries is None else queries
    sums, found = [], []
    for part in asked.split(2048):  # a thousand places of every query at once would not fit
        ranking = rank(scorer, labels, depth=min(k, size), queries=part, gallery=gallery)
        places = _Places.of(
            ranking.relevant, ranking.group, ranking.neighbours >= 0, ranking.beyond, ranking.beyond_relevant
        )
        sums.append(_expected_precisions(places).sum(1))
        found.append(ranking.positives)
    precision, positives = torch.cat(sums), torch.cat(found)
    r, lone = positives.double(), positives == 0
    for variant, denominator in (("denominator=n", r + 1), ("denominator=min(k,n-1)", r.clamp(1, k))):
        each = (precision / denominator).masked_fill(lone, math.nan)
        yield row(
            f"map_at_{k}",
            mean_of_counted(each),
            scorer=scorer.name,
            variant=variant,
            n_queries=int((~lone).sum()),
            n_lone=int(lone.sum()),
        )


def map_at_r(scorer: Scorer, labels: Tensor) -> float:
    """MAP@R alone, for model selection.

    Example:
        >>> map_at_r(ScoreMatrix(torch.tensor([[9.0, 2.0, 1.0], [2.0, 9.0, 0.0], [1.0, 0.0, 9.0]])), torch.zeros(3))
        1.0
    """
    return mean_of_counted(per_query(rank(scorer, labels, depth=full_depth(labels)))["map_at_r"])
