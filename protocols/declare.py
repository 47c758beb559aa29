"""Declaring tests of embeddings and their metrics, and running them: one battery for trained models and for files.

    @test(group="clustering", per="embeddings", needs=("directions",), clean_only=True)
    def clustering(view: Embeddings) -> Iterator[Row]: ...

The metrics of built-in tests are in :mod:`~bench.protocols.metrics`; a test in a file of its own brings its metrics
along, with ``metrics=(Metric(...), ..)``.
"""

# ruff: noqa: PT028 (its decorator is no test function)

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from .rows import Row

if TYPE_CHECKING:
    from .embeddings import Embeddings

Per = Literal["scorer", "own scorer", "embeddings"]

Better = Literal["higher", "lower", ""]
Of = Literal["ranking", "confidence", "embeddings"]
Unit = Literal["share", "correlation", "number"]

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


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Description of a metric, or of a family such as Recall@k, in tidy tables (one row per value).

    Attributes:
        name: Name in the column ``metric``; a parametrised family has a placeholder in braces, as in ``recall_at_{k}``.
        title: Heading in tables and figures; placeholders as in the name.
        group: Name of the group of tests that computes it.
        asked_as: Name that selects it and related metrics in the option ``--metrics`` of ``bench score``, which tests a
            file of embeddings; if empty, the name of its group.
        better: ``higher`` or ``lower``; empty if neither is better.
        of: Subject of the metric: ``ranking`` (by a similarity), ``confidence``, or ``embeddings``. Metrics of a
            confidence are computed whenever there is one, unless they are ``on_request``; the others on request or by
            ``default``.
        unit: ``share`` (printed in percent), ``correlation`` in [-1, 1], or a plain ``number``.
        low: Smallest possible value.
        high: Largest possible value.
        members: Names of the members of a family that are computed if none is named.
        source: Publication that defines it.
        default: Whether ``bench score`` computes it by default.
        on_request: Whether ``bench score`` computes this metric of a confidence on request only.
        short: Heading in tables with little space; the title if empty.
        equivalence: Largest difference of two methods without practical meaning, by which verdicts call them
            equivalent; 0 if there is no such convention.

    Raises:
        ValueError: If a field has an unknown value, the range is empty, or ``equivalence`` is not inside it.
    """

    name: str
    title: str
    group: str
    asked_as: str = ""
    better: Better = "higher"
    of: Of = "ranking"
    unit: Unit = "share"
    low: float = 0.0
    high: float = 1.0
    members: tuple[str, ...] = ()
    source: str = ""
    default: bool = False
    on_request: bool = False
    short: str = ""
    equivalence: float = 0.0

    def __post_init__(self) -> None:
        for field, known in (("better", Better), ("of", Of), ("unit", Unit)):
            value = getattr(self, field)
            if value not in get_args(known):
                legal = ", ".join(map(repr, get_args(known)))
                raise ValueError(f"metric {self.name!r}: {field} must be one of {legal}, not {value!r}")
        if not self.low < self.high:
            raise ValueError(f"metric {self.name!r}: low={self.low:g} is not below high={self.high:g}")
        if not 0 <= self.equivalence < self.high - self.low:
            raise ValueError(f"metric {self.name!r}: equivalence={self.equivalence:g} is negative or spans the range")

    @property
    def family(self) -> bool:
        """True if the name has a placeholder, as in ``recall_at_{k}``, so that it describes several metrics."""
        return "{" in self.name

    def values(self, name: str) -> dict[str, str] | None:
        """Values of the placeholders of this family in the full name of a metric; None if that is no member.

        Example:
            >>> Metric(name="recall_at_{k}", title="Recall@{k}", group="retrieval").values("recall_at_4")
            {'k': '4'}
        """
        match = re.fullmatch(re.sub(r"\\\{(\w+)\\\}", _placeholder, re.escape(self.name)), name)
        return match and match.groupdict()

    @property
    def has_request(self) -> bool:
        """False for metrics of a confidence that are computed whenever there is one, so that nobody asks for them."""
        return self.of != "confidence" or self.on_request

    @property
    def sign(self) -> int:
        """-1 if lower values are better, else 1."""
        return -1 if self.better == "lower" else 1


def _placeholder(match: re.Match[str]) -> str:
    number = r"[1-9]\d{0,5}"
    return f"(?P<{match[1]}>{number if match[1] == 'k' else '[a-z][a-z0-9_]*'})"


@dataclass(frozen=True)
class EmbeddingTest:
    """A test of embeddings: a function that computes metrics of embedded images, and what it needs.

    Attributes:
        group: Name of its group, by which plans and commands select it.
        per: How often it runs: once for every ``scorer`` (similarity of embeddings), only for each ``own scorer``
            (usually the method's), or once for the ``embeddings``.
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
    metrics: tuple[Metric, ...] = ()
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
    metrics: Iterable[Metric] = (),
    version: int = 1,
) -> Callable[[F], F]:
    """Decorator that declares a function as a test of embeddings (:class:`EmbeddingTest`) and returns the function.

    The function takes the :class:`~bench.protocols.embeddings.Embeddings`, and the name of a scorer (similarity of
    embeddings) if it runs per scorer. It returns a row (:func:`~bench.protocols.rows.row`) per value of a metric.

    Args:
        group: Name by which plans and commands select the test.
        per: ``"scorer"`` to run once for every scorer, ``"own scorer"`` to run once for each of the ``own_scorers`` of
            the embeddings, or ``"embeddings"`` to run once.
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


def applies(test: EmbeddingTest, view: Embeddings) -> bool:
    """Check if the embeddings have every field that a test needs, and are not corrupted if it is for clean ones."""
    if test.clean_only and not view.clean:
        return False
    values = (getattr(view, name) for name in test.needs)
    return all(value is not None and not (isinstance(value, Mapping) and not value) for value in values)


def run_battery(view: Embeddings, tests: Iterable[EmbeddingTest]) -> list[Row]:
    """Run every test that applies to some embeddings, and enter the scorer in the rows of those that run per scorer.

    Tests that rank or compare images run first, scorer by scorer; then come
    the tests of the embeddings as a whole. A value that does not exist (the correlation of a constant confidence, say)
    is nan.

    Raises:
        ValueError: If a value is outside the range of a metric that its test declares.
    """
    chosen = [test for test in tests if applies(test, view)]
    rows: list[Row] = []
    for name in view.scorers:
        for test in chosen:
            if test.per == "scorer" or (test.per == "own scorer" and name in view.own_scorers):
                rows += _checked(test, test.run(view, name), name)
    for test in chosen:
        if test.per == "embeddings":
            rows += _checked(test, test.run(view))
    return rows


def _checked(test: EmbeddingTest, rows: Iterable[Row], scorer: str = "") -> Iterator[Row]:
    """The rows of a test with the scorer that it ran for, checked against the metrics that the test itself declares."""
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
        yield {**row, "scorer": row["scorer"] or scorer}
