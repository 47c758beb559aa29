"""Running tests on embeddings: one battery for trained models and for files of embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from .declare import EmbeddingTest
from .embeddings import Embeddings
from .rows import Row


def applies(test: EmbeddingTest, view: Embeddings) -> bool:
    """Check if the embeddings have every field that a test needs, and are not corrupted if it is for clean ones."""
    if test.clean_only and not view.clean:
        return False
    values = (getattr(view, name) for name in test.needs)
    return all(value is not None and not (isinstance(value, Mapping) and not value) for value in values)


def run_battery(view: Embeddings, tests: Iterable[EmbeddingTest], scorers: Iterable[str] | None = None) -> list[Row]:
    """Run every test that applies to some embeddings.

    Tests that rank or compare images run first, scorer by scorer (all that the embeddings have by default); then come
    the tests of the embeddings as a whole. A value that does not exist (the correlation of a constant confidence, say)
    is nan.

    Raises:
        ValueError: If a value is outside the range of a metric that its test declares.
    """
    chosen = [test for test in tests if applies(test, view)]
    rows: list[Row] = []
    for name in view.scorers if scorers is None else scorers:
        for test in chosen:
            if test.per == "scorer" or (test.per == "own scorer" and name in view.own_scorers):
                rows += _in_range(test, test.run(view, name))
    for test in chosen:
        if test.per == "embeddings":
            rows += _in_range(test, test.run(view))
    return rows


def _in_range(test: EmbeddingTest, rows: Iterable[Row]) -> Iterator[Row]:
    """The rows of a test, each checked against the metrics that the test itself declares."""
    for row in rows:
        name, value = row["metric"], row["value"]
        for metric in test.metrics:
            if value is None or math.isnan(value) or metric.values(name) is None:
                continue
            # Sums of float32 may exceed a bound in the last digits.
            if not metric.low - 1e-6 <= value <= metric.high + 1e-6:
                raise ValueError(
                    f"metric {name!r} of the tests {test.group!r} is {value:.6g}, outside of its declared range"
                    f" [{metric.low:g}, {metric.high:g}]; give its Metric(..) the right low, high and unit"
                )
        yield row
