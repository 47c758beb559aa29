"""Embeddings that the tests read: those of one trained model, or of the models of a cross-validation side by side.

Models on a backbone that they do not train share its features of the test and validation images. Those of a split are
one file, for all heads on a backbone at its starting weights or on one trained base. Its name has a key of everything
that the features depend on, with the weights of the backbone themselves, so that no model is given those of another
network, and the digest of its content.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from ..datasets.dataset import ImageSet
from ..errors import UnitFailed
from ..methods._base import Method
from ..methods._model import EmbeddingModel, EnsembleModel, NonFiniteEmbeddings
from ..methods.scorers.inner_products import mode_scorer
from ..methods.scorers.spec import DistributionScorer
from ..methods.training_density import TrainingDensity
from ..protocols.ranking import MeanScorer, Scorer
from ..protocols.retrieval_confidence import uniform_by_identity
from ..seeds import seed_for
from ..site import Site
from ..store.records import TrainRecord
from .inputs import FITTED, CorruptedImages, Images, Seen, TestedFeatures, fitted_rows, views_of
from .networks import check_finite, embed
from .running import PatientScorer, Running


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """Embeddings and confidences of one model by split, and the trained parameters (``options``) of its own scorer.

    ``views`` are the unit embeddings of V other views of every image, ``[V, N, D]`` float32, of the splits that have
    some.
    """

    embeddings: Mapping[str, Distribution]
    confidence: Mapping[str, Mapping[str, Tensor]]
    own_scorer: str
    options: Mapping[str, float]
    views: Mapping[str, Tensor] = field(default_factory=dict)
    device: str = "cpu"
    running: Running = field(default_factory=Running)

    def scorer(self, name: str, split: str) -> Scorer:
        """Scorer that compares the images of a split with each other, with the trained parameters of the model."""
        scorer = DistributionScorer(name, self.embeddings[split], self.options, self.device)
        return PatientScorer(scorer, self.running)

    def modes(self, split: str) -> Scorer:
        """Scorer of the negative squared distance between the distributions' modes."""
        return PatientScorer(mode_scorer(self.embeddings[split], self.device), self.running)

    def views_of(self, split: str) -> Callable[[], Tensor] | None:
        """Function that gives the views of a split, if it has some."""
        return partial(self.views.__getitem__, split) if split in self.views else None

    def unit_vectors(self, split: str) -> Tensor:
        """Means of the embeddings of a split, normalised to unit length, float64 ``[N, D]``."""
        return _unit(self.embeddings[split])


@dataclass(frozen=True, kw_only=True)
class EmbeddedModel(Embedded):
    """One trained model, embedded on every split of the images that the tests need.

    The splits are the clean test images (``test``), the clean validation images (``val``), and both under a corruption
    (``test_`` or ``val_`` and its name).
    """

    method: Method
    trained: TrainRecord
    validation: ImageSet

    @classmethod
    def of(
        cls,
        model: EmbeddingModel | EnsembleModel,
        trained: TrainRecord,
        site: Site,
        corrupted: Mapping[str, CorruptedImages],
        running: Running,
        shared: bool = False,
    ) -> EmbeddedModel:
        """Embed the images with a trained model, or with an ensemble, whose first member has the record ``trained``.

        ``shared`` is whether features of its base are kept for other heads.
        """
        spec = trained.spec
        dataset = site.dataset(spec.dataset, spec.view)
        data = dataset.train_val(spec.fold, spec.folds)
        train, validation = data.train, data.val
        splits: dict[str, Images] = {"test": dataset.test(), "val": validation}
        for kind, tested in corrupted.items():
            splits[f"test_{kind}"] = tested
            splits[f"val_{kind}"] = CorruptedImages.of(validation, spec.dataset, kind, tested.severity)
        if len(train) > FITTED:
            train = train.select(fitted_rows(len(train)))
        seen = {"train": Seen(train), **{split: Seen(images) for split, images in splits.items()}}
        for split, images in splits.items():
            for views in views_of(spec).values():
                seen |= {f"{split}.{name}": Seen(images, name, view) for name, view in views.items()}
        cache = TestedFeatures.of(model, spec, site, running)
        make = shared or spec.frozen  # most trained bases have one head, which is tested once
        if cache is not None and make and running.chunk is None:
            for split, shown in seen.items():  # first those that no other process is making
                cache.load(split, shown, make=True, wait=False)

        def embedded(split: str) -> tuple[Distribution, dict[str, Tensor]]:
            images = seen[split]
            features = None if cache is None else cache.load(split, images, make)
            load = images.evaluation if features is None else features.__getitem__
            about = {"features": features is not None, "confident": split in splits}
            step = f"embedding of split {split}"
            try:
                found = embed(model, load, len(images), site.device, running=running, step=step, **about)
                check_finite(*found)
            except NonFiniteEmbeddings as error:
                raise UnitFailed(f"split {split}: {error}") from error
            return found

        density = _density(embedded("train")[0], train)
        embeddings: dict[str, Distribution] = {}
        confidence: dict[str, dict[str, Tensor]] = {}
        seen_as: dict[str, Tensor] = {}
        for split in splits:
            embeddings[split], confidence[split] = embedded(split)
            unit = _unit(embeddings[split])
            confidence[split] |= density.confidences(unit.__getitem__, len(unit))
            others: list[Tensor] = []
            for name, views in views_of(spec).items():
                of_view = [_unit(embedded(f"{split}.{view}")[0]) for view in views]
                confidence[split][name] = torch.stack([(each * unit).sum(1) for each in of_view]).mean(0)
                others += [each.float() for each in of_view]
            if others:
                seen_as[split] = torch.stack(others)
        return cls(
            method=model.method,
            embeddings=embeddings,
            confidence=confidence,
            own_scorer=model.method.scorer,
            options=model.scorer_options(),
            views=seen_as,
            trained=trained,
            validation=validation,
            device=site.device,
            running=running,
        )

    @property
    def validation_split(self) -> Literal["val", "train"]:
        """Split under which results list the validation images: ``val``, or ``train`` if they were trained on."""
        return "train" if self.trained.spec.folds == 1 else "val"


def _unit(embeddings: Distribution) -> Tensor:
    """Means of embeddings, normalised to unit length, float64 ``[N, D]``."""
    means: Tensor = embeddings.mean
    return F.normalize(means.double(), dim=-1)


def _density(embeddings: Distribution, train: ImageSet) -> TrainingDensity:
    """Sum of the embeddings of the training images, in an order that follows from their names alone."""
    order = uniform_by_identity(train.ids, seed_for("training density"), "training density").argsort(stable=True)
    means = embeddings.mean
    # A float64 copy of all would be half a gigabyte.
    return TrainingDensity(lambda rows: F.normalize(means[order[rows]].double(), dim=-1), train.labels[order])


class ConcatenatedModels:
    """Several models of a cross-validation taken together as one: the product of their distributions.

    The score of a pair is the mean of the models' scores, which orders pairs as the score of the product distribution
    does: for the cosine it is the cosine of the concatenated unit vectors (Musgrave et al. 2020), for a likelihood the
    log of a product is a sum. The confidence is the mean too. Every development class was trained on by all models but
    one, so there is no validation split.
    """

    def __init__(self, members: Sequence[Embedded]) -> None:
        self.members = tuple(members)
        self.own_scorer = members[0].own_scorer
        self.confidence: Mapping[str, Mapping[str, Tensor]] = {
            split: {
                name: torch.stack([m.confidence[split][name].double() for m in members]).mean(0)
                for name in members[0].confidence[split]
            }
            for split in members[0].confidence
            if split.startswith("test")
        }

    def scorer(self, name: str, split: str) -> Scorer:
        """Scorer that compares the images of a split with each other: the mean of the models' scores."""
        return MeanScorer([member.scorer(name, split) for member in self.members])

    def modes(self, split: str) -> Scorer:
        """Scorer of the negative squared distance between the modes of the distributions, averaged over the models."""
        return MeanScorer([member.modes(split) for member in self.members])

    def views_of(self, split: str) -> None:
        """Of views nothing is said: members differ in what they make of them."""

    def unit_vectors(self, split: str) -> Tensor:
        """Concatenated unit vectors of the M models, scaled to unit length again, float64 ``[N, M D]``."""
        vectors = [member.unit_vectors(split) for member in self.members]
        return torch.cat(vectors, dim=1) / math.sqrt(len(vectors))
