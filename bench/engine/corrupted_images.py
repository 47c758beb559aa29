"""Images of a set under a corruption, with the severity that each of them has."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..datasets.corruptions._base import CROP
from ..datasets.corruptions.apply import corrupted
from ..datasets.corruptions.severity import draw_quality, manifest_sha256
from ..datasets.image_set import ImageSet
from ..seeds import seed_for


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
        return cls(images, kind, severity, draw_quality(kind, images.ids, seed, *severity), seed)

    def __len__(self) -> int:
        return len(self.images)

    def evaluation(self, index: Tensor) -> Tensor:
        """Corrupted images at some rows, converted to the input of a network, ``[B, C, H, W]``."""
        return corrupted(self.images, self.kind, index, self.quality[index], self.seed)

    def manifest_sha256(self) -> str:
        """SHA-256 of the severities of all images (:func:`~bench.datasets.corruptions.severity.manifest_sha256`)."""
        return manifest_sha256(self.images.ids, self.quality, self.seed)
