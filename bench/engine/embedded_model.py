"""Embeddings that the tests read: those of one trained model, or of the models of a cross-validation side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..datasets.image_set import ImageSet
from ..errors import UnitFailed
from ..methods._base import Method
from ..methods._ensemble import EnsembleModel
from ..methods._model import EmbeddingModel, NonFiniteEmbeddings
from ..methods.scorers.distribution_scorer import DistributionScorer, mode_scorer
from ..protocols.scorers import MeanScorer, Scorer
from ..site import Site
from ..store.records import TrainRecord
from ..store.specs import Cell
from .corrupted_images import CorruptedImages
from .networks import check_finite, embed, load_ensemble, load_model
from .running import PatientScorer, Running
from .tested_features import Images, TestedFeatures, splits_of


@dataclass(frozen=True)
class EmbeddedModel:
    """Embeddings and confidences of one trained model on every split of the images that the tests need.

    The splits are the clean test images (``test``), the clean validation images (``val``), and both under a corruption
    (``test_`` or ``val_`` and its name). ``options`` are the trained parameters of the method's scorer.
    """

    method: Method
    embeddings: Mapping[str, Distribution]
    confidence: Mapping[str, Mapping[str, Tensor]]
    options: Mapping[str, float]
    trained: TrainRecord
    validation: ImageSet
    device: str
    running: Running = field(default_factory=Running)

    @classmethod
    def of(
        cls,
        unit: str,
        cell: Cell,
        site: Site,
        corrupted: Mapping[str, CorruptedImages],
        running: Running,
    ) -> EmbeddedModel:
        """Embed the test images and the validation images with a trained model, clean and corrupted."""
        return cls._of(*load_model(cell, unit, site), site, corrupted, running)

    @classmethod
    def of_ensemble(
        cls,
        method: str,
        units: Sequence[str],
        members: Cell,
        site: Site,
        corrupted: Mapping[str, CorruptedImages],
        running: Running,
    ) -> EmbeddedModel:
        """Embed the same images with several trained models side by side; ``trained`` is the record of the first."""
        return cls._of(*load_ensemble(method, members, units, site), site, corrupted, running)

    @classmethod
    def _of(
        cls,
        model: EmbeddingModel | EnsembleModel,
        trained: TrainRecord,
        site: Site,
        corrupted: Mapping[str, CorruptedImages],
        running: Running,
    ) -> EmbeddedModel:
        spec = trained.spec
        splits = splits_of(spec, site, corrupted)
        validation = splits["val"]
        assert isinstance(validation, ImageSet)
        cache = TestedFeatures.of(model, spec, site, running)
        embedded: dict[str, tuple[Distribution, dict[str, Tensor]]] = {}
        for split, images in splits.items():
            # Most trained bases have one head, which is tested once.
            features = None if cache is None else cache.load(split, images, make=bool(spec.frozen))
            embedded[split] = _embedded(split, model, images, features, site.device, running)
        return cls(
            model.method,
            {split: distribution for split, (distribution, _) in embedded.items()},
            {split: confidence for split, (_, confidence) in embedded.items()},
            model.scorer_options(),
            trained,
            validation,
            site.device,
            running,
        )

    @property
    def validation_split(self) -> Literal["val", "train"]:
        """Split under which results list the validation images: ``val``, or ``train`` if they were trained on."""
        return "train" if self.trained.spec.folds == 1 else "val"

    def scorer(self, name: str, split: str) -> Scorer:
        """Scorer that compares the images of a split with each other, with the trained parameters of the model."""
        scorer = DistributionScorer(name, self.embeddings[split], self.options, self.device)
        return PatientScorer(scorer, self.running)

    def modes(self, split: str) -> Scorer:
        """Scorer of the negative squared distance between the distributions' modes."""
        return PatientScorer(mode_scorer(self.embeddings[split], self.device), self.running)

    def unit_vectors(self, split: str) -> Tensor:
        """Means of the embeddings of a split, normalised to unit length, float64 ``[N, D]``."""
        means: Tensor = self.embeddings[split].mean
        return torch.nn.functional.normalize(means.double(), dim=-1)


def _embedded(
    split: str,
    model: EmbeddingModel | EnsembleModel,
    images: Images,
    features: Tensor | None,
    device: str,
    running: Running,
) -> tuple[Distribution, dict[str, Tensor]]:
    load = images.evaluation if features is None else features.__getitem__
    step = f"embedding of split {split}"
    try:
        embedded = embed(model, load, len(images), device, features=features is not None, running=running, step=step)
        check_finite(*embedded)
    except NonFiniteEmbeddings as error:
        raise UnitFailed(f"split {split}: {error}") from error
    return embedded


class ConcatenatedModels:
    """Several models of a cross-validation taken together as one: the product of their distributions.

    The score of a pair is the mean of the models' scores, which orders pairs as the score of the product distribution
    does: for the cosine it is the cosine of the concatenated unit vectors (Musgrave et al. 2020), for a likelihood the
    log of a product is a sum. The confidence is the mean too. Every development class was trained on by all models but
    one, so there is no validation split.
    """

    def __init__(self, members: Sequence[EmbeddedModel]) -> None:
        self.members = tuple(members)
        self.method = members[0].method
        self.confidence: Mapping[str, Mapping[str, Tensor]] = {
            split: {
                name: torch.stack([m.confidence[split][name].double() for m in members]).mean(0)
                for name in members[0].confidence[split]
            }
            for split in members[0].confidence
            if split.startswith("test")
        }

    @property
    def validation_split(self) -> Literal["val"]:
        """Constant ``val``, as for a single model; it has no images, since each model has other validation classes."""
        return "val"

    def scorer(self, name: str, split: str) -> Scorer:
        """Scorer that compares the images of a split with each other: the mean of the models' scores."""
        return MeanScorer([member.scorer(name, split) for member in self.members])

    def modes(self, split: str) -> Scorer:
        """Scorer of the negative squared distance between the modes of the distributions, averaged over the models."""
        return MeanScorer([member.modes(split) for member in self.members])

    def unit_vectors(self, split: str) -> Tensor:
        """Concatenated unit vectors of the M models, scaled to unit length again, float64 ``[N, M D]``."""
        vectors = [member.unit_vectors(split) for member in self.members]
        return torch.cat(vectors, dim=1) / math.sqrt(len(vectors))
