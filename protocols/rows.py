"""Tidy rows: one value of one metric each. Light: importing it loads no array library."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic reads records with it, on 3.11 too

RERANKED = "reranked"
"""Variant of values that are computed as in the public code of "Probabilistic Embeddings Revisited" (PER).

See :mod:`bench.protocols.reranked`."""


class Row(TypedDict):
    """A row of a tidy table of results: one value of one metric.

    Attributes:
        scorer: Name of the scorer (similarity of embeddings) behind the value; empty if there is none.
        confidence: Name of the confidence that the value is about; empty if it is about none.
        variant: Text that distinguishes the value from others of the same metric, such as the choice of a threshold.
        metric: Name of the metric.
        fraction: Share of the images that was removed before (filter-out curves), if any was.
        value: The value; None or nan if it does not exist.
        n_queries: Number of queries (or images or pairs) that count.
        n_lone: Number of queries left out because they have no positive.
    """

    scorer: str
    confidence: str
    variant: str
    metric: str
    fraction: float | None
    value: float | None
    n_queries: int
    n_lone: int


class SplitRow(Row):
    """A row of a tidy table of results, with the split it is about.

    Attributes:
        split: ``test``, ``val``, ``train``, or ``test_NAME`` for test images under the corruption of that name.
    """

    split: str


def row(
    metric: str,
    value: float,
    *,
    scorer: str = "",
    confidence: str = "",
    variant: str = "",
    fraction: float | None = None,
    n_queries: int = 0,
    n_lone: int = 0,
) -> Row:
    """Build a row of a tidy table of results: one value of one metric.

    Args:
        metric: Name of the metric.
        value: A fraction in [0, 1], a correlation in [-1, 1], another number, or nan if the value does not exist.
        scorer: Name of the scorer (similarity of embeddings) that the value was computed with, if any.
        confidence: Name of the confidence that the value is about, if any.
        variant: Text that distinguishes the value from others of the same metric.
        fraction: Share of the images that was removed before, if any was.
        n_queries: Number of queries (or images or pairs) that count.
        n_lone: Number of queries left out because they have no positive.

    Example:
        >>> row("map_at_r", 0.5, scorer="cosine")["value"]
        0.5
    """
    return {
        "scorer": scorer,
        "confidence": confidence,
        "variant": variant,
        "metric": metric,
        "fraction": fraction,
        "value": value,
        "n_queries": n_queries,
        "n_lone": n_lone,
    }
