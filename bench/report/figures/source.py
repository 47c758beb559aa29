"""Source of figures: the contenders (methods at one setting) of a results folder, their records and embeddings."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from ...site import Site
from ...store.records import TestRecord, TrainRecord
from ..contender import CONTENDER_KEYS, Contender, distinct_labels
from ..frame import Results
from .style import Look, looks

if TYPE_CHECKING:
    from .tested import TestedModel


class Drawing(NamedTuple):
    """A figure that is ready to be written under a name without a suffix, with the numbers it shows."""

    stem: str
    figure: Figure
    frame: pd.DataFrame


Note = Callable[[str], None]
"""Called with one line for everything that cannot be drawn."""


class Missing(Exception):
    """An error that says, in one line, which data needed for a figure are missing."""


@dataclass(frozen=True)
class Source:
    """Results folder that figures are drawn from, with access to its tests by data set and method."""

    site: Site
    results: Results

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        """Names of the data sets with finished tests, sorted."""
        return tuple(sorted({record.columns.dataset for record in self.results.tests}))

    def contenders(self, dataset: str) -> Iterator[tuple[str, list[TestRecord]]]:
        """Yield label and test records, sorted by seed, of each contender on a data set."""
        tests = {record.unit: record for record in self.results.tests if record.columns.dataset == dataset}
        frame = pd.DataFrame([{**dict(r.columns), "unit": unit} for unit, r in tests.items()])
        for _, label, _, rows in labelled(frame):
            yield label, sorted((tests[unit] for unit in rows["unit"]), key=lambda r: r.columns.seed)

    def trained(self, record: TestRecord) -> TrainRecord | None:
        """Training record of the model of a test, of the first model if there are several; None if it has no record."""
        return self.site.store.trained(record.trained_cell, record.spec.train[0])

    def models(self, dataset: str, note: Note, *, first: bool = False) -> Iterator[TestedModel]:
        """Yield the tested models of a data set, or those of the first seed, grouped by contender.

        Tests of a cross-validation's concatenated models are left out, because their embeddings are not kept. For a
        test that is the mean over several models, the embeddings are those of the first.
        """
        from .tested import read_model  # late: it needs torch, which most figures do not

        for label, tests in self.contenders(dataset):
            for record in tests[:1] if first else tests:
                try:
                    yield read_model(self.site.store, record, label)
                except Missing as error:
                    note(f"{dataset}, {label}, seed {record.columns.seed}: {error}")


class Shown(NamedTuple):
    """A contender in a figure: its number from 0, label in the legend, look, and rows of the table that is drawn."""

    number: int
    label: str
    look: Look
    rows: pd.DataFrame


def labelled(frame: pd.DataFrame) -> Iterator[Shown]:
    """Yield each contender in a table of one data set, under the name that tells it apart in tables."""
    groups = frame.groupby(list(CONTENDER_KEYS), sort=True, dropna=False, observed=True)
    found = {Contender._make(key): rows for key, rows in groups}
    names = [textwrap.fill(name, 40) for name in distinct_labels(list(found)).values()]
    yield from map(Shown, range(len(found)), names, looks([each.method for each in found]), found.values())
