"""Ranking over the full gallery, with groups of tied scores and the answers of the nearest neighbours.

A query's own row is removed by identity, and so are images of its class and group where groups are known. Scores that
are equal up to rounding are tied, and a ranking tells how far each group of tied items reaches, so that what is
computed from it need not depend on the order of the images. The answer to a query is the class of its nearest
neighbour. What its other neighbours say about it needs no label of the query, so that it is known when a query arrives;
tied neighbours count by the expectation over their random orders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from .search import Terms, search, usable


class Scorer(Protocol):
    """Interface of a scorer: similarity of embedded images, given by their positions; higher = more similar."""

    name: str

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores of every query ``[Q]`` with every gallery image ``[G]``, float64 ``[Q, G]``."""

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores of pairs of images, ``[P]`` each, float64 ``[P]``."""


class NotFiniteError(ValueError):
    """A scorer gave scores that are not finite; ``image`` is the row of the image with most of them, if known."""

    def __init__(self, message: str, image: int | None) -> None:
        super().__init__(message)
        self.image = image


def require_finite(scorer: Scorer, scores: Tensor, *images: Tensor) -> None:
    """Raise NotFiniteError if a scorer gave scores that are not finite; ``images`` are the rows of each dimension."""
    if not torch.isfinite(scores).all():
        bad = ~torch.isfinite(scores).cpu()
        counts = torch.zeros(1 + max(int(rows.max()) for rows in images) if images else 0)
        for dim, rows in enumerate(images):
            counts.index_add_(0, rows, bad.sum(1 - dim) / bad.shape[1 - dim])
        image = int(counts.argmax()) if images and not bad.all() else None  # no row stands out
        raise NotFiniteError(f"scorer {scorer.name!r} gave {int(bad.sum())} scores that are not finite", image)


def bound_of(scorer: Scorer) -> Terms | None:
    """Bound on the scores of a scorer, which saves most of them, or the sizes of their terms; None without either."""
    find = getattr(scorer, "bound", None)
    bound: Terms | None = None if find is None else find()
    return bound


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


NEAREST = 10
"""Largest number of nearest neighbours that are asked about an answer."""

_CELLS = 1 << 20
"""Bound on the entries of a table of classes by queries: 8 MiB."""


@dataclass(frozen=True)
class Answers:
    """Evidence of the neighbours of Q queries for the answer, the class of the nearest one.

    ``rival`` is the row ``[Q]`` of the nearest gallery item of another class, -1 if there is none, and ``tied`` whether
    it is tied with the nearest one, so that the answer is open. ``agreement`` ``[Q]`` is the share of the k nearest,
    the nearest included, that have the class of the answer; of all, if there are fewer.
    """

    k: int
    rival: Tensor
    tied: Tensor
    agreement: Tensor

    @classmethod
    def empty(cls, queries: int, k: int) -> Answers:
        """Answers that are still to be filled in."""
        return cls(
            k,
            torch.full((queries,), -1, dtype=torch.int32),
            torch.zeros(queries, dtype=torch.bool),
            torch.zeros(queries, dtype=torch.float64),
        )

    def put(self, place: Tensor, items: Tensor, labels: Tensor, group: Tensor, valid: Tensor) -> None:
        """Enter B queries at their places ``[B]`` with their neighbours ``[B, M]``, beyond the class of the nearest.

        As in :func:`agreement`, the best come first, and groups of ties are numbered from 0.
        """
        other = (labels != labels[:, :1]) & valid
        first = other.byte().argmax(1, keepdim=True)
        found = other.gather(1, first).squeeze(1)
        self.rival[place] = items.gather(1, first).squeeze(1).int().masked_fill(~found, -1)
        self.tied[place] = found & (group.gather(1, first).squeeze(1) == 0)
        self.agreement[place] = agreement(labels, group, valid, self.k)

    def rows(self, rows: slice) -> Answers:
        """The answers of some consecutive queries."""
        return Answers(self.k, self.rival[rows], self.tied[rows], self.agreement[rows])


def agreement(labels: Tensor, group: Tensor, valid: Tensor, k: int) -> Tensor:
    """Share of the k nearest neighbours that have the class of the nearest one, ``[Q]`` float64 in (0, 1].

    The nearest neighbour itself counts, so that the share is at least 1/k. If neighbours are tied, the share is the
    expectation over their random orders. If there are fewer than k neighbours, all are taken. (The vote of nearest
    neighbours of Cover and Hart 1967, as a confidence.) The three tables are ``[Q, M]``: classes, best first, up to the
    end of the tie group at k; ascending numbers of the tie groups; and whether there is a neighbour, first places
    first.

    Example:
        >>> labels, group = torch.tensor([[5, 5, 7, 5]]), torch.tensor([[0, 1, 2, 2]])
        >>> everything = torch.ones(1, 4, dtype=torch.bool)
        >>> agreement(labels, group, everything, k=2).item(), agreement(labels, group, everything, k=4).item()
        (1.0, 0.75)
        >>> round(agreement(labels, group, everything, k=3).item(), 4)  # the third is a 5 or a 7
        0.8333
    """
    count = valid.sum(1).clamp_max(k)
    near = valid[:, :k]
    share = ((labels[:, :k] == labels[:, :1]) & near).sum(1).double() / count
    tied = ((group[:, 1:] == group[:, :-1]) & valid[:, 1:]).any(1).nonzero().squeeze(1)
    if len(tied):
        number = torch.unique(labels[tied], return_inverse=True)[1]
        parts = torch.arange(len(tied)).split(max(1, _CELLS // (int(number.max()) + 1)))
        share[tied] = torch.cat([_expected(number[i], group[tied[i]], valid[tied[i]], count[tied[i]]) for i in parts])
    return share


def _expected(number: Tensor, group: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """Agreement among the first ``count`` places, with classes numbered from 0: the mean over the orders of ties."""
    last = group.gather(1, count[:, None] - 1)
    inside = (group == last) & valid
    before = group < last
    # A place before the group that is cut is certain; each member of that group is drawn with the same probability.
    drawn = (count - before.sum(1)).double() / inside.sum(1)
    weight = before.double() + inside.double() * drawn[:, None]
    top = ((group == 0) & valid).double()
    zeros = torch.zeros(len(number), int(number.max()) + 1, dtype=torch.float64)
    in_top, near = zeros.scatter_add(1, number, top), zeros.scatter_add(1, number, weight)
    # If the cut group is the top one, the nearest is certain and the others are drawn from what is left.
    size = top.sum(1, keepdim=True)
    rest = 1.0 + (count[:, None] - 1) * (in_top - 1.0) / (size - 1.0).clamp_min(1.0)
    same = torch.where(last == 0, rest, near)
    share: Tensor = (in_top * same).sum(1) / size.squeeze(1) / count
    return share


def answer_depth(labels: Tensor, k: int = NEAREST) -> int:
    """Depth of a ranking (places kept per query) that shows the nearest item of another class than the nearest one's.

    It is one more than the size of the largest class or k, whichever is larger, at most the number of images.
    """
    most = int(torch.unique(labels, return_counts=True)[1].max())
    return min(max(most + 1, k), len(labels))


def agreeing(labels: Tensor, *, apart: bool = False) -> int:
    """Number k of nearest neighbours for the :func:`agreement`, in a gallery with these classes ``[G]``.

    It is the median number of images of a class of two or more, less one unless queries and gallery are ``apart``, from
    1 to :data:`NEAREST`. A fixed number would ask mostly images of other classes where classes are small: then the
    share is highest for queries that find none of their own. Classes of one image, as distractors are, say nothing of
    that.

    Example:
        >>> agreeing(torch.arange(40) // 4), agreeing(torch.arange(40) // 20)
        (3, 10)
    """
    sizes = torch.unique(labels, return_counts=True)[1]
    sizes = sizes[sizes > 1]
    return min(max(int(sizes.median()) - (not apart), 1), NEAREST) if len(sizes) else 1


TIE_TOLERANCE = 1e-13
"""Two neighbouring scores are tied if they differ by less than this share of the scale of one of them: the size of its
terms that a scorer with a bound gives, else the score itself or the median of its row, whichever is larger. A matrix
product in float64 may round equal embeddings to scores some 1e-16 of that apart, depending on where they are stored.
No other item of the gallery sets the scale: one that is far from all others must not make these tied."""


def tolerance_of(
    bound: Terms | None, rows: Tensor, scores: Tensor, items: Tensor | None, typical: Tensor | None = None
) -> Tensor:
    """Tolerance of each score ``[B, M]`` of queries ``[B]`` with items ``[B, M]``: 0 where there is no item.

    Without a bound, ``typical`` is the median size of the scores of each query ``[B]``.
    """
    if bound is not None:
        scale = bound.scale(rows, scores, items)
    else:
        scale = scores.abs() if typical is None else torch.maximum(scores.abs(), typical[:, None])
    return (TIE_TOLERANCE * scale).masked_fill(scores == -math.inf, 0.0)


class Comparing(Terms, Protocol):
    """Interface of a score whose differences have digits where the scores have none left."""

    @property
    def keys(self) -> Tensor:
        """Number of each image that equal embeddings share, ``[N]``."""

    def difference(self, rows: Tensor, items: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of queries with items minus those with other items, and the sizes of their terms, ``[P]`` each."""


_TRIPLES = 1 << 10

BLOCK_BYTES = 64 << 20
"""Bound on the memory of one block of scores and what is made of it."""

_OPEN = 0.03
"""Share of the scores above which scoring pairs anew takes longer than a matrix."""

BLOCK_PLACES = 1 << 18
"""Places of a ranking that are processed at a time: 2 MiB per float64 intermediate."""


@dataclass(frozen=True)
class Ranking:
    """The nearest neighbours of Q queries, with their groups of tied scores.

    Rows are positions of images. K is the depth, the number of places kept per query; scores that are equal up to
    rounding form a tie group.

    Attributes:
        gallery_size: Items in the gallery, those that are no neighbours of a query included.
        queries: Rows of the queries, ``[Q]``.
        neighbours: Rows of the nearest gallery items, best first, ``[Q, K]`` int32; -1 where the gallery is exhausted.
            Tied items are in the order of their rows.
        relevant: Whether a neighbour has the query's class, ``[Q, K]``.
        group: Number of the tie group of each place, ascending with the place, ``[Q, K]`` int32.
        beyond: Number of items that are tied with place K but lie beyond it, ``[Q]``.
        beyond_relevant: Number of the relevant ones among them, ``[Q]``.
        positives: Relevant items in the whole gallery, R, ``[Q]``.
        answers: What the neighbours say about the class of the nearest one, if that was asked for.
    """

    gallery_size: int
    queries: Tensor
    neighbours: Tensor
    relevant: Tensor
    group: Tensor
    beyond: Tensor
    beyond_relevant: Tensor
    positives: Tensor
    answers: Answers | None = None

    @property
    def depth(self) -> int:
        """Number of places K that are kept per query."""
        return self.neighbours.shape[1]

    @property
    def exhausted(self) -> bool:
        """True if the ranking contains the whole gallery, so that no neighbour is missing."""
        return self.depth >= self.gallery_size or bool((self.neighbours[:, -1] == -1).all())

    def blocks(self) -> Iterator[Ranking]:
        """Split the ranking into rankings of consecutive queries, so that intermediate results stay small in memory."""
        for block in torch.arange(len(self.queries)).split(max(1, BLOCK_PLACES // self.depth)):
            rows = slice(int(block[0]), int(block[-1]) + 1)
            parts = {name: getattr(self, name)[rows] for name in _OF_QUERIES}
            yield replace(self, **parts, answers=None if self.answers is None else self.answers.rows(rows))


_OF_QUERIES = ("queries", "neighbours", "relevant", "group", "beyond", "beyond_relevant", "positives")
"""Fields of a ranking with a row for each query."""


@torch.no_grad()
def rank(
    scorer: Scorer,
    labels: Tensor,
    *,
    depth: int,
    queries: Tensor | None = None,
    gallery: Tensor | None = None,
    kin: Tensor | None = None,
    answers: int = 0,
    block_bytes: int = BLOCK_BYTES,
) -> Ranking:
    """Rank the whole gallery for every query, which is not its own neighbour, and keep the ``depth`` nearest.

    Args:
        scorer: Similarity of images, which are given by their positions in ``labels``.
        labels: Classes of all images, ``[N]``.
        depth: Places kept per query, at least 1.
        queries: Positions of the queries; all images if None.
        gallery: Positions of the gallery images; all images if None.
        kin: Numbers ``[N]`` of the images, not negative, those of a number of one class: they are never neighbours of
            each other. None if every image has a number of its own.
        answers: Number k of nearest neighbours that are asked about the class of the nearest one
            (:class:`Answers`); 0 for none. The depth must be at least
            :func:`answer_depth` of the gallery.
        block_bytes: Memory in bytes for the scores of queries that are ranked at a time, without effect on the result;
            if it does not suffice for 64 queries, up to four times as much is used.

    Raises:
        ValueError: If a score is not finite, there is nothing to rank, or the depth is too small for ``answers``.

    Example:
        >>> from .ranking import ScoreMatrix
        >>> scores = torch.tensor([[9.0, 2.0, 1.0], [2.0, 9.0, 0.0], [1.0, 0.0, 9.0]])
        >>> rank(ScoreMatrix(scores), torch.tensor([0, 0, 1]), depth=2).neighbours.tolist()
        [[1, 2], [0, 2], [0, 1]]
    """
    rows = torch.arange(len(labels))
    queries, gallery, kin = (rows if given is None else given for given in (queries, gallery, kin))
    if len(gallery) < 2 or depth < 1:
        raise ValueError("ranking needs a gallery of at least two items and a depth of at least 1")
    if not len(queries):
        raise ValueError("ranking needs at least one query")
    if answers and depth < (need := answer_depth(labels[gallery], answers)):
        raise ValueError(f"answers of {answers} neighbours need a depth of at least {need}, not {depth}")
    table = _Table(scorer, labels, (queries, gallery, kin), depth, answers)
    bound, tolerance = table.bound, partial(tolerance_of, table.bound)
    waiting = torch.ones(len(queries), dtype=torch.bool)
    if usable(bound, queries, gallery, depth):
        of_pairs = scorer.pairs
        for batch in search(bound, queries, gallery, kin, tolerance, of_pairs, depth=depth, block_bytes=block_bytes):
            of_places = tolerance(queries[batch.place], batch.scores, batch.items.clamp_min(0))
            table.put(batch.place, batch.items, batch.scores, of_places)
            waiting[batch.place] = False
    per_block = max(1, block_bytes // (40 * len(gallery)))
    for place in waiting.nonzero().squeeze(1).split(per_block) if bool(waiting.any()) else ():
        table.rank(place)
    return table.ranking


def positives_of(labels: Tensor, queries: Tensor, gallery: Tensor, kin: Tensor | None = None) -> Tensor:
    """Number of images of the class of each query in its gallery, ``[Q]``, for labels that are not negative.

    ``kin`` is that of :func:`rank`.
    """
    kin = torch.arange(len(labels)) if kin is None else kin
    of_class, of_kin = (torch.bincount(each[gallery], minlength=int(each.max()) + 1) for each in (labels, kin))
    return of_class[labels[queries]] - of_kin[kin[queries]]


def _told_apart(
    terms: Comparing, queries: Tensor, items: Tensor, group: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Items and tie groups ``[B, M]`` after members of each group were compared with its first one.

    The difference of two scores has digits where the scores themselves have none left, as for a query that is far from
    all images.
    """
    first = torch.searchsorted(group, group)
    key = terms.keys[items]
    row, column = (valid & (key != key.gather(1, first))).nonzero(as_tuple=True)
    if not len(row):
        return items, group
    above = torch.zeros(group.shape, dtype=torch.float64)
    tolerance = torch.zeros_like(above)
    for part in torch.arange(len(row)).split(_TRIPLES):
        at = row[part], column[part]
        above[at], scale = terms.difference(queries[at[0]], items[at], items[at[0], first[at]])
        tolerance[at] = TIE_TOLERANCE * scale
    order = above.argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, group.gather(1, order).argsort(dim=1, stable=True))
    above, tolerance, found = above.gather(1, order), tolerance.gather(1, order), group.gather(1, order)
    apart = above[:, :-1] - above[:, 1:] > torch.maximum(tolerance[:, :-1], tolerance[:, 1:])
    new = (found[:, 1:] != found[:, :-1]) | apart
    return items.gather(1, order), torch.cat([torch.zeros_like(found[:, :1]), new.long().cumsum(1)], dim=1)


class _Table:
    """A ranking that is filled in parts; its roles are queries, gallery and kin."""

    def __init__(self, scorer: Scorer, labels: Tensor, roles: Sequence[Tensor], depth: int, answers: int) -> None:
        self.scorer, self.bound = scorer, bound_of(scorer)
        self.terms: Any = self.bound if hasattr(self.bound, "difference") else None
        self.labels = torch.unique(labels, return_inverse=True)[1]
        queries, self.gallery, self.kin = roles
        count, shape = len(queries), (len(queries), min(depth, len(self.gallery)))
        self.ranking = Ranking(
            len(self.gallery),
            queries,
            neighbours=torch.full(shape, -1, dtype=torch.int32),
            relevant=torch.zeros(shape, dtype=torch.bool),
            group=torch.zeros(shape, dtype=torch.int32),
            beyond=torch.zeros(count, dtype=torch.int32),
            beyond_relevant=torch.zeros(count, dtype=torch.int32),
            positives=positives_of(self.labels, *roles),
            answers=Answers.empty(count, answers) if answers else None,
        )

    def put(self, place: Tensor, items: Tensor, scores: Tensor, tolerance: Tensor) -> None:
        """Enter rows of sorted scores ``[B, M]``, M over the depth unless that is the gallery; -inf is no item.

        The scores of a row must reach to the end of the tie group at the depth. Tied items are put in the order of
        their rows, so that nothing depends on how they were found.
        """
        made = self.ranking
        depth = made.depth
        group = tie_groups(scores, tolerance)
        valid = scores > -math.inf
        tied = (group[:, 1:] == group[:, :-1]).any(1).nonzero().squeeze(1)
        if len(tied):
            items = items.clone()
            if self.terms is not None:
                items[tied], group[tied] = _told_apart(
                    self.terms, made.queries[place[tied]], items[tied], group[tied], valid[tied]
                )
            key = group[tied] * len(self.labels) + items[tied]
            items[tied] = items[tied].gather(1, key.argsort(dim=1))
        found = self.labels[items]
        relevant = (found == self.labels[made.queries[place], None]) & valid
        tail = (group[:, depth:] == group[:, depth - 1 : depth]) & valid[:, depth:]
        made.neighbours[place] = items[:, :depth].masked_fill(~valid[:, :depth], -1).int()
        made.relevant[place] = relevant[:, :depth]
        made.group[place] = group[:, :depth].int()
        made.beyond[place] = tail.sum(1).int()
        made.beyond_relevant[place] = (tail & relevant[:, depth:]).sum(1).int()
        if made.answers is not None:
            # What lies behind the tie group at the depth need not be in its place.
            made.answers.put(place, items, found, group, valid & (group <= group[:, depth - 1 : depth]))

    def rank(self, place: Tensor) -> None:
        """Rank the queries at some places by their scores with the whole gallery."""
        queries, gallery, kept = self.ranking.queries[place], self.gallery, self.ranking.depth
        apart = self.kin[queries, None] == self.kin[gallery]
        scores = _scores(self.scorer, queries, gallery, apart, kept + 1)
        require_finite(self.scorer, scores, queries, gallery)
        typical = None if self.bound is not None else scores.abs().median(1).values.cpu()
        scores = scores.masked_fill(apart.to(scores.device), -math.inf)
        top, order = (values.cpu() for values in scores.topk(min(kept + 1, len(gallery)), dim=1))
        items, cut = gallery[order], torch.zeros(len(queries), dtype=torch.bool)
        tolerance = tolerance_of(self.bound, queries, top, items, typical)
        if top.shape[1] > kept:
            cut = (top[:, kept - 1] - top[:, kept] <= tolerance[:, kept - 1 :].amax(1)) & torch.isfinite(top[:, kept])
            # The group is cut by the depth: only a full sort of these rows says how far it reaches.
            full, every = (values.cpu() for values in scores[cut.to(scores.device)].sort(dim=1, descending=True))
            of_cut = None if typical is None else typical[cut]
            every = gallery[every]
            self.put(place[cut], every, full, tolerance_of(self.bound, queries[cut], full, every, of_cut))
        self.put(place[~cut], items[~cut], top[~cut], tolerance[~cut])


def _scores(scorer: Scorer, queries: Tensor, gallery: Tensor, apart: Tensor, count: int) -> Tensor:
    """Scores ``[Q, G]``: at least the best ``count`` that are not ``apart``, and what is tied with them, are exact."""
    find = getattr(scorer, "rough", None)
    rough: tuple[Tensor, Tensor] | None = None
    if find is not None and count <= len(gallery):
        rough = find(queries, gallery)
    if rough is not None:
        scores, error = rough
        least = (scores - error).masked_fill(apart, -math.inf).topk(count, dim=1).values[:, -1:]
        tied = 2.0 * TIE_TOLERANCE * scores.abs().amax(1, keepdim=True)
        row, column = ((scores + error >= least - tied) & ~apart).nonzero(as_tuple=True)
        if bool(torch.isfinite(scores).all()) and len(row) < _OPEN * scores.numel():
            scores[row, column] = scorer.pairs(queries[row], gallery[column])
            return scores
    return scorer.matrix(queries, gallery).double()


def tie_groups(descending: Tensor, tolerance: Tensor) -> Tensor:
    """Number of the group of tied scores at each place, ``[Q, K]``, counted from 0 along rows of descending scores.

    Two neighbours are tied within the larger of their tolerances ``[Q, K]``; places without an item (minus infinity)
    share a group of their own.
    """
    gap = descending[:, :-1] - descending[:, 1:]
    # -inf - (-inf) is nan, and no comparison with nan is true: places beyond the gallery share a group of their own.
    new = gap > torch.maximum(tolerance[:, :-1], tolerance[:, 1:])
    return torch.cat([torch.zeros_like(new[:, :1], dtype=torch.long), new.long().cumsum(1)], dim=1)


def full_depth(labels: Tensor, ks: Sequence[int] = (1,)) -> int:
    """Depth of a ranking (places kept per query) that all metrics of a query need.

    It is the largest class size less one or the largest k, at most the number of images.
    """
    most = int(torch.unique(labels, return_counts=True)[1].max()) - 1
    return max(1, min(max(most, *ks), len(labels)))


def filter_depth(labels: Tensor) -> int:
    """Depth of a ranking (places kept per query) at which most queries keep R neighbours after images are removed.

    R is the number of a query's positives. With the largest R, the depth is the smaller of 2 R + 8 and 1.5 R + 128:
    chance alone may remove most neighbours of a small class; for large classes the second term bounds the memory.
    Queries that need more places are ranked again, so the depth changes no value.
    """
    most = full_depth(labels)
    return min(2 * most + 8, most + most // 2 + 128)
