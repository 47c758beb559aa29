"""Tidy rows: one value of one metric each. Light: importing it loads no array library."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic reads records with it, on 3.11 too

RERANKED = "reranked"
"""Variant of values that are computed as in the public code of "Probabilistic Embeddings Revisited" (PER).

See :mod:`bench.protocols.reranked`."""


class Row(TypedDict):
    """A tidy row: one value of one metric."""

    scorer: str
    confidence: str
    variant: str
    metric: str
    fraction: float | None
    value: float | None
    n_queries: int
    n_lone: int


class SplitRow(Row):
    """A tidy row with the split it is about: ``test``, ``test_crop``, ``val``, .."""

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
    """Build a tidy row.

    Args:
        metric: Name of the metric.
        value: A fraction in [0, 1], a correlation in [-1, 1], or nan if the value does not exist.
        scorer: Similarity that the value was computed with, if any.
        confidence: Confidence that the value is about, if any.
        variant: Tells the value apart from others of the same metric.
        fraction: Share of the images that was removed, if any was.
        n_queries: Number of items that count.
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
