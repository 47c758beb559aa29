"""Answers of a ranking: the class of a query's nearest neighbour, and what its other neighbours say about it.

The query's own class plays no part, so that all of this is known when a query arrives. Tied neighbours count by the
expectation over their random orders.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEAREST = 10
"""Number of nearest neighbours whose classes are compared with the answer."""

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
