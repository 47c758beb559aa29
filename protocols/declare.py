"""Declaring tests of embeddings: a decorator with the group of a test, its metrics and the inputs that it needs.

    @test(group="clustering", per="embeddings", needs=("directions",), clean_only=True)
    def clustering(view: Embeddings) -> Iterator[Row]: ...

The metrics of built-in tests are in :mod:`~bench.protocols.metrics`; a test in a file of its own brings its metrics
along, with ``metrics=(Metric(...), ..)``.
"""

# ruff: noqa: PT028 (its decorator is no test function)

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, get_args

from .rows import Row

Per = Literal["scorer", "own scorer", "embeddings"]

NEEDED = (
    "candidates",
    "confidences",
    "directions",
    "gallery",
    "posterior",
    "quality",
    "queries",
    "soft_labels",
    "validation",
)
"""Optional attributes of embeddings that a test may need."""


class DeclaredMetric(Protocol):
    """Interface of a metric that a test of embeddings declares, such as :class:`~bench.protocols.metrics.Metric`."""

    @property
    def name(self) -> str:
        """Name of the metric in tables of results; that of a family has a placeholder, as in ``recall_at_{k}``."""

    @property
    def group(self) -> str:
        """Name of the group of tests that computes the metric."""

    @property
    def low(self) -> float:
        """Smallest possible value of the metric."""

    @property
    def high(self) -> float:
        """Largest possible value of the metric."""

    def values(self, name: str) -> dict[str, str] | None:
        """Values of the placeholders in a full name, as in ``{"k": "4"}`` for ``recall_at_4`` of ``recall_at_{k}``.

        None if the name belongs to another metric.
        """


@dataclass(frozen=True)
class EmbeddingTest:
    """A test of embeddings: a function that computes metrics of embedded images, and what it needs.

    Attributes:
        group: Name of its group, by which plans and commands select it.
        per: How often it runs: once for every ``scorer`` (similarity of embeddings), only for each ``own scorer`` (by
            which confidences are judged, usually the method's), or once for the ``embeddings``.
        run: Function of the :class:`~bench.protocols.embeddings.Embeddings`, and of the name of the scorer if it runs
            per scorer, that returns a :class:`~bench.protocols.rows.Row` (metric, value, ..) per value.
        needs: Names of attributes of the embeddings, such as ``confidences``, without which the test is left out.
        clean_only: Whether the test is left out on corrupted images.
        metrics: Metrics that the test itself declares; those of built-in tests are in :mod:`bench.protocols.metrics`.
        version: Number to raise when the test gives other values than before.
    """

    group: str
    per: Per
    run: Callable[..., Iterable[Row]]
    needs: tuple[str, ...] = ()
    clean_only: bool = False
    metrics: tuple[DeclaredMetric, ...] = ()
    version: int = 1

    @property
    def module(self) -> str:
        """Dotted name of the module that defines the test's function."""
        return self.run.__module__


F = TypeVar("F", bound=Callable[..., Iterable[Row]])

_DECLARED: dict[tuple[str, str], EmbeddingTest] = {}


def test(
    *,
    group: str,
    per: Per,
    needs: Iterable[str] = (),
    clean_only: bool = False,
    metrics: Iterable[DeclaredMetric] = (),
    version: int = 1,
) -> Callable[[F], F]:
    """Decorator that declares a function as a test of embeddings (:class:`EmbeddingTest`) and returns the function.

    The function takes the :class:`~bench.protocols.embeddings.Embeddings`, and the name of a scorer (similarity of
    embeddings) if it runs per scorer. It returns a row (:func:`~bench.protocols.rows.row`) per value of a metric.

    Args:
        group: Name by which plans and commands select the test.
        per: ``"scorer"`` to run once for every scorer, ``"own scorer"`` to run once for each of the scorers by which
            confidences are judged, or ``"embeddings"`` to run once.
        needs: Names of attributes of the embeddings, such as ``"confidences"``, without which the test is left out.
        clean_only: Leave the test out on corrupted images.
        metrics: Metrics that the test computes, unless they are in the built-in table.
        version: Number to raise when the test gives other values than before; it is part of the ids of results.

    Raises:
        ValueError: If a metric names another group than the test, or ``per`` or ``needs`` has an unknown value.

    Example:
        >>> @test(group="example", per="embeddings")
        ... def count(view):
        ...     yield from ()
        >>> [declared.group for declared in declared_tests(count.__module__) if declared.run is count]
        ['example']
    """
    brought, needed = tuple(metrics), tuple(needs)
    if per not in get_args(Per):
        raise ValueError(f"per must be one of {', '.join(map(repr, get_args(Per)))}, not {per!r}")
    unknown = [name for name in needed if name not in NEEDED]
    if unknown:
        raise ValueError(f"needs {unknown[0]!r}, which embeddings do not have (known: {', '.join(NEEDED)})")
    for metric in brought:
        if metric.group != group:
            raise ValueError(f"metric {metric.name!r} is of group {metric.group!r}, its test of group {group!r}")

    def declare(function: F) -> F:
        key = (function.__module__, function.__qualname__)
        _DECLARED[key] = EmbeddingTest(group, per, function, needed, clean_only, brought, version)
        return function

    return declare


test.__test__ = False  # type: ignore[attr-defined]  # not a test of ours, whatever pytest makes of its name


def declared_tests(module: str | None = None) -> tuple[EmbeddingTest, ...]:
    """Tests that a module, or all imported modules, declared with :func:`test`, in the order of declaration."""
    return tuple(declared for (name, _), declared in _DECLARED.items() if module in (None, name))
