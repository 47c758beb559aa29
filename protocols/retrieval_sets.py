"""Retrieval sets: the k nearest images, with k such that most queries find a positive among them.

k is calibrated on queries whose answers are known (split conformal prediction, Papadopoulos et al. 2002; for retrieval,
RCIR, arXiv:2307.07336). A new query finds a positive with at least the wanted probability if it is exchangeable with
those queries: if both are one random query of random classes, say. Under a shift of classes nothing is guaranteed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .declare import test
from .embeddings import Embeddings
from .ranking import BLOCK_BYTES, Ranking, Scorer, bound_of, require_finite, tolerance_of
from .retrieval_confidence import uniform_by_identity
from .rows import Row, row
from .search import Bound, product_error, usable
from .verification import class_halves


@dataclass(frozen=True)
class RetrievalSets:
    """Size of the retrieval sets of some queries, and the share of them that contain a positive.

    ``k`` is infinite if there were too few calibration queries, so that every set is the whole gallery. ``coverage`` is
    nan without queries; ``size``, k or all of a smaller gallery, is its price. Of the queries, ``n_queries`` count and
    ``n_lone`` have no positive.
    """

    k: float
    coverage: float
    size: float
    n_queries: int
    n_lone: int


def first_positive_ranks(
    scorer: Scorer,
    labels: Tensor,
    *,
    queries: Tensor | None = None,
    gallery: Tensor | None = None,
    kin: Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Tensor:
    """Rank of the first positive of every query in the whole gallery, from 1, float64 ``[Q]``; nan without a positive.

    A query is not its own neighbour, nor are others of its ``kin`` (:func:`~bench.protocols.ranking.rank`). Of tied
    images a positive counts as the last one: then a set of this many nearest images contains a positive in any order of
    the ties.

    Example:
        >>> from .ranking import ScoreMatrix
        >>> scores = torch.tensor([[9.0, 1.0, 2.0], [1.0, 9.0, 0.0], [2.0, 0.0, 9.0]])
        >>> first_positive_ranks(ScoreMatrix(scores), torch.tensor([0, 0, 1])).tolist()
        [2.0, 1.0, nan]
    """
    rows = torch.arange(len(labels))
    asked = rows if queries is None else queries
    searched = rows if gallery is None else gallery
    kin = rows if kin is None else kin
    ranks = torch.full((len(asked),), math.nan, dtype=torch.float64)
    if not len(searched) or not len(asked):
        return ranks
    members: dict[int, list[int]] = defaultdict(list)
    for column, label in enumerate(labels[searched].tolist()):
        members[label].append(column)

    def own(block: Tensor) -> Tensor:
        """Columns of the class of each query, itself among it, and -1, ``[B, C]``."""
        columns = [torch.tensor(members[label], dtype=torch.long) for label in labels[block].tolist()]
        return pad_sequence(columns, batch_first=True, padding_value=-1)

    bound = bound_of(scorer)
    left = torch.arange(len(asked))
    if usable(bound, asked, searched, 1) and bound.per_image is None:
        left = _by_products(scorer, bound, asked, searched, kin, own, ranks)
    of_row = 40 * len(searched)
    # As in a ranking: the gallery is read anew for every block, so that blocks of a few queries would cost more.
    at_once = max(1, min(64, 4 * block_bytes // of_row), block_bytes // of_row)
    for place in left.split(at_once) if len(left) else ():
        block = asked[place]
        scores = scorer.matrix(block, searched).double().cpu()
        # A sum takes a twentieth of the time, and is not finite if a score is not.
        if not torch.isfinite(scores.sum()):
            require_finite(scorer, scores)
        columns = own(block)
        if columns.shape[1] == 0:
            continue
        inside = scores.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, -math.inf)
        positive = (columns >= 0) & (kin[searched[columns]] != kin[block, None])
        best, place_of_best = inside.masked_fill(~positive, -math.inf).max(1, keepdim=True)
        nearest = searched[columns.clamp(min=0).gather(1, place_of_best)]
        typical = None if bound is not None else scores.abs().median(1).values
        least = best - tolerance_of(bound, block, best, nearest, typical)
        before = (scores >= least).sum(1) - (inside >= least).sum(1)
        ranks[place] = (before + 1).double().masked_fill(~positive.any(1), math.nan)
    return ranks


_ROWS, _TILE = 1 << 8, 1 << 11
"""Queries and images whose products are made at a time: 2 MiB."""


def _by_products(
    scorer: Scorer,
    bound: Bound,
    asked: Tensor,
    searched: Tensor,
    kin: Tensor,
    own: Callable[[Tensor], Tensor],
    ranks: Tensor,
) -> Tensor:
    """Enter the ranks that products in float32 tell by and large, and return the places of the other queries.

    Scores rise with the inner product alone. An image whose product is above that of the best positive by more than the
    error is certainly before it, one that is below by more than twice the error is certainly not, and those between are
    scored in float64.
    """
    factors = torch.empty(len(searched), bound.right(searched[:1]).shape[1])
    longest = torch.zeros(1, 1, dtype=torch.float64)
    for part in torch.arange(len(searched)).split(_TILE):
        right = bound.right(searched[part])
        factors[part[0] : part[-1] + 1], longest = right, torch.maximum(longest, right.norm(dim=1).max())
    buffer, others = torch.empty(_ROWS * _TILE), []
    for place in torch.arange(len(asked)).split(_ROWS):
        block, columns = asked[place], own(asked[place])
        row, at = (columns >= 0).nonzero(as_tuple=True)
        column = columns[row, at]
        column, order = column.sort()
        row = row[order]
        inside, positive = scorer.pairs(block[row], searched[column]), kin[searched[column]] != kin[block[row]]
        best = torch.full((len(block),), -math.inf, dtype=torch.float64)
        best.scatter_reduce_(0, row[positive], inside[positive], "amax")
        is_best, nearest = positive & (inside == best[row]), searched[:1].repeat(len(block))
        nearest[row[is_best]] = searched[column[is_best]]
        nearest, vectors = nearest[:, None], bound.left(block)
        least = best[:, None] - tolerance_of(bound, block, best[:, None], nearest)
        error = 1.1 * product_error(vectors, longest)[:, None]
        inner = (vectors * bound.right(nearest[:, 0])).sum(1, keepdim=True)
        unsure = ~((bound.value(inner - error, block, nearest) < least) & (error < 1e18)).squeeze(1)
        high, low = (inner + error).float(), (inner - 2 * error).float()
        single, before, near = vectors.float(), torch.zeros(len(block), dtype=torch.long), []
        for start in range(0, len(searched), _TILE):
            right = factors[start : start + _TILE]
            products = torch.mm(single, right.T, out=buffer[: len(block) * len(right)].view(len(block), -1))
            mine = slice(*torch.searchsorted(column, torch.tensor([start, start + _TILE])).tolist())
            products[row[mine], column[mine] - start] = -math.inf
            above = products >= high
            before += above.view(torch.uint8).sum(1, dtype=torch.int32)
            between = (products >= low) ^ above
            # Where many are near, as with equal images, scores of all cost less than those of pairs.
            unsure |= between.view(torch.uint8).sum(1, dtype=torch.int32) > _TILE // 128
            between &= ~unsure[:, None]
            near.append(torch.from_numpy(np.stack(between.numpy().nonzero())) + torch.tensor([[0], [start]]))
        of, item = torch.cat(near, 1)
        before.index_add_(0, of, (scorer.pairs(block[of], searched[item]) >= least[of, 0]).long())
        ranks[place] = (before + 1).double().masked_fill(best == -math.inf, math.nan)
        others.append(place[unsure & (best > -math.inf)])
    return torch.cat(others)


def ranks_in(ranking: Ranking) -> Tensor:
    """Rank of the first positive of every query (:func:`first_positive_ranks`); infinite if beyond the depth."""
    parts = []
    for block in ranking.blocks():
        first = block.group.gather(1, block.relevant.int().argmax(1, keepdim=True))
        before = ((block.group <= first) & (block.neighbours >= 0) & ~block.relevant).sum(1)
        tied_beyond = (first == block.group[:, -1:]).squeeze(1) * (block.beyond - block.beyond_relevant)
        found = (before + tied_beyond + 1).double().masked_fill(~block.relevant.any(1), math.inf)
        parts.append(found.masked_fill(block.positives == 0, math.nan))
    return torch.cat(parts)


def conformal_k(ranks: Tensor, *, coverage: float = 0.9) -> float:
    """Size of retrieval sets that contain a positive of a new query with at least the wanted probability, in (0, 1).

    It is the ``ceil(coverage * (n + 1))``-th smallest of the n ranks of the first positive on calibration queries
    (split conformal prediction); nan, for queries without a positive, is left out. The guarantee is for queries that
    are exchangeable with these, on average over calibrations. With too few queries (fewer than 9 for 0.9) k is
    infinite, for the whole gallery.

    Example:
        >>> conformal_k(torch.tensor([1.0, 1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 7.0, 1.0])), conformal_k(torch.ones(8))
        (7.0, inf)
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be in (0, 1), not {coverage:g}")
    counted = ranks[~ranks.isnan()]
    # Less a billionth of a query: 0.07 * 100 is a little more than 7.
    place = math.ceil(coverage * (len(counted) + 1) - 1e-9)
    return float(counted.sort().values[place - 1]) if place <= len(counted) else math.inf


def retrieval_sets(k: float, ranks: Tensor, items: int) -> RetrievalSets:
    """Coverage and size of the sets of the k nearest images of some queries, from the ranks of their first positives.

    With k from validation classes (``calibrated_val``), the coverage on test classes may fall short: nothing makes
    their queries exchangeable. ``items`` is the number of images that a query can find: those in the gallery, less one
    if queries are among them.

    Example:
        >>> retrieval_sets(2.0, torch.tensor([1.0, 2.0, 3.0, float("nan")]), items=9).coverage
        0.6666666666666666
    """
    counted = ranks[~ranks.isnan()]
    coverage = float((counted <= k).double().mean()) if len(counted) else math.nan
    return RetrievalSets(k, coverage, min(k, float(items)), len(counted), len(ranks) - len(counted))


def sets_of_classes(
    ranks: Tensor, labels: Tensor, ids: Sequence[str], *, items: int, seed: int, coverage: float = 0.9
) -> RetrievalSets:
    """Retrieval sets of half of the classes, calibrated on the other half (``calibrated_classes``).

    The ranks are those in the full gallery. k is calibrated on one random query of each class of the first half. The
    coverage is that of a random query of a random class of the second half, its mean over queries and then over
    classes. For exchangeable classes it is at least ``coverage`` on average over calibrations. Arguments are those of
    :func:`retrieval_sets`; the draws depend on the identities, not on the order of the queries.

    Example:
        >>> sets = sets_of_classes(torch.ones(40), torch.arange(40) // 2, [f"{i:02d}" for i in range(40)],
        ...                        items=39, seed=0)
        >>> sets.k, sets.coverage, sets.n_queries
        (1.0, 1.0, 20)
    """
    counted = (~ranks.isnan()).nonzero().squeeze(1)
    lone = len(ranks) - len(counted)
    names = [ids[i] for i in counted.tolist()]
    if not names:
        return RetrievalSets(math.inf, math.nan, float(items), 0, lone)
    rank, label = ranks[counted], torch.unique(labels[counted], return_inverse=True)[1]
    first, second = class_halves(label, names, seed)
    drawn = uniform_by_identity([names[i] for i in first.tolist()], seed, "calibration query")
    chosen = {int(label[i]): int(i) for i in first[drawn.argsort(descending=True)]}  # the least draw comes last
    k = conformal_k(rank[list(chosen.values())], coverage=coverage)
    covered = torch.bincount(label[second], (rank[second] <= k).double())
    sizes = torch.bincount(label[second])
    share = float((covered[sizes > 0] / sizes[sizes > 0]).mean()) if len(second) else math.nan
    return RetrievalSets(k, share, min(k, float(items)), len(second), lone)


@test(group="retrieval_sets", per="own scorer")
def sets_of_nearest(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Size and coverage of retrieval sets that are to contain a positive of 90 % of the queries.

    The number of images in a set is calibrated in two ways. ``calibrated_val``: on clean images of validation classes,
    all of them queries; nothing is guaranteed for other classes, or for a gallery of another size, and the coverage
    shows what is missing. ``calibrated_classes``: on half of the classes that are tested; the other half is covered as
    promised if the classes are exchangeable. There is no ``calibrated_val`` without validation classes, or if they were
    trained on. The set is the whole gallery if there are too few queries to calibrate on.
    """
    queries, gallery = view.query_rows, view.gallery_rows
    items = len(gallery) - int(torch.isin(queries, gallery).any())
    ranks = _ranks(view, scorer)
    found: dict[str, RetrievalSets] = {}
    if view.validation is not None and view.validation_split == "val":
        found["calibrated_val"] = retrieval_sets(conformal_k(_ranks(view.validation, scorer)), ranks, items)
    found["calibrated_classes"] = sets_of_classes(
        ranks, view.labels[queries], view.names(queries), items=items, seed=view.seed("retrieval sets")
    )
    for variant, sets in found.items():
        for metric, value in (("set_size_at_90", sets.size), ("set_coverage_at_90", sets.coverage)):
            yield row(metric, value, variant=variant, n_queries=sets.n_queries, n_lone=sets.n_lone)


def _ranks(view: Embeddings, scorer: str) -> Tensor:
    """Rank of the first positive of every query: from the ranking, or from all scores if it lies beyond the depth."""

    def compute() -> Tensor:
        ranking = view.ranking(scorer)
        ranks = ranks_in(ranking)
        deeper = ranks.isinf()
        if bool(deeper.any()):
            roles: dict[str, Any] = {"queries": ranking.queries[deeper], "gallery": view.gallery, "kin": view.kin}
            ranks[deeper] = first_positive_ranks(view.scorer(scorer), view.labels, **roles)
        return ranks

    return view.once(f"ranks of first positives {scorer}", compute)
