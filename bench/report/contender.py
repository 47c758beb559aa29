"""Contenders: methods as they compete in tables, each at one setting with its seeds, and the texts that name them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import pandas as pd


class Contender(NamedTuple):
    """A method at one setting: the columns of :class:`~bench.store.records.Columns` that all its seeds share."""

    protocol: str
    preset: str
    dataset: str
    method: str
    base: str
    fidelity: str
    hparams: str
    trials: int
    pinned: str
    backbone: str
    dim: int
    ensemble: str

    @classmethod
    def of(cls, rows: pd.DataFrame) -> Self:
        """Read the contender from the first of some rows of the tidy table."""
        return cls(*rows[list(cls._fields)].iloc[0])

    @property
    def label(self) -> str:
        """Name of the method, with its base in parentheses and any fidelity but ``corrected`` in brackets."""
        label = f"{self.method} ({self.base})" if self.base else self.method
        return label if self.fidelity == "corrected" else f"{label} [{self.fidelity}]"

    @property
    def network(self) -> str:
        """Text ``BACKBONE/DIM``, followed by how several models are combined if there are several."""
        suffix = {"separated": " sep.", "concatenated": " conc."}.get(self.ensemble, "")
        return f"{self.backbone}/{self.dim}{suffix}"

    @property
    def tuning(self) -> str:
        """Text that says where the hyper-parameters come from; it names any but the default protocol and preset."""
        source = f"tuned, {self.trials} trials" if self.hparams == "tuned" else self.hparams
        if (self.protocol, self.preset) != ("reality_check", "strict"):
            source += f" [{self.protocol}, {self.preset}]"
        return source


CONTENDER_KEYS = Contender._fields
"""Columns of a :class:`Contender`; with the seed, they are the keys of a test."""


def by_contender(frame: pd.DataFrame, columns: Sequence[str] = CONTENDER_KEYS) -> Iterator[pd.DataFrame]:
    """Yield the rows of each contender, in the sorted order of the columns that tell contenders apart."""
    for _, rows in frame.groupby(list(columns), sort=True, dropna=False):
        yield rows


def split_pinned(pinned: list[str]) -> tuple[str, list[str]]:
    """Split pinned values (settings fixed by hand) into those that all rows share and those that only some rows have.

    Example:
        >>> split_pinned(["a=1; b=2", "a=1"])
        ('a=1', ['b=2', ''])
    """
    values = [text.split("; ") if text else [] for text in pinned]
    shared = [value for value in values[0] if all(value in other for other in values)] if values else []
    return "; ".join(shared), ["; ".join(value for value in own if value not in shared) for own in values]
