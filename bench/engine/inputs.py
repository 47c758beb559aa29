"""Inputs of networks: augmented images or cached features in training; test images, corrupted and in other views.

The features of a trained base are one file in its folder. Those of a network at its starting weights serve every
method; they are in ``.features/<id>/`` of the results folder, a file per augmented view, one for the evaluation of the
validation images and one for the directions from which heads start, so that an interruption loses one view at most, and
no more than one view is in memory while they are made. They are read as mapped files, which all processes share. The
name of every file has the digest of its content: a damaged file is noticed and made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import versions
from ..datasets.augmentation import TrainingAugmentation
from ..datasets.corruptions._base import CROP, corrupted, draw_quality, manifest_sha256
from ..datasets.dataset import Dataset, ImageSet, TrainVal
from ..datasets.feature_images import FeatureImages
from ..errors import UnitFailed
from ..methods._model import Embedding, EmbeddingModel, EnsembleModel
from ..methods.backbones.features import GivenFeatures
from ..methods.backbones.registry import GIVEN
from ..methods.backbones.stages import Cut
from ..methods.host_labels import sent
from ..methods.principal import principal_directions
from ..seeds import content_id, seed_for
from ..site import Site
from ..store.claims import CLAIM, Claims
from ..store.files import sha256, write_atomic
from ..store.folder import FEATURES, RECORD, is_whole_cache
from ..store.specs import TrainSpec
from .networks import backbone_features, embed, features_of, starting_backbone, state_sha256
from .running import Running, in_chunks

CALIBRATION = 128
"""Augmented training images by which the scale of a backbone at its starting weights is set."""

FITTED = 65_536
"""Most training images that a network at its starting weights is fitted to, which are in memory: evenly spaced ones."""

GATHERED = 8
"""Batches whose features are gathered at once: for a single one, the calls cost more than what they move."""

LOOK = 1.0
"""Seconds between two signs of life of a process that waits for features that another one makes."""


def generator(*axes: str | int) -> torch.Generator:
    """Random generator on the CPU, seeded by the given names and numbers alone, such as data set and seed."""
    return torch.Generator().manual_seed(seed_for(*axes))


@dataclass(frozen=True)
class Features:
    """Features of a frozen backbone: of V augmented views of N training and M validation images, and of the latter.

    ``train`` and ``val`` are ``[V, N, F]`` and ``[V, M, F]`` or V tensors, ``evaluation`` is ``[M, F]``.
    """

    train: Tensor | tuple[Tensor | View, ...]
    val: Tensor | tuple[Tensor | View, ...]
    evaluation: Tensor | View

    def of_training(self, view: Tensor, rows: Tensor) -> Tensor:
        """Features ``[B, F]`` of the views ``[B]`` of training images ``[B]``."""
        if isinstance(self.train, Tensor):
            device = self.train.device.type
            return self.train[sent(view, device), sent(rows, device)]
        order = view.argsort(stable=True)
        parts = rows[order].split(view.bincount(minlength=len(self.train)).tolist())
        found = torch.cat([features[part] for features, part in zip(self.train, parts)])
        return found[order.argsort()]

    def first_view(self) -> Tensor:
        """Features ``[N, F]`` of the first view of the training images that are fitted."""
        features = self.train[0]
        return _whole(features) if len(features) <= FITTED else features[fitted_rows(len(features))]


def fitted_rows(images: int) -> Tensor:
    """Rows of the training images that a network at its starting weights is fitted to."""
    count = min(images, FITTED)
    return torch.arange(count) * images // count


def _whole(features: Tensor | View) -> Tensor:
    return features if isinstance(features, Tensor) else features[torch.arange(len(features))]


class View:
    """Features of one view of N images in a mapped file, divided by a constant when some rows are read."""

    def __init__(self, images: FeatureImages, number: int | None, scale: Tensor, device: str) -> None:
        self._images, self._number, self._scale, self._device = images, number, scale, device
        self.shape = (len(images), images.width)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Features float32 ``[B, F]`` of some rows."""
        number = self._number
        found = self._images.evaluation(rows) if number is None else self._images.view(number, rows)
        return found.to(self._device) / self._scale


class FrozenBackbone:
    """A backbone that a stage leaves as it is, or the layers before the stage from which on it is trained.

    Its features, or what enters that stage, of some augmented views of every image are made once and cached.
    """

    def __init__(self, spec: TrainSpec, site: Site, dataset: Dataset, data: TrainVal, running: Running) -> None:
        self.spec, self.site, self.data, self.running = spec, site, data, running
        self.augmentation = dataset.augmentation_type(**spec.augmentation)
        self.channels = dataset.input_channels

    @cached_property
    def folder(self) -> Path:
        """Folder of the cached features of a backbone at its starting weights."""
        return frozen_folder(self.spec, self.site, self.data)

    def of_base(self, backbone: nn.Module, folder: Path) -> Features:
        """Features by the trained backbone of a base, in one file in the folder of the base."""
        spec, data = self.spec, self.data
        assert spec.base is not None
        views = range(spec.batches.feature_views)
        held = [spec.augmentation, spec.view, len(views), spec.batches.pooling, spec.folds, spec.fold]
        stem = f"{FEATURES}{content_id([spec.base.unit, *held, *in_order(data)])}-"

        def of_views(split: str, images: ImageSet) -> Tensor:
            gens = [generator("features", spec.dataset, split, view) for view in views]
            # The draws of an augmentation depend on how many images are drawn for.
            draws = [lambda rows, gen=gen: images.training(rows, self.augmentation, gen) for gen in gens]
            return torch.stack([self._of_view(view, draws[view], len(images), backbone) for view in views])

        def made() -> dict[str, Tensor]:
            of_training, of_validation = of_views("train", data.train), of_views("val", data.val)
            return {"train": of_training, "val": of_validation, "evaluation": self._evaluation(backbone)}

        return Features(**self._read(cached(folder, stem, made, self.running)))

    def load(self) -> tuple[Features, Tensor]:
        """The features and the constant ``[]`` by which the backbone divides them; what is missing is made."""
        train, val = self.data.train, self.data.val
        if isinstance(train, FeatureImages) and isinstance(val, FeatureImages):
            return self._given(train, val)
        fixed = self._read(self._evaluation_and_scale())
        numbers = range(self.spec.batches.feature_views)
        for view in numbers:  # first those that no other process is making
            self._make_view(view, wait=False)
        views = [self._read(self._make_view(view)) for view in numbers]
        of_train, of_val = (tuple(view[split] for view in views) for split in ("train", "val"))
        return Features(of_train, of_val, fixed["evaluation"]), fixed["scale"]

    def directions(self, features: Features, dim: int) -> Tensor:
        """Principal directions ``[D, F]`` of the training features, made once."""

        def made() -> dict[str, Tensor]:
            return {"directions": principal_directions(features.first_view(), dim).cpu()}

        return self._read(cached(self.folder, f"directions{dim}-", made, self.running))["directions"]

    @torch.no_grad()
    def _of_view(self, view: int, draw: Callable[[Tensor], Tensor], count: int, backbone: nn.Module) -> Tensor:
        """Features ``[N, F]`` of one augmented view of N images, drawn by a function from consecutive rows."""
        backbone.eval()
        parts: list[Tensor] = []
        for rows in torch.arange(count).split(256):
            batch = draw(rows)

            def work(part: Tensor, size: int, batch: Tensor = batch) -> Tensor:
                moved = (batch if len(part) == len(batch) else batch[part]).to(self.site.device)
                return features_of(backbone, moved, len(part)).cpu()

            step = f"features of view {view}: {int(rows[0])} of {count}"
            parts += in_chunks(len(rows), 256, work, self.running, step)
        return torch.cat(parts)

    def _evaluation(self, backbone: nn.Module) -> Tensor:
        """Features ``[M, F]`` of the validation images as they are."""
        val = self.data.val
        return backbone_features(backbone.eval(), val.evaluation, len(val), self.site.device, running=self.running)

    def _read(self, path: Path | None) -> dict[str, Tensor]:
        """Content of a file; maps stay in the mapped file."""
        assert path is not None
        device = "cpu" if self.spec.train_from else self.site.device
        return {name: value.to(device) for name, value in load_file(path).items()}

    def _view_of(self, view: int, images: ImageSet) -> Callable[[Tensor], Tensor]:
        """Function from rows to one augmented view, whose draws depend on the view and an image's identity alone."""
        return lambda rows: images.view_of(rows, self.augmentation, view)

    def _rows_for_scale(self) -> Tensor:
        gen = generator("calibrate", self.spec.dataset, "features")
        return torch.randperm(len(self.data.train), generator=gen)[:CALIBRATION]

    def _given(self, train: FeatureImages, val: FeatureImages) -> tuple[Features, Tensor]:
        """The features of a data set that consists of features, and the constant by which they are divided."""
        stand_in = GivenFeatures(train.width)
        if self.spec.batches.calibrate:
            stand_in.calibrate(train.view(0, self._rows_for_scale()))
        scale, device = stand_in.feature_scale.to(self.site.device), self.site.device
        views = range(self.spec.batches.feature_views)
        parts = [tuple(View(images, view, scale, device) for view in views) for images in (train, val)]
        return Features(parts[0], parts[1], View(val, None, scale, device)), scale

    def _make_view(self, view: int, wait: bool = True) -> Path | None:
        """File of the features of one augmented view, numbered from 0; it is made unless it is there."""

        def made() -> dict[str, Tensor]:
            parts = {"train": self.data.train, "val": self.data.val}
            return {
                split: self._of_view(view, self._view_of(view, images), len(images), self._backbone)
                for split, images in parts.items()
            }

        return cached(self.folder, f"view{view}-", made, self.running, wait)

    def _evaluation_and_scale(self) -> Path | None:
        """File of the validation images' features and of the scale; it is made unless it is there."""

        def made() -> dict[str, Tensor]:
            backbone = self._bare()
            calibrate = getattr(backbone, "calibrate", None)
            if self.spec.batches.calibrate and calibrate is not None:
                images = self._view_of(0, self.data.train)(self._rows_for_scale())
                calibrate(images.to(self.site.device, memory_format=torch.channels_last))
            features = self._evaluation(backbone)
            scale: Tensor = getattr(backbone, "feature_scale", torch.ones(()))
            return {"evaluation": features, "scale": scale.cpu()}

        return cached(self.folder, "evaluation-", made, self.running)

    def _bare(self) -> nn.Module:
        """The backbone with its starting weights, or what precedes a stage of it, in evaluation mode."""
        built = starting_backbone(self.spec, self.site, self.channels)
        built = built.to(self.site.device).to(memory_format=torch.channels_last).eval()
        return _Entering(built, self.spec.train_from).eval() if self.spec.train_from else built

    @cached_property
    def _backbone(self) -> nn.Module:
        """The backbone with its scale."""
        backbone = self._bare()
        set_scale(backbone, self._read(self._evaluation_and_scale())["scale"])
        return backbone


class _Entering(nn.Module):
    """What enters the stage of a backbone from which on it is trained, in float16."""

    def __init__(self, backbone: nn.Module, stage: str) -> None:
        super().__init__()
        self.backbone, self.cut = backbone, Cut(backbone, stage)

    def forward(self, images: Tensor) -> Tensor:
        """Maps ``[B, C', h, w]`` of images ``[B, C, H, W]``."""
        maps = self.cut.maps(images).half().contiguous()  # in a file, channels come first
        if not bool(torch.isfinite(maps).all()):
            raise UnitFailed(f"what enters {self.cut.stage} is beyond the range of float16, 65,504")
        return maps


def frozen_folder(spec: TrainSpec, site: Site, data: TrainVal) -> Path:
    """Folder of the cached features of a backbone at its starting weights."""
    return site.store.features(content_id([spec.features, *in_order(data)]))


def in_order(data: TrainVal) -> list[list[str]]:
    """Content and order of both sets: features are stored by row, and a manifest does not depend on the order."""
    return [[images.manifest_sha256(), *images.ids] for images in (data.train, data.val)]


def set_scale(backbone: nn.Module, scale: Tensor) -> None:
    """Set the constant ``[]`` by which a backbone divides its features; one without such a constant is left alone."""
    own = getattr(backbone, "feature_scale", None)
    if own is not None:
        own.copy_(scale)


def whole_file(folder: Path, stem: str) -> Path | None:
    """File of features whose name is ``stem`` and the digest of its content; None if it is missing or damaged."""
    return next((path for path in sorted(folder.glob(f"{stem}*.safetensors")) if is_whole_cache(path)), None)


def cached(
    folder: Path, stem: str, make: Callable[[], dict[str, Tensor]], running: Running, wait: bool = True
) -> Path | None:
    """File of features whose name begins with ``stem``; unless it is there, one process makes it, others wait for it.

    Without ``wait``, the result is None if another process is making it.
    """
    path = whole_file(folder, stem)
    if path is not None:
        return path
    claims, claim = Claims(folder), folder / f"{CLAIM}-{stem}"
    try:
        while not claims.take(claim, wait=LOOK * wait):
            if not wait:
                return None
            running.alive("wait for features")
        path = whole_file(folder, stem)
        if path is None:
            content = save(make())
            path = folder / f"{stem}{sha256(content)}.safetensors"
            write_atomic(path, content)
        return path
    finally:
        claims.close()


ToView = Callable[[Tensor], Tensor]
"""Function from images ``[B, C, H, W]`` to another view of them."""


def _corners(images: Tensor, first: bool) -> Tensor:
    """The first or the last corner of images, with 7/8 of their sides, at their size."""
    height, width = images.shape[-2:]
    top, left = height - height // 8, width - width // 8
    part = images[..., :top, :left] if first else images[..., -top:, -left:]
    return F.interpolate(part, (height, width), mode="bilinear", antialias=True)


VIEWS: Mapping[str, Mapping[str, ToView]] = {
    "mirror": {"mirror": lambda images: images.flip(-1)},
    "crops": {
        "first_corner": partial(_corners, first=True),
        "last_corner": partial(_corners, first=False),
    },
}
"""Views that an image is compared with, by the name of the confidence, the mean cosine to them."""


def views_of(spec: TrainSpec) -> dict[str, Mapping[str, ToView]]:
    """Views that leave the class of an image as it is.

    A mirror image does if the augmentation of the recipe mirrors images; features that are given have none.
    """
    if spec.backbone == GIVEN:
        return {}
    mirrored = float(spec.augmentation.get("flip", 0.0)) > 0
    return {name: views for name, views in VIEWS.items() if mirrored or name != "mirror"}


@dataclass(frozen=True)
class CorruptedImages:
    """Images of a set under a corruption, each with a severity of its own; ``quality`` is 1 - severity, ``[N]``.

    An image has the same severity and the same random numbers whatever method is tested, since they depend on the data
    set, the corruption and the identity of the image alone.
    """

    images: ImageSet
    kind: str
    severity: tuple[float, float]
    quality: Tensor
    seed: int

    @classmethod
    def of(cls, images: ImageSet, dataset: str, kind: str, severity: tuple[float, float]) -> CorruptedImages:
        """Draw the severities of a set's images, uniformly in a range."""
        seed = seed_for("crops" if kind == CROP else kind, dataset)
        if isinstance(images, FeatureImages):
            given = images.given_severity(kind)
            if given is not None:
                return cls(images, kind, severity, 1 - given, seed)
        return cls(images, kind, severity, draw_quality(kind, images.ids, seed, *severity), seed)

    def __len__(self) -> int:
        return len(self.images)

    def evaluation(self, index: Tensor) -> Tensor:
        """Corrupted images at some rows, converted to the input of a network, ``[B, C, H, W]``."""
        return corrupted(self.images, self.kind, index, self.quality[index], self.seed)

    def manifest_sha256(self) -> str:
        """SHA-256 of the severities of all images (:func:`~bench.datasets.corruptions._base.manifest_sha256`)."""
        return manifest_sha256(self.images.ids, self.quality, self.seed)


Images = ImageSet | CorruptedImages


@dataclass(frozen=True)
class Seen:
    """Images of a split as they are, or in another view, which has a name."""

    images: Images
    name: str = ""
    view: ToView = lambda images: images

    def __len__(self) -> int:
        return len(self.images)

    def evaluation(self, index: Tensor) -> Tensor:
        """Images at some rows as the network takes them, ``[B, C, H, W]``."""
        return self.view(self.images.evaluation(index))


class _NotKept(Exception):
    """Features that other processes are not to read."""


@dataclass(frozen=True)
class TestedFeatures:
    """Cached features of the images that a model is tested on, by the digest of a backbone that it does not train."""

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    backbone: nn.Module
    digest: str
    spec: TrainSpec
    site: Site
    folder: Path
    prefix: str
    running: Running

    @classmethod
    def of(
        cls, model: EmbeddingModel | EnsembleModel, spec: TrainSpec, site: Site, running: Running
    ) -> TestedFeatures | None:
        """Cached features for a model; None if it has a backbone of its own, or the base of a head has no folder here.

        The members of an ensemble must have the same backbone.
        """
        members: list[EmbeddingModel] = list(model.members) if isinstance(model, EnsembleModel) else [model]
        if not all(member.backbone_frozen for member in members):
            return None
        digests = {state_sha256(member.backbone) for member in members}
        if len(digests) > 1 or spec.backbone == GIVEN:  # whose images are features
            return None
        if spec.frozen:
            data = site.dataset(spec.dataset, spec.view).train_val(spec.fold, spec.folds)
            folder, prefix = frozen_folder(spec, site, data), ""
        elif spec.base is not None:
            folder, prefix = site.store.unit_dir(spec.base_cell, "train", spec.base.unit), FEATURES
            if not (folder / RECORD).exists():  # packed, or from elsewhere: a folder of features alone is no training
                return None
        else:
            return None
        return cls(members[0].backbone, digests.pop(), spec, site, folder, prefix, running)

    def load(self, split: str, images: Seen, make: bool, wait: bool = True) -> Tensor | None:
        """Features ``[N, F]`` of a split's images, on the CPU and equal to the last bit to those inside ``embed``.

        They are None if there are none and none are to be made, if memory ran out with chunks of the usual size, or,
        without ``wait``, if another process makes them.
        """
        if not make and not any(self.folder.glob(f"{self.prefix}{split}-*")):  # a key takes time
            return None
        stem = f"{self.prefix}{split}-{self._key(images)}-"
        step, device = f"features of split {split}", self.site.device

        def made() -> dict[str, Tensor]:
            found = backbone_features(
                self.backbone, images.evaluation, len(images), device, running=self.running, step=step
            )
            if self.running.chunk is not None:  # memory ran out: other sizes may round differently, and are not kept
                raise _NotKept
            return {"features": found}

        with suppress(_NotKept):
            path = cached(self.folder, stem, made, self.running, wait) if make else whole_file(self.folder, stem)
            return None if path is None else load_file(path)["features"]
        return None

    def _key(self, seen: Seen) -> str:
        """Id of everything that the features of some images depend on."""
        spec, images = self.spec, seen.images
        clean = images.images if isinstance(images, CorruptedImages) else images
        entries = [
            versions.engine("testing"),
            versions.registered(self.site.datasets, spec.dataset),
            versions.backbone(spec.backbone),
            *([versions.corruption(images.kind)] if isinstance(images, CorruptedImages) else []),
        ]
        code = [*map(versions.version, entries)]
        software = [code, torch.__version__, torch.device(self.site.device).type]
        network = [self.digest, spec.backbone, spec.batches.pooling, spec.batches.freeze_norm]
        source = [spec.dataset, spec.view, spec.partial, spec.files]
        content = [clean.manifest_sha256(), images.manifest_sha256(), content_id([*clean.ids]), seen.name]
        return content_id([software, network, source, content])


class AugmentedImages:
    """Inputs of a stage that trains the backbone: augmented images.

    With ``ahead``, a thread makes the next batch while one is trained on.
    """

    through_backbone = True

    def __init__(
        self,
        data: TrainVal,
        augmentation: TrainingAugmentation,
        device: str,
        running: Running | None = None,
        room: int = 0,
    ) -> None:
        self.data, self.room = data, room
        self.running = running or Running()
        self.augmentation = augmentation
        self.device = device
        # On a CPU, training itself has all cores.
        self.ahead = device != "cpu"
        self._last: Tensor | None = None
        self._stream = torch.cuda.Stream() if self.ahead else None

    def batch(self, rows: Tensor, gen: torch.Generator) -> Tensor:
        """Augmented training images ``[B, C, H, W]``, as :meth:`.ImageSet.training` returns them, on the device."""
        if self._stream is not None:
            return self.to_gpu(*self.data.train.for_gpu(rows, self.augmentation, gen, self._last, self.room))
        self._last = self.data.train.training(rows, self.augmentation, gen, self._last)
        moved: Tensor = self._last.to(self.device, memory_format=torch.channels_last)
        if moved is self._last:  # in the same memory, which is the caller's now
            self._last = None
        return moved

    def in_turn(self, batches: Iterable[Tensor], gen: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of each training batch and its images, as :meth:`batch` gives them."""
        if not self.ahead:
            for rows in batches:
                yield rows, self.batch(rows, gen)
            return
        with ThreadPoolExecutor(1) as worker:
            waiting: list[tuple[Tensor, Future[Tensor]]] = []
            for rows in batches:
                waiting.append((rows, worker.submit(self.batch, rows, gen)))
                if len(waiting) > 1:
                    ready, made = waiting.pop(0)
                    yield ready, made.result()
            for ready, made in waiting:
                yield ready, made.result()

    def to_gpu(self, made: Tensor, finish: Callable[[Tensor], Tensor]) -> Tensor:
        """A batch that is moved and finished beside the training step, on a stream of its own."""
        assert self._stream is not None
        self._last = made if made.is_pinned() else made.pin_memory()
        with torch.cuda.stream(self._stream):
            batch = finish(self._last.to(self.device, non_blocking=True)).contiguous(memory_format=torch.channels_last)
        batch.record_stream(torch.cuda.current_stream())
        self._stream.synchronize()  # from here on, what is pinned may be written to
        return batch

    def embed_batch(self, model: EmbeddingModel, inputs: Tensor) -> Embedding:
        """Embed a batch of images: raw embeddings ``[B, D]`` and one distribution of batch shape ``[B]``."""
        embedding: Embedding = model(inputs)
        return embedding

    def validation(self, model: EmbeddingModel) -> Distribution:
        """Embed the N validation images; returns one distribution of batch shape ``[N]``."""
        images = self.data.val
        load, step = images.evaluation, "validation"
        return embed(model, load, len(images), self.device, running=self.running, step=step, confident=False)[0]

    def validation_loss(self, model: EmbeddingModel, labels: Tensor) -> float | None:
        """Return None: a loss with one weight vector per training class is not defined on validation classes."""
        return None


class CachedFeatures:
    """Inputs of a stage whose backbone, or its first layers, are frozen: what they make of V views of every image.

    ``any_classes`` is whether the loss is defined for classes that are not trained on, as it is if the base of a
    two-stage method is frozen. ``maps`` is whether the features enter a stage of the backbone, which is trained.
    """

    def __init__(
        self,
        features: Features,
        device: str,
        running: Running | None = None,
        any_classes: bool = True,
        maps: bool = False,
    ) -> None:
        self.features, self.device = features, device
        self.running = running or Running()
        self.through_backbone = maps
        self._any_classes = any_classes and not maps

    def batch(self, rows: Tensor, gen: torch.Generator) -> Tensor:
        """Features ``[B, F]``, or maps, of training images, each of a random one of the V cached augmented views."""
        return self._moved(self.features.of_training(self._draw(rows, gen), rows))

    def in_turn(self, batches: Iterable[Tensor], gen: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of each training batch and their features, as :meth:`batch` gives them."""
        left = iter(batches)
        while some := list(islice(left, 1 if self.through_backbone else GATHERED)):
            views = [self._draw(rows, gen) for rows in some]
            found = self._moved(self.features.of_training(torch.cat(views), torch.cat(some)))
            yield from zip(some, found.split([len(rows) for rows in some]))

    def _draw(self, rows: Tensor, gen: torch.Generator) -> Tensor:
        return torch.randint(len(self.features.train), (len(rows),), generator=gen)

    def _moved(self, features: Tensor) -> Tensor:
        if not self.through_backbone:
            return features
        moved = features.to(self.device).float()
        return moved.contiguous(memory_format=torch.channels_last) if moved.dim() == 4 else moved

    def embed_batch(self, model: EmbeddingModel, inputs: Tensor) -> Embedding:
        """Embed what :meth:`batch` gives: raw embeddings ``[B, D]`` and one distribution of batch shape ``[B]``."""
        embedding: Embedding = model(inputs) if self.through_backbone else model.embed_features(inputs)
        return embedding

    def validation(self, model: EmbeddingModel) -> Distribution:
        """Embed the N validation images; returns one distribution of batch shape ``[N]``."""
        held, pooled, running = self.features.evaluation, not self.through_backbone, self.running

        def load(rows: Tensor) -> Tensor:
            return self._moved(held[rows])

        about = {"features": pooled, "confident": False}
        return embed(model, load, len(held), self.device, running=running, step="validation", **about)[0]

    @torch.no_grad()
    def validation_loss(self, model: EmbeddingModel, labels: Tensor) -> float | None:
        """Mean loss of the stage on the validation images, over the same augmented views in every epoch and trial."""
        if not self._any_classes:
            return None
        model.eval()
        views = map(_whole, self.features.val)
        losses = [loss_of_any_classes(model, model.embed_features(view).distribution, labels) for view in views]
        return float(torch.stack(losses).double().mean())


Inputs = AugmentedImages | CachedFeatures
"""Inputs of one stage of training."""


def loss_of_any_classes(model: EmbeddingModel, distribution: Distribution, labels: Tensor) -> Tensor:
    """Scalar loss of all N images of a set, whose classes need not be those of the training.

    An objective with weights of the training classes, or one of all pairs of a batch, says itself what it is.
    """
    loss: Tensor = getattr(model.objective, "validation_loss", model.objective)(distribution, labels)
    return loss
