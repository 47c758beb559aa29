"""Test images as tested models embed them, read from the results folder, and the figure of their singular values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import torch
from torch import Tensor
from torch.distributions import Distribution

from ...engine import rescoring
from ...errors import UnitFailed
from ...methods.scorers.spec import DistributionScorer
from ...protocols.query_metrics import per_query
from ...protocols.ranking import Ranking, answer_depth, full_depth, rank
from ...protocols.structure import singular_spectrum, spectral_decay
from ...store.folder import Store
from ...store.records import KEYS, TestRecord
from .curves import Panel, curve_figure, seed_curve, seed_points
from .registry import Drawing, Missing, Note, Source, labelled


@dataclass(frozen=True)
class TestedModel:
    """Embeddings, batch shape ``[N]``, of the N clean test images of a data set by one tested model.

    ``queries`` ``[Q]`` and ``gallery`` ``[G]`` are positions. The nearest neighbours are those by the cosine of the
    means.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    record: TestRecord
    label: str
    ids: tuple[str, ...]
    labels: Tensor
    distribution: Distribution
    confidence: Mapping[str, Tensor]
    queries: Tensor
    gallery: Tensor

    @property
    def identity(self) -> dict[str, str | int]:
        """Columns that identify it in a table: those of the results table, and the label of the contender."""
        return {**{key: getattr(self.record.columns, key) for key in KEYS}, "label": self.label}

    @cached_property
    def unit_vectors(self) -> Tensor:
        """L2-normalised means of the embeddings, float64 ``[N, D]``."""
        means: Tensor = self.distribution.mean
        return torch.nn.functional.normalize(means.double(), dim=-1)

    @cached_property
    def ranking(self) -> Ranking:
        """Nearest neighbours of every query."""
        scorer = DistributionScorer("cosine", self.distribution)
        depth = max(full_depth(self.labels), answer_depth(self.labels[self.gallery]))
        return rank(scorer, self.labels, depth=depth, queries=self.queries, gallery=self.gallery)

    @cached_property
    def right(self) -> Tensor:
        """Recall@1 of every query, ``[Q]`` in [0, 1]; nan without a positive to find."""
        return per_query(self.ranking)["recall_at_1"]


def read_model(store: Store, record: TestRecord, label: str) -> TestedModel:
    """Read the embeddings and confidences of the clean test images that a test kept, whole."""
    if not record.files:
        raise Missing("no embeddings are kept of models side by side")
    try:
        files = rescoring.kept_files(record, "embeddings", store)
    except UnitFailed:
        files = {}
    if not files:
        raise Missing("its embeddings are damaged, or gone as in an archive; their command makes them again")
    model, arrays, ids = rescoring.read_embeddings(files[min(files)][0], record.role.primary_scorer)
    everything = torch.arange(len(ids))
    queries, gallery = (arrays.get(name, everything) for name in ("queries", "gallery"))
    distribution, confidence = model.embeddings["test"], model.confidence["test"]
    return TestedModel(record, label, ids, arrays["labels"], distribution, confidence, queries, gallery)


def models_of(source: Source, dataset: str, note: Note, *, first: bool = False) -> Iterator[TestedModel]:
    """Yield the tested models of a data set, or those of the first seed, grouped by contender.

    Tests of a cross-validation's concatenated models are left out, because their embeddings are not kept. For a test
    that is the mean over several models, the embeddings are those of the first.
    """
    for label, tests in source.contenders(dataset):
        for record in tests[:1] if first else tests:
            try:
                yield read_model(source.site.store, record, label)
            except (Missing, UnitFailed) as error:
                note(f"{dataset}, {label}, seed {record.columns.seed}: {error}")


def spectra_table(source: Source, dataset: str, note: Note) -> pd.DataFrame:
    """Table of the singular values of the L2-normalised test embeddings of every tested model, divided by their sum.

    The largest, number 1, is left out. ``spectral_decay`` is that of the model, in nats, lower = flatter.
    """
    tables = [pd.DataFrame()]
    for model in models_of(source, dataset, note):
        values = singular_spectrum(model.unit_vectors)
        columns = {"number": range(2, len(values) + 2), "singular_value": values, **model.identity}
        tables.append(pd.DataFrame(columns | {"spectral_decay": spectral_decay(model.unit_vectors)}))
    return pd.concat(tables, ignore_index=True)


def draw_spectra(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure of the sorted singular values of test embeddings, mean and SD over seeds.

    After Milbich et al. 2022 (NIR, Fig. 4) and Roth et al. 2020.
    """
    table = spectra_table(source, dataset, note)
    if table.empty:
        return
    contenders = list(labelled(table))
    points = seed_points(contenders, [], "number", "singular_value")
    decay = [each.rows.groupby("seed")["spectral_decay"].first().mean() for each in contenders]
    curves = [
        seed_curve(f"{rows['label'].iloc[0]} (decay {own:.2f})", look, points[number,])
        for (number, _, look, rows), own in zip(contenders, decay)
    ]
    title, x = f"{dataset}, test embeddings (band: SD over seeds)", "number of the singular value"
    figure = curve_figure([Panel("", curves, "share of their sum")], x=x, title=title, yscale="log")
    yield Drawing(f"spectra_{dataset}", figure, table)
