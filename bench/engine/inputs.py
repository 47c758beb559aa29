"""Inputs of a training stage: augmented images, or cached features of a frozen backbone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..datasets.dataset import TrainVal
from ..methods._model import Embedding, EmbeddingModel
from .features import Features
from .networks import embed
from .running import Running


class Inputs(Protocol):
    """Interface of the inputs of one stage of training: images, or cached features of a frozen backbone.

    Attributes:
        ahead: Whether a thread makes the next batch while one is trained on.
        through_backbone: Whether inputs are images, which the backbone makes features of.
    """

    ahead: bool

    through_backbone: bool

    def batch(self, rows: Tensor, gen: torch.Generator) -> Tensor:
        """Randomly augmented inputs of a training batch, from the rows ``[B]`` of its images."""

    def embed_batch(self, model: EmbeddingModel, inputs: Tensor) -> Embedding:
        """Embed a batch of inputs: raw embeddings ``[B, D]`` and one distribution of batch shape ``[B]``."""

    def validation(self, model: EmbeddingModel) -> Distribution:
        """Embed the N validation images; returns one distribution of batch shape ``[N]``."""

    def validation_loss(self, model: EmbeddingModel, labels: Tensor) -> float | None:
        """Mean loss of the stage on the validation images; None if the loss is defined for training classes only."""


class AugmentedImages:
    """Inputs of a stage that trains the backbone: augmented images."""

    through_backbone = True

    def __init__(self, data: TrainVal, augmentation: object, device: str, running: Running | None = None) -> None:
        self.data = data
        self.running = running or Running()
        self.augmentation = augmentation
        self.device = device
        # On a CPU, training itself has all cores.
        self.ahead = device != "cpu"
        self._last: Tensor | None = None

    def batch(self, rows: Tensor, gen: torch.Generator) -> Tensor:
        """Augmented training images ``[B, C, H, W]``, as :meth:`.ImageSet.training` returns them, on the device."""
        self._last = self.data.train.training(rows, self.augmentation, gen, self._last)  # type: ignore[arg-type]
        moved: Tensor = self._last.to(self.device, memory_format=torch.channels_last)
        if moved is self._last:  # in the same memory, which is the caller's now
            self._last = None
        return moved

    def embed_batch(self, model: EmbeddingModel, inputs: Tensor) -> Embedding:
        """Embed a batch of images: raw embeddings ``[B, D]`` and one distribution of batch shape ``[B]``."""
        embedding: Embedding = model(inputs)
        return embedding

    def validation(self, model: EmbeddingModel) -> Distribution:
        """Embed the N validation images; returns one distribution of batch shape ``[N]``."""
        images = self.data.val
        return embed(model, images.evaluation, len(images), self.device, running=self.running, step="validation")[0]

    def validation_loss(self, model: EmbeddingModel, labels: Tensor) -> float | None:
        """Return None: a loss with one weight vector per training class is not defined on validation classes."""
        return None


class CachedFeatures:
    """Inputs of a stage whose backbone is frozen: its features of V augmented views per image, computed once.

    ``any_classes`` is whether the loss is defined for classes that are not trained on, as it is if the base of a
    two-stage method is frozen.
    """

    ahead = False
    through_backbone = False

    def __init__(
        self, features: Features, device: str, running: Running | None = None, any_classes: bool = True
    ) -> None:
        self.features, self.device = features, device
        self.running = running or Running()
        self._any_classes = any_classes

    def batch(self, rows: Tensor, gen: torch.Generator) -> Tensor:
        """Backbone features of training images, each of a random one of the V cached augmented views, ``[B, F]``."""
        view = torch.randint(len(self.features.train), (len(rows),), generator=gen)
        return self.features.of_training(view, rows)

    def embed_batch(self, model: EmbeddingModel, inputs: Tensor) -> Embedding:
        """Embed backbone features ``[B, F]``: raw embeddings ``[B, D]`` and one distribution of batch shape ``[B]``."""
        return model.embed_features(inputs)

    def validation(self, model: EmbeddingModel) -> Distribution:
        """Embed the N validation images; returns one distribution of batch shape ``[N]``."""
        features = self.features.evaluation
        load = features.__getitem__
        return embed(model, load, len(features), self.device, features=True, running=self.running, step="validation")[0]

    @torch.no_grad()
    def validation_loss(self, model: EmbeddingModel, labels: Tensor) -> float | None:
        """Mean loss of the stage on the validation images, over the same augmented views in every epoch and trial."""
        if not self._any_classes:
            return None
        model.eval()
        views = self.features.val
        losses = [loss_of_any_classes(model, model.embed_features(view).distribution, labels) for view in views]
        return float(torch.stack(losses).double().mean())


def loss_of_any_classes(model: EmbeddingModel, distribution: Distribution, labels: Tensor) -> Tensor:
    """Scalar loss of all N images of a set, whose classes need not be those of the training.

    An objective with weights of the training classes, or one of all pairs of a batch, says itself what it is.
    """
    loss: Tensor = getattr(model.objective, "validation_loss", model.objective)(distribution, labels)
    return loss


def in_turn(inputs: Inputs, batches: Iterable[Tensor], gen: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Row indices and inputs of each training batch, in order; with ``ahead``, a thread prepares the next one."""
    if not inputs.ahead:
        for rows in batches:
            yield rows, inputs.batch(rows, gen)
        return
    with ThreadPoolExecutor(1) as worker:
        waiting: list[tuple[Tensor, Future[Tensor]]] = []
        for rows in batches:
            waiting.append((rows, worker.submit(inputs.batch, rows, gen)))
            if len(waiting) > 1:
                ready, made = waiting.pop(0)
                yield ready, made.result()
        for ready, made in waiting:
            yield ready, made.result()
