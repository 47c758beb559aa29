"""Running tests on embeddings: one battery for trained models and for files of embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .declare import EmbeddingTest
from .embeddings import Embeddings
from .rows import Row


def applies(test: EmbeddingTest, view: Embeddings) -> bool:
    """Check that embeddings have everything that a test needs."""
    if test.clean_only and not view.clean:
        return False
    values = (getattr(view, name) for name in test.needs)
    return all(value is not None and not (isinstance(value, Mapping) and not value) for value in values)


def run_battery(view: Embeddings, tests: Iterable[EmbeddingTest]) -> list[Row]:
    """Run every test that applies: scorer by scorer, then the tests of the embeddings as a whole.

    Args:
        view: The embeddings.
        tests: Tests to run (:func:`~bench.protocols.known_tests.load_tests`).

    Returns:
        Tidy rows. A value that does not exist (the correlation of a constant confidence, say) is nan.
    """
    chosen = [test for test in tests if applies(test, view)]
    rows: list[Row] = []
    for name in view.scorers:
        for test in chosen:
            if test.per == "scorer" or (test.per == "own scorer" and name in view.own_scorers):
                rows += test.run(view, name)
    for test in chosen:
        if test.per == "embeddings":
            rows += test.run(view)
    return rows
