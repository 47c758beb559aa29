"""What the tests see: named arrays and tidy rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import TypedDict  # pydantic reads records with it, on 3.11 too


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
    """A tidy row, and the split it is about: ``test``, ``test_crop``, ``val``, .."""

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
    """One value of one metric.

    Args:
        metric: Name of the metric.
        value: A fraction in [0, 1], a correlation in [-1, 1], or nan where there is none.
        scorer: Similarity it was computed with, where one was.
        confidence: Confidence it is about, where it is about one.
        variant: What else tells it apart.
        fraction: Share removed, where something was.
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


@dataclass(frozen=True)
class Embeddings:
    """A set of embedded images.

    Attributes:
        labels: Classes, ``[N]`` integers.
        ids: One stable identity per image; everything that is drawn is drawn per identity.
        confidence: Confidences by name, each ``[N]``, higher = more certain.
        quality: Known quality ``[N]`` (the side fraction of a crop), if any.

    Raises:
        ValueError: If lengths differ, identities repeat, or a value is not finite.
    """

    labels: Tensor
    ids: tuple[str, ...]
    confidence: Mapping[str, Tensor] = field(default_factory=dict)
    quality: Tensor | None = None

    def __post_init__(self) -> None:
        count = len(self.ids)
        if self.labels.shape != (count,):
            raise ValueError(f"{count} ids but labels of shape {tuple(self.labels.shape)}")
        if len(set(self.ids)) != count:
            raise ValueError("image ids repeat")
        arrays = dict(self.confidence) | ({} if self.quality is None else {"quality": self.quality})
        for name, values in arrays.items():
            if values.shape != (count,):
                raise ValueError(f"{name} has shape {tuple(values.shape)}, expected ({count},)")
            if not torch.isfinite(values).all():
                raise ValueError(f"{name} has values that are not finite")

    def __len__(self) -> int:
        return len(self.ids)
