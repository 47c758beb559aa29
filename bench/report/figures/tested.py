"""Test images as tested models embed them, read from the results folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Distribution

from ...engine import rescoring
from ...errors import UnitFailed
from ...methods.scorers.spec import DistributionScorer
from ...protocols.query_metrics import per_query
from ...protocols.ranking import Ranking, answer_depth, full_depth, rank
from ...store.folder import Store
from ...store.records import KEYS, TestRecord
from .source import Missing


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
    def identity(self) -> dict[str, object]:
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
    try:
        kept = rescoring.find_arrays(record, store).embeddings if record.files else {}
        if not kept:
            raise Missing("no embeddings are kept, as of models side by side")
        model = rescoring.read_model(next(iter(kept.values()))[0], record.role.primary_scorer)
    except UnitFailed as error:
        what = str(error).partition(";")[0]
        raise Missing(f"{what}; archives have no embeddings, and the command that made them makes them again") from None
    everything = torch.arange(len(model.labels))
    queries, gallery = (model.roles.get(name, everything) for name in ("queries", "gallery"))
    distribution, confidence = model.embeddings["test"], model.confidence["test"]
    return TestedModel(record, label, model.ids, model.labels, distribution, confidence, queries, gallery)
