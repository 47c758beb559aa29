"""Cached features of the images that tests embed, for models on a backbone that they do not train.

The features of a split (test or validation images, clean or under a corruption) are one file. It serves every model
with the same backbone: all heads on a backbone at its starting weights, and the heads on one trained base. The name of
the file has a key of everything that the features depend on, with the weights of the backbone themselves, so that no
model is given those of another network, and the digest of its content, as all cached features
(:mod:`bench.engine.features`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from .. import versions
from ..datasets.image_set import ImageSet
from ..methods._ensemble import EnsembleModel
from ..methods._model import EmbeddingModel
from ..protocols._base import Tests
from ..seeds import content_id
from ..site import Site
from ..store.files import sha256
from ..store.folder import FEATURES, RECORD
from ..store.specs import Cell, TrainSpec
from .corrupted_images import CorruptedImages
from .features import EVALUATION, FrozenBackbone, whole_file, write_file
from .networks import backbone_features, load_model
from .running import Running

Images = ImageSet | CorruptedImages


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
        members: list[EmbeddingModel] = list(model.members) if isinstance(model, EnsembleModel) else [model]  # type: ignore[arg-type]
        if not all(member.backbone_frozen for member in members):
            return None
        digests = {_digest(member.backbone) for member in members}
        if len(digests) > 1:
            return None
        if spec.frozen:
            dataset = site.dataset(spec.dataset, spec.view)
            data = dataset.train_val(spec.fold, spec.folds)
            folder, prefix = FrozenBackbone(spec, site, dataset, data, running).folder, ""
        elif spec.base is not None:
            base = Cell(spec.protocol, spec.dataset, spec.base.method)
            folder, prefix = site.store.unit_dir(base, "train", spec.base.unit), FEATURES
            if not (folder / RECORD).exists():  # packed, or from elsewhere: a folder of features alone is no training
                return None
        else:
            return None
        return cls(members[0].backbone, digests.pop(), spec, site, folder, prefix, running)

    def load(self, split: str, images: Images, make: bool) -> Tensor | None:
        """Features ``[N, F]`` of a split's images, on the CPU and equal to the last bit to those inside ``embed``.

        They are None if there are none and none are to be made.
        """
        if split == "val" and (shared := self._evaluation()) is not None:
            return shared
        if not make and not any(self.folder.glob(f"{self.prefix}{split}-*")):  # a key takes time
            return None
        stem = f"{self.prefix}{split}-{self._key(images)}-"
        path = whole_file(self.folder, stem)
        if path is None and make:
            step, device = f"features of split {split}", self.site.device
            features = backbone_features(
                self.backbone, images.evaluation, len(images), device, running=self.running, step=step
            )
            if self.running.chunk is not None:  # memory ran out: other sizes may round differently, and are not kept
                return features
            path = write_file(self.folder, stem, {"features": features})
        return None if path is None else load_file(path)["features"]

    def _evaluation(self) -> Tensor | None:
        """Features of the clean validation images, if trainings on the same backbone have made them."""
        path = whole_file(self.folder, EVALUATION) if self.spec.frozen else None
        if path is None:
            return None
        held = load_file(path)
        scale: Tensor = getattr(self.backbone, "feature_scale", torch.ones(()))
        return held["evaluation"] if torch.equal(held["scale"], scale.cpu()) else None

    def _key(self, images: Images) -> str:
        """Id of everything that the features of some images depend on."""
        spec, clean = self.spec, images.images if isinstance(images, CorruptedImages) else images
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
        content = [clean.manifest_sha256(), images.manifest_sha256(), content_id([*clean.ids])]
        return content_id([software, network, source, content])


def splits_of(spec: TrainSpec, site: Site, corrupted: Mapping[str, CorruptedImages]) -> dict[str, Images]:
    """Images that a model is tested on by split: ``test``, ``val``, and both under each corruption (``test_crop``)."""
    dataset = site.dataset(spec.dataset, spec.view)
    validation: ImageSet = dataset.train_val(spec.fold, spec.folds).val
    splits: dict[str, Images] = {"test": dataset.test(), "val": validation}
    for kind, images in corrupted.items():
        splits[f"test_{kind}"] = images
        splits[f"val_{kind}"] = CorruptedImages.of(validation, spec.dataset, kind, images.severity)
    return splits


def make_features(spec: TrainSpec, tests: Tests, kind: str, site: Site, running: Running) -> None:
    """Make the cached features of the test and validation images for the tests of several models on one backbone."""
    model, _ = load_model(spec.cell, spec.id, site)
    cache = TestedFeatures.of(model, spec, site, running)
    if cache is None:
        return
    test: ImageSet = site.dataset(spec.dataset, spec.view).test()
    corrupted = {kind: CorruptedImages.of(test, spec.dataset, kind, tests.corruptions[kind])} if kind else {}
    for split, images in splits_of(spec, site, corrupted).items():
        if split.partition("_")[2] == kind:
            cache.load(split, images, make=True)


def _digest(backbone: nn.Module) -> str:
    """SHA-256 of the weights and buffers of a backbone."""
    return sha256(save({name: value.cpu().contiguous() for name, value in backbone.state_dict().items()}))
