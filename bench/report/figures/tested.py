"""Test images as tested models embed them, read from the results folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributions import Distribution

from ...methods.distributions.arrays import from_arrays
from ...methods.scorers.spec import DistributionScorer
from ...protocols.query_metrics import per_query
from ...protocols.ranking import Ranking, answer_depth, full_depth, rank
from ...store.folder import Store
from ...store.records import KEYS, TestRecord
from .source import Missing

ROLES = ("queries", "gallery")
CONFIDENCE = "confidence."


@dataclass(frozen=True)
class TestedModel:
    """Embeddings, batch shape ``[N]``, of the N clean test images of a data set by one tested model.

    ``queries`` ``[Q]`` and ``gallery`` ``[G]`` are positions. The nearest neighbours are those by the cosine of the
    means. The number of the contender determines its colour.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    record: TestRecord
    label: str
    index: int
    ids: tuple[str, ...]
    labels: Tensor
    distribution: Distribution
    confidence: dict[str, Tensor]
    queries: Tensor
    gallery: Tensor

    @property
    def identity(self) -> dict[str, str | int]:
        """Columns that identify it in a table: those of the results table, label and number of the contender."""
        columns = {key: getattr(self.record.columns, key) for key in KEYS}
        return {**columns, "label": self.label, "index": self.index}

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


def read_model(store: Store, record: TestRecord, label: str, index: int) -> TestedModel:
    """Read the embeddings and confidences of the clean test images that a test kept, whole."""
    if not record.files:
        raise Missing("no embeddings are kept of models side by side")
    path = store.unit_dir(record.cell, "test", record.unit) / min(record.files)
    try:
        with safe_open(path, "pt") as file:
            text = file.metadata()
            wanted = [name for name in file.keys() if name in ("labels", *ROLES) or name.startswith("clean.")]  # noqa: SIM118
            arrays = {name.removeprefix("clean."): file.get_tensor(name) for name in wanted}
    except (OSError, SafetensorError):
        if not path.exists() and store.archive_of(record.cell, "test", record.unit):
            raise Missing("an archive has no embeddings") from None
        raise Missing(f"{path} is missing or damaged; remove its folder and run the command again") from None
    labels = arrays.pop("labels")
    everything = torch.arange(len(labels))
    queries, gallery = (arrays.pop(name, everything) for name in ROLES)
    names = [name for name in arrays if name.startswith(CONFIDENCE)]
    confidence = {name.removeprefix(CONFIDENCE): arrays.pop(name) for name in names}
    try:
        distribution = from_arrays(text["distribution"], arrays)
    except TypeError as error:
        raise Missing(str(error)) from None
    ids = tuple(text["ids"].split("\n"))
    return TestedModel(record, label, index, ids, labels, distribution, confidence, queries, gallery)
