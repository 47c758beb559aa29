"""Checks of a test of embeddings: declared metrics in their range, the same in any order of the images."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..protocols.declare import EmbeddingTest, run_battery
from ..protocols.embeddings import Embeddings, Options, Quality
from ..protocols.metrics import find_metric, known_metrics
from ..protocols.ranking import ScoreMatrix
from ..protocols.rows import Row
from .failure import ConformanceError, require

DIM = 16


def _view(clean: bool, order: Tensor | None = None) -> Embeddings:
    """Small random embeddings that have everything a test can need, in some order; one image is alone in its class."""
    labels = torch.tensor([0] * 9 + [1] * 7 + [2] * 6 + [3] * 4 + [4] * 2 + [5])
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(6, DIM, generator=g, dtype=torch.float64)
    noise = torch.randn(len(labels), DIM, generator=g, dtype=torch.float64)
    x = nn.functional.normalize(centres[labels] + (0.6 if clean else 1.2) * noise, dim=1)
    values = {name: torch.rand(len(labels), generator=g) for name in ("norm", "method", "random", "quality")}
    people = torch.rand(len(labels), 4, generator=g).softmax(1)
    known = torch.rand(len(labels), 6, generator=g).double().softmax(1)
    if order is None:
        order = torch.arange(len(labels))
    labels, x, people, known = labels[order], x[order], people[order], known[order]
    values = {name: value[order] for name, value in values.items()}
    quality = values.pop("quality")
    ids = tuple(f"image {i:02d}" for i in order.tolist())
    scorers = {
        "cosine": lambda: ScoreMatrix(x @ x.T, "cosine"),
        "mls": lambda: ScoreMatrix((x @ x.T) ** 3, "mls"),
    }
    return Embeddings(
        labels=labels,
        ids=ids,
        scorers=scorers,
        own_scorers=("cosine",),
        confidences=values,
        directions=lambda: x,
        quality=None if clean else Quality(values=quality, clean={"norm": values["method"]}),
        soft_labels=people,
        posterior=lambda: known,
        validation=Embeddings(labels=labels, ids=ids, scorers=scorers),
        candidates=lambda: ScoreMatrix(-torch.cdist(x, x), "l2"),
        clean=clean,
        options=Options(held_out_threshold=True),
    )


def _rows(test: EmbeddingTest, clean: bool, order: Tensor | None = None) -> list[Row]:
    # Without its metrics: one of the checks is about their ranges, and the others are not.
    return run_battery(_view(clean, order), [replace(test, metrics=())])


def metadata_of_test(test: EmbeddingTest) -> None:
    """Require that a test of embeddings has a docstring and the name of a group, and that its metrics are new."""
    require(bool(test.run.__doc__), "a test needs a docstring")
    require(bool(test.group), "a test needs the name of its group")
    known_metrics()  # a name that is taken is refused


def rows_of_test(test: EmbeddingTest) -> None:
    """Require that a test of embeddings gives rows of results, no two of which agree in everything but their value."""
    per_split = [_rows(test, clean) for clean in (True, False)]
    require(any(per_split), "it gives no rows; do the embeddings have what `needs` names?")
    for rows in per_split:
        keys = [_key(row) for row in rows]
        repeated = next((key for key in keys if keys.count(key) > 1), None)
        require(repeated is None, f"two rows share everything but their value: {repeated}")


def declared_rows(test: EmbeddingTest) -> None:
    """Require that every row has a declared metric, a value within its range, and a confidence if it is about one."""
    outside: dict[str, str] = {}
    for row in [*_rows(test, True), *_rows(test, False)]:
        name, value = row["metric"], row["value"]
        metric = find_metric(name)
        if metric is None:
            raise ConformanceError(f"metric {name!r} is not declared; give it to the decorator: metrics=(Metric(..),)")
        inside = value is None or math.isnan(value) or metric.low - 1e-9 <= value <= metric.high + 1e-9
        if not inside:
            outside.setdefault(name, f"{name} is {value:.6g}, outside of [{metric.low:g}, {metric.high:g}]")
        told = bool(row["confidence"]) == (metric.of == "confidence")
        require(told, f"{name} is declared with of={metric.of!r}, but its rows say confidence={row['confidence']!r}")
    require(not outside, f"{'; '.join(outside.values())}: give Metric(..) the right low=, high= and unit=")


def any_order(test: EmbeddingTest) -> None:
    """Require that the values of a test of embeddings depend neither on the order of the images nor on the run."""
    for clean in (True, False):
        first = {_key(row): row["value"] for row in _rows(test, clean)}
        order = torch.randperm(len(_view(clean).ids), generator=torch.Generator().manual_seed(1))
        for what, other in (("order of the images", order), ("chance", None)):
            again = {_key(row): row["value"] for row in _rows(test, clean, other)}
            require(first.keys() == again.keys(), f"which rows there are depends on the {what}")
            for key, value in first.items():
                close = math.isclose(value or 0.0, again[key] or 0.0, rel_tol=1e-6, abs_tol=1e-9)
                both_nan = value != value and again[key] != again[key]
                require(close or both_nan, f"{key[0]} depends on the {what}: {value} and {again[key]}")


def _key(row: Row) -> tuple[str, str, str, str, float | None]:
    return row["metric"], row["scorer"], row["confidence"], row["variant"], row["fraction"]


TEST_CHECKS: dict[str, Callable[[EmbeddingTest], None]] = {
    "metadata": metadata_of_test,
    "runs": rows_of_test,
    "declared": declared_rows,
    "order": any_order,
}
"""Every check of a test of embeddings, by name."""
