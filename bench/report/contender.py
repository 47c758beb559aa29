"""Contenders: methods as they compete in tables, each at one setting with its seeds, and the texts that name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import pandas as pd

from ..store.pinned import Pinned, split_pinned
from .table import Column, label


class OfContender(Protocol):
    """Anything that is about a contender."""

    @property
    def contender(self) -> Contender:
        """The contender."""


R = TypeVar("R", bound=OfContender)


class Contender(NamedTuple):
    """A method at one setting, as it competes in tables: everything that its results share except the seed.

    ``base`` is the method of the model that a head is trained on, ``hparams`` the source of the hyper-parameters, such
    as ``tuned`` or ``published``, ``pinned`` what the user fixed. ``ensemble`` is how several models are combined:
    ``separated`` (mean of their results), ``concatenated`` (embeddings side by side), or ``seeds`` of a base.
    """

    protocol: str
    preset: str
    dataset: str
    method: str
    base: str
    fidelity: str
    hparams: str
    trials: int
    pinned: Pinned
    backbone: str
    dim: int
    ensemble: str

    @classmethod
    def of(cls, rows: pd.DataFrame) -> Self:
        """Read a contender from rows of the tidy table (one measured value per row) that all belong to it."""
        return cls(*rows[list(cls._fields)].iloc[0])

    @property
    def name(self) -> str:
        """Name of the method, with the base that its head is trained on in parentheses; one-stage methods have none."""
        return f"{self.method} ({self.base})" if self.base else self.method

    @property
    def label(self) -> str:
        """Name of the method, such as ``METHOD (BASE) [FIDELITY]``; the form is left out if it is ``corrected``."""
        return self.name if self.fidelity == "corrected" else f"{self.name} [{self.fidelity}]"

    @property
    def network(self) -> str:
        """Text ``BACKBONE/DIM``, followed by ``sep.``, ``conc.`` or ``ens.`` if several models are tested together."""
        suffix = {"separated": " sep.", "concatenated": " conc.", "seeds": " ens."}.get(self.ensemble, "")
        return f"{self.backbone}/{self.dim}{suffix}"

    @property
    def tuning(self) -> str:
        """Source of the hyper-parameters as text, such as ``tuned, 50 trials``, with an unusual protocol."""
        return tuning_text(self.hparams, self.trials, self.protocol, self.preset)


def tuning_text(hparams: str, trials: int, protocol: str, preset: str) -> str:
    """Source of hyper-parameters as text; protocol and preset follow in brackets unless they are the default ones.

    Example:
        >>> tuning_text("tuned", 50, "reality_check", "strict"), tuning_text("default", 0, "per", "strict")
        ('tuned, 50 trials', 'default [per, strict]')
    """
    source = f"tuned, {trials} trials" if hparams == "tuned" else hparams
    return source if (protocol, preset) == ("reality_check", "strict") else f"{source} [{protocol}, {preset}]"


CONTENDER_KEYS = Contender._fields
"""Columns of a :class:`Contender`; with the seed, they are the keys of a test."""
COMMON = ("protocol", "preset", "dataset", "ensemble")
"""Columns in which two contenders agree if they are compared."""

CONTENDER: Column[Any] = Column("", fields=lambda row: row.contender._asdict())
"""Columns of CSV files that say which contender a row is of."""
LABELS: tuple[Column[Any], ...] = (
    label("method", lambda row: row.contender.label),
    label("network", lambda row: row.contender.network),
    label("tuning", lambda row: row.contender.tuning),
    label("pinned", lambda row: str(row.contender.pinned)),
)
"""Columns of tables for readers that say which contender a row is of."""


def by_dataset(rows: Iterable[R]) -> dict[str, list[R]]:
    """Rows, each about a contender, by data set."""
    found: dict[str, list[R]] = {}
    for row in rows:
        found.setdefault(row.contender.dataset, []).append(row)
    return found


def by_contender(frame: pd.DataFrame, columns: Sequence[str] = CONTENDER_KEYS) -> Iterator[pd.DataFrame]:
    """Yield the rows of each contender of a table, sorted by the columns that tell them apart."""
    for _, rows in frame.groupby(list(columns), sort=True, dropna=False):
        yield rows


def distinct_labels(contenders: Sequence[Contender]) -> dict[Contender, str]:
    """Names of contenders that tell them apart: labels, with the setting if several have the same label."""
    labels = [contender.label for contender in contenders]
    _, own = split_pinned([contender.pinned for contender in contenders])
    return {
        each: ", ".join(filter(None, [each.label, each.network, each.tuning, pinned]))
        if labels.count(each.label) > 1
        else each.label
        for each, pinned in zip(contenders, own)
    }
