"""Views of images by their scores, rows that a group of tests makes of them, and rankings from their definitions."""

import itertools

import torch
from bench.protocols.declare import run_battery
from bench.protocols.embeddings import Embeddings, Options
from bench.protocols.known_tests import load_tests
from bench.protocols.ranking import ScoreMatrix, bound_of, tie_groups, tolerance_of
from hypothesis import strategies as st

FRACTIONS = tuple(i / 10 for i in range(10))


def view_of(labels, scores, name="cosine", **changes):
    """Images that are compared by a scorer, or by the scores ``[N, N]`` of one."""
    scorer = ScoreMatrix(scores, name) if isinstance(scores, torch.Tensor) else scores
    ids = tuple(f"image {i:03d}" for i in range(len(labels)))
    given = {"labels": labels, "ids": ids, "scorers": {name: lambda: scorer}, "own_scorers": (name,), "seed": len}
    return Embeddings(**(given | changes))


def filter_out_rows(scorer, labels, ids, confidences, *, fractions=FRACTIONS, seed=0, **roles):
    """Filter-out curves of image confidences and of the oracle."""
    given = {"ids": tuple(ids), "confidences": confidences, "seed": lambda purpose: seed, **roles}
    view = view_of(labels, scorer, options=Options(filter_fractions=fractions), **given)
    rows = run_battery(view, load_tests(["filter_out"]))
    return [row for row in rows if row["confidence"] in (*confidences, "oracle")]


def clustered(labels, dim=6, noise=0.6, seed=0):
    """Directions ``[N, dim]`` of images that lie around a centre for each class."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(int(labels.max()) + 1, dim, generator=g, dtype=torch.float64)
    x = centres[labels] + noise * torch.randn(len(labels), dim, generator=g, dtype=torch.float64)
    return torch.nn.functional.normalize(x, dim=1)


def rows_of(view, group, *keys):
    """Rows of a group of tests by the values in some columns."""
    return {tuple(row[key] for key in keys): row for row in run_battery(view, load_tests([group]))}


def orders_of(scores, others):
    """Every order of the gallery that sorted scores allow (tied items permuted), equally likely."""
    ordered = sorted(others, key=lambda j: -scores[j])
    groups = [list(group) for _, group in itertools.groupby(ordered, key=lambda j: scores[j])]
    for parts in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield [j for part in parts for j in part]


def precision_sum(hits):
    """Sum of the precisions at the places of the hits."""
    return sum(sum(hits[:place]) / place for place, hit in enumerate(hits, 1) if hit)


@st.composite
def tied_data(draw):
    """Scores of a few images with ties, and their labels."""
    n = draw(st.integers(2, 7))
    labels = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    cells = draw(st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n))
    return [[float(cells[i * n + j]) for j in range(n)] for i in range(n)], labels


def _order(scorer, queries, gallery):
    """Minus the number of the tie group of each gallery item, float64 ``[Q, G]``."""
    scores = scorer.matrix(queries, gallery).double().cpu()
    descending, order = scores.sort(dim=1, descending=True)
    typical = scores.abs().median(1).values
    group = tie_groups(descending, tolerance_of(bound_of(scorer), queries, descending, gallery[order], typical))
    return -torch.zeros_like(scores).scatter(1, order, group.double())


class Reranked:
    """Scorer made of two, as PER has it: ``first`` chooses candidates, its nearest images, the other orders them.

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
