"""What is tested: one trained model, or the models of a cross-validation side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..methods.scorers.distribution_scorer import DistributionScorer
from ..protocols.retrieval import MeanScorer, Scorer
from .context import Cell, Context
from .model import embed, load_model


@dataclass(frozen=True)
class Subject:
    """Embeddings of one model on every split.

    Attributes:
        method: The method, with its parameters.
        embeddings: Distributions by split, batch shape ``[N]``.
        confidence: Confidences by split and kind, each ``[N]``.
        options: Trained parameters of its scorer.
        trained: Record of the training unit.
        device: Where matrices of scores are computed.
    """

    method: Any
    embeddings: Mapping[str, Distribution]
    confidence: Mapping[str, Mapping[str, Tensor]]
    options: Mapping[str, float]
    trained: Mapping[str, Any]
    device: str
    has_val = True

    @classmethod
    def of(
        cls, unit: str, cell: Cell, context: Context, quality: Mapping[str, Tensor], seeds: Mapping[str, int]
    ) -> Subject:
        """Embed the test images, clean and corrupted, and the validation images of a trained unit.

        Args:
            unit: Id of the training unit.
            cell: Its folder.
            context: Paths and device.
            quality: What each corruption leaves of each test image (for the crop its side), ``[N]`` by kind.
            seeds: Seed of what each corruption draws.
        """
        model, trained = load_model(cell, unit, context)
        spec = trained["spec"]
        dataset = context.dataset(spec["dataset"], spec["view"])
        tests, val = dataset.test(), dataset.train_val(spec["fold"], spec["folds"]).val
        found = {
            "test": embed(model, tests.evaluation, len(tests), context.device),
            "val": embed(model, val.evaluation, len(val), context.device),
        }
        for kind, left in quality.items():

            def load(index: Tensor, kind: str = kind, left: Tensor = left) -> Tensor:
                images: Tensor = tests.degraded(kind, index, left[index], seeds[kind])
                return images

            found[f"test_{kind}"] = embed(model, load, len(tests), context.device)
        return cls(
            model.method,
            {split: part[0] for split, part in found.items()},
            {split: part[1] for split, part in found.items()},
            model.scorer_options(),
            trained,
            context.device,
        )

    def scorer(self, name: str, split: str, options: bool = True) -> Scorer:
        """A scorer on the rows of a split."""
        return DistributionScorer(name, self.embeddings[split], self.options if options else None, self.device)

    def unit_vectors(self, split: str) -> Tensor:
        """Means on the unit sphere, float64 ``[N, D]``."""
        means: Tensor = self.embeddings[split].mean
        return torch.nn.functional.normalize(means.double(), dim=-1)


class Concatenated:
    """Models side by side: the product of their distributions.

    The score of a pair is the mean of the models' scores, which orders pairs as the score of the product distribution
    does: for the cosine it is the cosine of the concatenated unit vectors (Musgrave et al. 2020), for a likelihood
    the log of a product is a sum. The confidence is the mean too. Every development class has trained all models but
    one, so there is no validation split.
    """

    has_val = False

    def __init__(self, members: Sequence[Subject]) -> None:
        self.members = tuple(members)
        self.method = members[0].method
        self.confidence = {
            split: {
                kind: torch.stack([m.confidence[split][kind].double() for m in members]).mean(0)
                for kind in members[0].confidence[split]
            }
            for split in members[0].confidence
            if split != "val"
        }

    def scorer(self, name: str, split: str, options: bool = True) -> Scorer:
        """A scorer on the rows of a split."""
        return MeanScorer([member.scorer(name, split, options) for member in self.members])

    def unit_vectors(self, split: str) -> Tensor:
        """Concatenated unit vectors, again on the unit sphere, float64 ``[N, M D]``."""
        parts = [member.unit_vectors(split) for member in self.members]
        return torch.cat(parts, dim=1) / math.sqrt(len(parts))
