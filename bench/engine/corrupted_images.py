"""Images under a corruption, each with a severity of its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..datasets.corruptions.apply import corrupted
from ..datasets.corruptions.severity import draw_quality, manifest_sha256
from ..datasets.image_set import ImageSet
from ..seeds import seed_for


@dataclass(frozen=True)
class CorruptedImages:
    """Images under a corruption, each with a severity of its own.

    Attributes:
        images: The clean images.
        kind: Name of the corruption, such as ``crop``.
        severity: Smallest and largest severity.
        seed: Seed of the severities and of the corruption's random numbers.
        quality: 1 - severity of each image (for the crop, the fraction of the side that is kept), ``[N]``.
    """

    images: ImageSet
    kind: str
    severity: tuple[float, float]
    seed: int
    quality: Tensor

    @classmethod
    def of(cls, images: ImageSet, dataset: str, kind: str, severity: tuple[float, float]) -> CorruptedImages:
        """Draw the severity of each image; it depends on the data set, the corruption and the image's identity alone.

        Args:
            images: The clean images.
            dataset: Name of their data set.
            kind: Name of the corruption.
            severity: Smallest and largest severity.
        """
        seed = seed_for("crops" if kind == "crop" else kind, dataset)
        return cls(images, kind, severity, seed, draw_quality(kind, images.ids, seed, *severity))

    def __len__(self) -> int:
        return len(self.images)

    def evaluation(self, index: Tensor) -> Tensor:
        """Corrupted images at some rows, converted to the input of a network, float32 ``[B, C, H, W]``."""
        return corrupted(self.images, self.kind, index, self.quality[index], self.seed)

    def manifest_sha256(self) -> str:
        """SHA-256 (hexadecimal) of the severities and the seed."""
        return manifest_sha256(self.images.ids, self.quality, self.seed)
