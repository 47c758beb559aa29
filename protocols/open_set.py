"""Open-set queries: detection of queries whose class is not in the gallery, by confidences.

A user wants these unknown queries rejected, and known queries accepted with the right answer, as in open-set
identification; a single threshold on a confidence decides. Without unknown queries, some classes leave the gallery.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .confidence import combined_confidences
from .declare import test
from .embeddings import Embeddings
from .retrieval_confidence import as_vectors
from .rows import Row, row
from .verification import class_halves

FALSE_ACCEPT_RATES = (0.01, 0.1)
"""Shares of the unknown queries that may be accepted where the rate of true accepts is given."""


def detection(known: Tensor, unknown: Tensor, correct: Tensor | None = None) -> float:
    """Area under the rate of accepted known queries over that of accepted unknown ones; nan without both.

    The rates are those of all thresholds on the confidences ``known`` ``[K]`` and ``unknown`` ``[U]``; tied confidences
    count half. Without ``correct`` the area is the AUROC. With ``correct`` ``[K]``, the Recall@1 of every known query,
    only right answers count as accepted: the open-set classification rate (OSCR, Dhamija et al. 2018).

    Example:
        >>> known, unknown = torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0])
        >>> detection(known, unknown), detection(known, unknown, torch.tensor([0.0, 1.0]))
        (0.75, 0.25)
    """
    x, y = as_vectors(known, torch.ones_like(known) if correct is None else correct)
    if not len(x) or not len(unknown):
        return math.nan
    rejected = unknown.double().sort().values
    values = torch.from_numpy(x)
    below = torch.searchsorted(rejected, values) + torch.searchsorted(rejected, values, right=True)
    return math.fsum((torch.from_numpy(y) * below).tolist()) / (2 * len(x) * len(unknown))


def true_accept_rate(known: Tensor, unknown: Tensor, correct: Tensor, rate: float) -> float:
    """Share of known queries that are accepted and answered rightly if at most a share of the unknown is accepted.

    The threshold is the lowest one that accepts at most ``rate`` of the unknown queries; equal confidences are accepted
    together. It is the detection and identification rate of open-set identification. Arguments are those of
    :func:`detection`.

    Example:
        >>> known, unknown = torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0])
        >>> true_accept_rate(known, unknown, torch.ones(2), 0.1), true_accept_rate(known, unknown, torch.ones(2), 0.5)
        (0.5, 1.0)
    """
    x, y = as_vectors(known, correct)
    if not len(x) or not len(unknown):
        return math.nan
    # A billionth of a query more: 0.07 * 100 is a little more than 7, 0.29 * 100 a little less than 29.
    allowed = math.floor(rate * len(unknown) + 1e-9)
    highest = unknown.double().sort(descending=True).values
    rejected = float(highest[allowed]) if allowed < len(unknown) else -math.inf
    return math.fsum(y[x > rejected].tolist()) / len(x)


def in_smaller_gallery(view: Embeddings, scorer: str) -> Embeddings | None:
    """The same queries with a gallery that a random half of the classes has left; None if fewer than two stay."""
    left = view.gallery_rows[~torch.isin(view.gallery_rows, _gone(view))]
    if len(torch.unique(view.labels[left])) < 2:
        return None
    options = replace(view.options, filter_fractions=())
    # The scorer is the same one: making it may be expensive.
    scorers = {scorer: lambda: view.scorer(scorer)}
    directions = None if view.directions is None else lambda: view.unit_vectors
    return view.once(
        f"smaller gallery {scorer}",
        lambda: replace(view, gallery=left, scorers=scorers, directions=directions, options=options),
    )


def _gone(view: Embeddings) -> Tensor:
    """Rows of the images whose classes leave the gallery."""

    def drawn() -> Tensor:
        searched = view.gallery_rows if view.unknown.any() else torch.arange(len(view))
        left = searched[class_halves(view.labels[searched], view.names(searched), view.seed("open set"))[0]]
        return torch.isin(view.labels, view.labels[left]).nonzero().squeeze(1)

    return view.once("gone", drawn)


UNKNOWN = "unknown_queries"
"""Variant of values for queries that are unknown in the whole gallery; without it, classes have left the gallery."""


@test(group="open_set", per="scorer", version=3)
def open_set(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Detection of queries whose class is not in the gallery, by image, retrieval and combined confidences.

    If queries are of classes that the gallery lacks, they are the unknown ones, and the gallery stays as it is: variant
    ``unknown_queries``. Otherwise a random half of the classes leaves the gallery, and their queries are unknown;
    rankings and confidences are those in the smaller gallery. The other queries are known if they have a positive
    there, and are left out if not. Fits of combined confidences are those to right and wrong answers. The values are
    nan if fewer than two classes stay, or if no query is known or none is unknown.
    """
    unknown, real = view.unknown, bool(view.unknown.any())
    possible = view if real else in_smaller_gallery(view, scorer)
    if not real:
        unknown = torch.isin(view.query_rows, _gone(view))
    smaller = possible or view
    correct = smaller.query_values(scorer, (1,))["recall_at_1"]
    known = ~unknown & ~correct.isnan()
    combined, gaps = combined_confidences(smaller, scorer)
    of_queries = smaller.confidences_of_queries() | smaller.retrieval_confidences(scorer) | combined
    count, right = int((known | unknown).sum()), correct[known]
    for name, confidence in of_queries.items():
        inside, outside = confidence[known], confidence[unknown]
        values = {
            ("open_set_auroc", ""): detection(inside, outside),
            ("open_set_oscr", ""): detection(inside, outside, right),
        }
        for rate in FALSE_ACCEPT_RATES:
            values["open_set_tar", f"far={rate:g}"] = true_accept_rate(inside, outside, right, rate)
        for (metric, variant), value in values.items():
            found = math.nan if possible is None or name in gaps else value
            variant = ",".join(filter(None, [UNKNOWN if real else "", variant]))
            yield row(metric, found, confidence=name, variant=variant, n_queries=count, n_lone=len(unknown) - count)
    if possible is not None and not real:
        possible.release()
