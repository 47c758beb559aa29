"""Inputs of a training stage: augmented images, or cached features of a frozen backbone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save
from torch import Tensor
from torch.distributions import Distribution

from ..datasets.dataset import TrainVal
from ..datasets.image_set import ImageSet
from ..methods._model import Embedding, EmbeddingModel
from ..seeds import content_id, seed_for
from ..store.files import sha256, write_atomic
from ..store.folder import FEATURES, is_whole_cache
from ..store.specs import TrainSpec
from .networks import backbone_features, embed
from .running import Running, in_chunks


def generator(*axes: str | int) -> torch.Generator:
    """Random generator on the CPU, seeded by the given names and numbers alone, such as data set and seed."""
    return torch.Generator().manual_seed(seed_for(*axes))


class Inputs(Protocol):
    """Interface of the inputs of one stage of training: images, or cached features of a frozen backbone.

    Attributes:
        ahead: Whether a thread makes the next batch while one is trained on.
        through_backbone: Whether inputs are images, which the backbone makes features of.
    """

    ahead: bool

    through_backbone: bool

    def batch(self, rows: Tensor, gen: torch.Generator) -> Tensor:
        """Randomly augmented inputs of a training batch.

        Args:
            rows: Indices of training images, ``[B]``.
            gen: Generator of the random numbers.
        """

    def embed_batch(self, model: EmbeddingModel, inputs: Tensor) -> Embedding:
        """Embed a batch of inputs: raw embeddings ``[B, D]`` and one distribution of batch shape ``[B]``."""

    def validation(self, model: EmbeddingModel) -> Distribution:
        """Embed the N validation images; returns one distribution of batch shape ``[N]``."""

    def validation_loss(self, model: EmbeddingModel, labels: Tensor) -> float | None:
        """Mean loss of the stage on the validation images; None if the loss is defined for training classes only.

        Args:
            model: The network.
            labels: Classes of the validation images, ``[N]``.
        """


class AugmentedImages:
    """Inputs of a stage that trains the backbone: augmented images.

    Args:
        data: Training and validation images.
        augmentation: Settings of the random crops and other augmentations, of the type that the data set declares.
        device: Where the model is.
        running: Progress of the training, for the watchdog and its record; a new one if None.
    """

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
        """Augmented training images ``[B, C, H, W]``, as :meth:`.ImageSet.training` returns them, on the device.

        Args:
            rows: Indices of training images, ``[B]``.
            gen: Generator of the augmentation's random numbers.
        """
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
    """Inputs of a stage whose backbone is frozen: its features of V augmented views per image, computed once per base.

    A base is the trained model that a two-stage method starts from.

    Args:
        data: Training and validation images.
        augmentation: Settings of the random crops and other augmentations, of the type that the data set declares.
        spec: Specification of the training.
        device: Where the model is.
        model: Network with its trained base.
        folder: Folder of the base, where the features are kept.
        running: Progress of the training, for the watchdog and its record; a new one if None.
    """

    ahead = False
    through_backbone = False

    def __init__(
        self,
        data: TrainVal,
        augmentation: object,
        spec: TrainSpec,
        device: str,
        model: EmbeddingModel,
        folder: Path,
        running: Running | None = None,
    ) -> None:
        self.running = running or Running()
        assert spec.base is not None
        views = spec.batches.feature_views
        held = [spec.augmentation, spec.view, views, spec.batches.pooling, spec.folds, spec.fold]
        of = [spec.base.unit, *held, data.train.manifest_sha256()]
        stem = f"{FEATURES}{content_id(of)}-"
        # The name has the digest of the content, so that a damaged file is noticed and replaced.
        whole = (path for path in sorted(folder.glob(f"{stem}*.safetensors")) if is_whole_cache(path))
        path = next(whole, None)
        if path is None:
            features = save(_features(data, augmentation, spec, device, model, self.running))
            path = folder / f"{stem}{sha256(features)}.safetensors"
            write_atomic(path, features)
        self.device = device
        self.features = {name: value.to(device) for name, value in load_file(path).items()}

    def batch(self, rows: Tensor, gen: torch.Generator) -> Tensor:
        """Backbone features of training images, each of a random one of the V cached augmented views, ``[B, F]``.

        Args:
            rows: Indices of training images, ``[B]``.
            gen: Generator that chooses the views.
        """
        views = self.features["train"].shape[0]
        view = torch.randint(views, (len(rows),), generator=gen)
        chosen: Tensor = self.features["train"][view, rows]
        return chosen

    def embed_batch(self, model: EmbeddingModel, inputs: Tensor) -> Embedding:
        """Embed backbone features ``[B, F]``: raw embeddings ``[B, D]`` and one distribution of batch shape ``[B]``."""
        return model.embed_features(inputs)

    def validation(self, model: EmbeddingModel) -> Distribution:
        """Embed the N validation images; returns one distribution of batch shape ``[N]``."""
        features = self.features["evaluation"]
        load = features.__getitem__
        return embed(model, load, len(features), self.device, features=True, running=self.running, step="validation")[0]

    @torch.no_grad()
    def validation_loss(self, model: EmbeddingModel, labels: Tensor) -> float | None:
        """Mean loss of the stage on the validation images, over the same augmented views in every epoch and trial.

        Args:
            model: The network.
            labels: Classes of the validation images, ``[N]``.
        """
        model.eval()
        views = self.features["val"]
        losses = [loss_of_any_classes(model, model.embed_features(view).distribution, labels) for view in views]
        return float(torch.stack(losses).double().mean())


def loss_of_any_classes(model: EmbeddingModel, distribution: Distribution, labels: Tensor) -> Tensor:
    """Scalar loss of all N images of a set, whose classes need not be those of the training.

    An objective with weights of the training classes, or one of all pairs of a batch, says itself what it is.

    Args:
        model: The network.
        distribution: Embeddings of the images, batch shape ``[N]``.
        labels: Classes ``[N]``.
    """
    loss: Tensor = getattr(model.objective, "validation_loss", model.objective)(distribution, labels)
    return loss


def _features(
    data: TrainVal, augmentation: object, spec: TrainSpec, device: str, model: EmbeddingModel, running: Running
) -> dict[str, Tensor]:
    """Features of augmented views ``[V, N, F]``, and of the validation images for evaluation ``[N, F]``."""
    features = {}
    for split, images in (("train", data.train), ("val", data.val)):
        stack = []
        for view in range(spec.batches.feature_views):
            gen = generator("features", spec.dataset, split, view)
            stack.append(_augmented_features(model, images, augmentation, gen, device, running))
        features[split] = torch.stack(stack)
    model.eval()
    features["evaluation"] = backbone_features(
        model.backbone, data.val.evaluation, len(data.val), device, running=running
    )
    return features


@torch.no_grad()
def _augmented_features(
    model: EmbeddingModel,
    images: ImageSet,
    augmentation: object,
    gen: torch.Generator,
    device: str,
    running: Running,
) -> Tensor:
    model.eval()
    parts: list[Tensor] = []
    for rows in torch.arange(len(images)).split(256):
        # The draws of an augmentation depend on how many images are drawn for.
        batch: Tensor = images.training(rows, augmentation, gen)  # type: ignore[arg-type]

        def work(part: Tensor, size: int, batch: Tensor = batch) -> Tensor:
            some = batch if len(part) == len(batch) else batch[part]
            features: Tensor = model.backbone(some.to(device, memory_format=torch.channels_last)).float().cpu()
            return features

        parts += in_chunks(len(rows), 256, work, running, "features")
    return torch.cat(parts)


def in_turn(inputs: Inputs, batches: Iterable[Tensor], gen: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Row indices and inputs of each training batch, in the order of ``batches``.

    If ``inputs.ahead`` is set, a thread prepares the next batch while the present one is trained on.

    Args:
        inputs: Makes the inputs of a batch.
        batches: Indices of the training images of each batch, ``[B]``.
        gen: Generator of the augmentation's random numbers.
    """
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
