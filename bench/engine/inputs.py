"""Inputs of a training stage: augmented images, or cached features of a frozen backbone.

The features of a trained base are one file in its folder. Those of a network at its starting weights serve every
method; they are in ``.features/<id>/`` of the results folder, a file per augmented view and one for the evaluation of
the validation images, so that an interruption loses one view at most, and no more than one view is in memory while they
are made. They are read as mapped files, which all processes share. The name of every file has the digest of its
content: a damaged file is noticed and made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.distributions import Distribution

from ..datasets.dataset import Dataset, TrainVal
from ..datasets.image_set import ImageSet
from ..methods._model import Embedding, EmbeddingModel
from ..methods.backbones.registry import build_backbone, find_weights
from ..seeds import content_id, seed_for
from ..site import Site
from ..store.files import sha256, write_atomic
from ..store.folder import FEATURES, is_whole_cache
from ..store.specs import TrainSpec
from .networks import backbone_features, embed
from .running import Running, in_chunks

CALIBRATION = 128
"""Augmented training images by which the scale of a backbone at its starting weights is set."""

EVALUATION = "evaluation-"
"""Start of the name of the file with the features of the validation images as they are."""


def generator(*axes: str | int) -> torch.Generator:
    """Random generator on the CPU, seeded by the given names and numbers alone, such as data set and seed."""
    return torch.Generator().manual_seed(seed_for(*axes))


@dataclass(frozen=True)
class Features:
    """Features of a frozen backbone: of V augmented views of N training and M validation images, and of the latter.

    ``train`` and ``val`` are ``[V, N, F]`` and ``[V, M, F]`` or V tensors, ``evaluation`` is ``[M, F]``.
    """

    train: Tensor | tuple[Tensor, ...]
    val: Tensor | tuple[Tensor, ...]
    evaluation: Tensor

    def of_training(self, view: Tensor, rows: Tensor) -> Tensor:
        """Features ``[B, F]`` of the views ``[B]`` of training images ``[B]``."""
        if isinstance(self.train, Tensor):
            return self.train[view, rows]
        chosen = self.evaluation.new_empty(len(rows), self.evaluation.shape[1])
        for number, features in enumerate(self.train):
            here = (view == number).nonzero().squeeze(1)
            chosen[here] = features[rows[here]]
        return chosen


def of_base(
    spec: TrainSpec,
    data: TrainVal,
    augmentation: object,
    backbone: nn.Module,
    folder: Path,
    device: str,
    running: Running,
) -> Features:
    """Features of the trained backbone of a base, made once and kept in its folder."""
    assert spec.base is not None
    views = spec.batches.feature_views
    held = [spec.augmentation, spec.view, views, spec.batches.pooling, spec.folds, spec.fold]
    stem = f"{FEATURES}{content_id([spec.base.unit, *held, data.train.manifest_sha256()])}-"
    path = whole_file(folder, stem)
    if path is None:
        made: dict[str, Tensor] = {}
        for split, images in (("train", data.train), ("val", data.val)):
            stack = [
                _of_view(spec, view, split, images, augmentation, backbone, device, running) for view in range(views)
            ]
            made[split] = torch.stack(stack)
        made["evaluation"] = backbone_features(
            backbone.eval(), data.val.evaluation, len(data.val), device, running=running
        )
        path = write_file(folder, stem, made)
    return Features(**{name: value.to(device) for name, value in load_file(path).items()})


class FrozenBackbone:
    """A backbone that stays at its starting weights, with its cached features of one data set and fold."""

    def __init__(self, spec: TrainSpec, site: Site, dataset: Dataset, data: TrainVal, running: Running) -> None:
        self.spec, self.site, self.data, self.running = spec, site, data, running
        self.augmentation = dataset.augmentation_type(**spec.augmentation)
        self.channels = dataset.input_channels
        content = content_id([spec.features, data.train.manifest_sha256(), data.val.manifest_sha256()])
        self.folder = site.store.features(content)
        self._built: nn.Module | None = None

    def load(self) -> tuple[Features, Tensor]:
        """The features and the constant ``[]`` by which the backbone divides them; what is missing is made."""
        fixed = self._read(self._make_evaluation(), {"evaluation", "scale"})
        views = [self._read(self.make_view(view), {"train", "val"}) for view in range(self.spec.batches.feature_views)]
        train, val = (tuple(view[split] for view in views) for split in ("train", "val"))
        return Features(train, val, fixed["evaluation"]), fixed["scale"]

    def make_view(self, view: int) -> Path:
        """File of the features of one augmented view, numbered from 0; it is made unless it is there."""
        stem = f"view{view}-"
        path = whole_file(self.folder, stem)
        if path is not None:
            return path
        made = {
            split: _of_view(
                self.spec, view, split, images, self.augmentation, self._backbone(), self.site.device, self.running
            )
            for split, images in (("train", self.data.train), ("val", self.data.val))
        }
        return write_file(self.folder, stem, made)

    def _make_evaluation(self) -> Path:
        """File of the validation images' features and of the scale; it is made unless it is there."""
        path = whole_file(self.folder, EVALUATION)
        if path is not None:
            return path
        backbone = self._bare()
        calibrate = getattr(backbone, "calibrate", None)
        if self.spec.batches.calibrate and calibrate is not None:
            count = len(self.data.train)
            gen = generator("calibrate", self.spec.dataset, "features")
            rows = torch.randperm(count, generator=gen)[:CALIBRATION]
            images: Tensor = self.data.train.training(rows, self.augmentation, gen)
            calibrate(images.to(self.site.device, memory_format=torch.channels_last))
        val, device = self.data.val, self.site.device
        features = backbone_features(backbone, val.evaluation, len(val), device, running=self.running)
        scale = getattr(backbone, "feature_scale", torch.ones(()))
        return write_file(self.folder, EVALUATION, {"evaluation": features, "scale": scale.cpu()})

    def _bare(self) -> nn.Module:
        """The backbone with its starting weights, in evaluation mode."""
        batches = self.spec.batches
        weights = find_weights(self.spec.backbone, self.site.weights)
        built = build_backbone(self.spec.backbone, self.channels, weights, batches.freeze_norm, batches.pooling)
        return built.to(self.site.device).to(memory_format=torch.channels_last).eval()

    def _backbone(self) -> nn.Module:
        """The backbone with its scale, built once."""
        if self._built is None:
            scale = load_file(self._make_evaluation())["scale"]
            self._built = self._bare()
            set_scale(self._built, scale)
        return self._built

    def _read(self, path: Path, names: set[str]) -> dict[str, Tensor]:
        content = load_file(path)
        assert content.keys() == names
        return {name: value.to(self.site.device) for name, value in content.items()}


def set_scale(backbone: nn.Module, scale: Tensor) -> None:
    """Set the constant ``[]`` by which a backbone divides its features; one without such a constant is left alone."""
    own = getattr(backbone, "feature_scale", None)
    if own is not None:
        own.copy_(scale)


def whole_file(folder: Path, stem: str) -> Path | None:
    """File of features whose name is ``stem`` and the digest of its content; None if it is missing or damaged."""
    return next((path for path in sorted(folder.glob(f"{stem}*.safetensors")) if is_whole_cache(path)), None)


def write_file(folder: Path, stem: str, features: dict[str, Tensor]) -> Path:
    """Write a file of features, whose name is ``stem`` and the digest of the content."""
    content = save(features)
    path = folder / f"{stem}{sha256(content)}.safetensors"
    write_atomic(path, content)
    return path


@torch.no_grad()
def _of_view(
    spec: TrainSpec,
    view: int,
    split: str,
    images: ImageSet,
    augmentation: object,
    backbone: nn.Module,
    device: str,
    running: Running,
) -> Tensor:
    """Features ``[N, F]`` of one augmented view of N images; its random draws depend on data set, split and view."""
    backbone.eval()
    gen = generator("features", spec.dataset, split, view)
    parts: list[Tensor] = []
    for rows in torch.arange(len(images)).split(256):
        # The draws of an augmentation depend on how many images are drawn for.
        batch: Tensor = images.training(rows, augmentation, gen)  # type: ignore[arg-type]

        def work(part: Tensor, size: int, batch: Tensor = batch) -> Tensor:
            some = batch if len(part) == len(batch) else batch[part]
            features: Tensor = backbone(some.to(device, memory_format=torch.channels_last)).float().cpu()
            return features

        parts += in_chunks(len(rows), 256, work, running, "features")
    return torch.cat(parts)


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
