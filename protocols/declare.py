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

NEEDED = ("candidates", "confidences", "directions", "gallery", "quality", "queries", "soft_labels", "validation")
"""Optional attributes of embeddings that a test may need."""


class DeclaredMetric(Protocol):
    """The part of a :class:`~bench.protocols.metrics.Metric` that a declaration checks."""

    @property
    def name(self) -> str:
        """Name in the tidy table."""

    @property
    def group(self) -> str:
        """Group of the test that computes it."""

    @property
    def low(self) -> float:
        """Smallest possible value."""

    @property
    def high(self) -> float:
        """Largest possible value."""

    def values(self, name: str) -> dict[str, str] | None:
        """Values of the placeholders in a name by placeholder; None if the name belongs to another metric."""


@dataclass(frozen=True)
class EmbeddingTest:
    """A test of embeddings.

    Attributes:
        group: Name by which plans ask for it.
        per: How often it runs: once for every ``scorer``, for the ``own scorer`` (those that confidences are judged
            with), or once for the ``embeddings``.
        run: Function of the :class:`~bench.protocols.embeddings.Embeddings`, and of the name of the scorer if it runs
            per scorer, that returns tidy rows.
        needs: Attributes of the embeddings without which it is left out.
        clean_only: Whether it is left out on corrupted images.
        metrics: Metrics that the test declares; metrics of built-in tests are in the table of metrics.
    """

    group: str
    per: Per
    run: Callable[..., Iterable[Row]]
    needs: tuple[str, ...] = ()
    clean_only: bool = False
    metrics: tuple[DeclaredMetric, ...] = ()

    @property
    def module(self) -> str:
        """Dotted name of the module that defines it."""
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
) -> Callable[[F], F]:
    """Declare a function as a test of embeddings (:class:`EmbeddingTest`).

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
        _DECLARED[key] = EmbeddingTest(group, per, function, needed, clean_only, brought)
        return function

    return declare


test.__test__ = False  # type: ignore[attr-defined]  # not a test of ours, whatever pytest makes of its name


def declared_tests(module: str | None = None) -> tuple[EmbeddingTest, ...]:
    """Tests of a module that was imported, or of all such modules, in the order of their declaration."""
    return tuple(declared for (name, _), declared in _DECLARED.items() if module in (None, name))
