"""Images of a set under a corruption, other views of them, and the worth of a confidence on centre crops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from ..datasets.corruptions._base import CROP, corrupted, draw_quality, manifest_sha256
from ..datasets.dataset import ImageSet
from ..datasets.feature_images import FeatureImages
from ..errors import UnitFailed
from ..methods._model import EmbeddingModel, NonFiniteEmbeddings
from ..methods.backbones.registry import GIVEN
from ..methods.scorers.spec import DistributionScorer
from ..protocols.confidence import confidence_auroc
from ..protocols.query_metrics import per_query
from ..protocols.ranking import full_depth, rank
from ..seeds import seed_for
from ..store.specs import TrainSpec
from .networks import check_finite, default_confidence, embed
from .running import PatientScorer, Running

View = Callable[[Tensor], Tensor]
"""Function from images ``[B, C, H, W]`` to another view of them."""


def _corners(images: Tensor, first: bool) -> Tensor:
    """The first or the last corner of images, with 7/8 of their sides, at their size."""
    height, width = images.shape[-2:]
    top, left = height - height // 8, width - width // 8
    part = images[..., :top, :left] if first else images[..., -top:, -left:]
    return F.interpolate(part, (height, width), mode="bilinear", antialias=True)


VIEWS: Mapping[str, Mapping[str, View]] = {
    "mirror": {"mirror": lambda images: images.flip(-1)},
    "crops": {
        "first_corner": partial(_corners, first=True),
        "last_corner": partial(_corners, first=False),
    },
}
"""Views that an image is compared with, by the name of the confidence, the mean cosine to them."""


def views_of(spec: TrainSpec) -> dict[str, Mapping[str, View]]:
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
    view: View = lambda images: images

    def __len__(self) -> int:
        return len(self.images)

    def evaluation(self, index: Tensor) -> Tensor:
        """Images at some rows as the network takes them, ``[B, C, H, W]``."""
        return self.view(self.images.evaluation(index))


SAMPLE = 2000
"""Most validation images whose crops a trial of a replicate's own study embeds."""


def crop_auroc(
    model: EmbeddingModel, crops: CorruptedImages, features: Tensor | None, scorer: str, device: str, running: Running
) -> float:
    """AUROC of telling right from wrong answers on centre crops by the default confidence of a method, in [0, 1].

    Every image is cropped by a severity of its own and is query and gallery, but never its own neighbour. An answer is
    right if the nearest neighbour has the query's class (Recall@1). It is nan if all are right or all wrong.
    ``features`` are those of the crops, if they are at hand.
    """
    labels, step = crops.images.labels, "validation on crops"
    load, about = (crops.evaluation, False) if features is None else (features.__getitem__, True)
    try:
        distribution, confidences = embed(model, load, len(crops), device, features=about, running=running, step=step)
        check_finite(distribution, confidences)
        ranked_by = PatientScorer(DistributionScorer(scorer, distribution, model.scorer_options(), device), running)
        correct = per_query(rank(ranked_by, labels, depth=full_depth(labels)))["recall_at_1"]
    except (NonFiniteEmbeddings, ValueError) as error:
        raise UnitFailed(f"{step}: {error}") from error
    counted = ~correct.isnan()
    correct, confidence = correct[counted], confidences[default_confidence(model.method, confidences)][counted]
    return confidence_auroc(confidence, correct)


def sample(images: ImageSet) -> ImageSet:
    """The first classes of a set: as many whole ones as have at most :data:`SAMPLE` images, but two at least."""
    last = max(1, int((images.labels.bincount().cumsum(0) <= SAMPLE).sum()) - 1)
    rows = (images.labels <= last).nonzero().flatten()
    return images if len(rows) == len(images) else images.select(rows)
