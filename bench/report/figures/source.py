"""Source of figures: the records of a results folder, and the embeddings kept with its tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from ...protocols.confidence_kinds import COMBINED
from ...site import Site
from ...store.records import TestRecord, TrainRecord
from ..frame import Results
from .contenders import labelled

if TYPE_CHECKING:
    from .tested import TestedModel


MARGIN = COMBINED.removeprefix("+")
"""Name of the retrieval confidence that image confidences are combined with."""


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
    """Results folder that figures are drawn from, with access to its tests by data set and method.

    ``reference`` is the method whose answers divide the queries into right and wrong, in the figure that compares the
    norms of these; if empty, the deterministic method with the highest Recall@1.
    """

    site: Site
    results: Results
    reference: str = ""

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        """Names of the data sets with finished tests, sorted."""
        return tuple(sorted({record.columns.dataset for record in self.results.tests}))

    @cached_property
    def merged(self) -> pd.DataFrame:
        """Tidy table, joined with facts about each test, the columns of :class:`~bench.store.records.Role`."""
        return self.results.merged

    def contenders(self, dataset: str) -> Iterator[tuple[int, str, list[TestRecord]]]:
        """Yield number from 0, label and test records, sorted by seed, of each contender on a data set."""
        tests = {record.unit: record for record in self.results.tests if record.columns.dataset == dataset}
        frame = pd.DataFrame([{**dict(r.columns), "unit": unit} for unit, r in tests.items()])
        for index, label, _, rows in labelled(frame):
            yield index, label, sorted((tests[unit] for unit in rows["unit"]), key=lambda r: r.columns.seed)

    def trained(self, record: TestRecord) -> TrainRecord | None:
        """Training record of the model of a test, of the first model if there are several; None if it has no record."""
        return self.site.store.trained(record.trained_cell, record.spec.train[0])

    def models(self, dataset: str, note: Note, *, first: bool = False) -> Iterator[TestedModel]:
        """Yield the tested models of a data set, or those of the first seed, grouped by contender.

        Tests of a cross-validation's concatenated models are left out, because their embeddings are not kept. For a
        test that is the mean over several models, the embeddings are those of the first.
        """
        from .tested import read_model  # late: it needs torch, which most figures do not

        for index, label, tests in self.contenders(dataset):
            for record in tests[:1] if first else tests:
                try:
                    yield read_model(self.site.store, record, label, index)
                except Missing as error:
                    note(f"{dataset}, {label}, seed {record.columns.seed}: {error}")
