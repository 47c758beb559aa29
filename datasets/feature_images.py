"""Features of labelled images in a mapped file, in place of the images."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .augmentation import TrainingAugmentation
from .dataset import ImageSet


class FeatureImages(ImageSet):
    """Features of labelled images in a mapped file, in place of the images.

    Attributes:
        arrays: Arrays of the file by name: ``features`` ``[M, F]`` or ``[M, V, F]`` with V augmented views of every
            image, perhaps ``embeddings`` ``[M, F]`` of the images as they are (else they are the first view), and
            ``corrupted_KIND`` ``[M, F]`` with ``severity_KIND`` ``[M]`` for images under a corruption.
        rows: Rows of the file that are in the set, int64 ``[N]``.
        sha256: SHA-256 of the file.
    """

    def __init__(
        self,
        arrays: Mapping[str, Tensor],
        rows: Tensor,
        labels: Tensor,
        ids: Sequence[str],
        class_names: Sequence[str],
        sha256: str,
    ) -> None:
        super().__init__(labels, ids, class_names)
        self.arrays, self.rows, self.sha256 = arrays, rows, sha256

    @property
    def views(self) -> int:
        """Number V of augmented views of every image."""
        features = self.arrays["features"]
        return features.shape[1] if features.dim() == 3 else 1

    @property
    def width(self) -> int:
        """Number F of features."""
        return self.arrays["features"].shape[-1]

    def view(self, number: int, index: Tensor) -> Tensor:
        """Features float32 ``[B, F]`` of one augmented view, numbered from 0, of some images."""
        features = self.arrays["features"]
        rows = self.rows[index]
        return (features[rows, number] if features.dim() == 3 else features[rows]).float()

    def evaluation(self, index: Tensor) -> Tensor:
        """Features float32 ``[B, F]`` of some images as they are: ``embeddings`` if the file has them, else view 0."""
        clean = self.arrays.get("embeddings")
        return self.view(0, index) if clean is None else clean[self.rows[index]].float()

    def training(
        self, index: Tensor, augmentation: TrainingAugmentation, generator: torch.Generator, out: Tensor | None = None
    ) -> Tensor:
        """Features float32 ``[B, F]`` of some images, each of an augmented view that is drawn at random."""
        drawn = torch.randint(self.views, (len(index),), generator=generator)
        features = self.arrays["features"]
        return self.view(0, index) if features.dim() == 2 else features[self.rows[index], drawn].float()

    def given_severity(self, kind: str) -> Tensor | None:
        """Severity float64 ``[N]`` of the images that the file has under a corruption; None if it has none."""
        severity = self.arrays.get(f"severity_{kind}")
        return None if severity is None else severity[self.rows].double()

    def given(self, kind: str, index: Tensor) -> Tensor:
        """Features float32 ``[B, F]`` that the file has of some images under a corruption."""
        return self.arrays[f"corrupted_{kind}"][self.rows[index]].float()

    def pixels_of(self, index: Tensor) -> Tensor:
        """Refuse with a TypeError: features have no pixels."""
        raise TypeError("features have no pixels")

    def normalised(self, pixels: Tensor) -> Tensor:
        """The features themselves: a network takes them as they are."""
        return pixels

    def cropped(self, index: Tensor, fraction: Tensor) -> Tensor:
        """Refuse with a TypeError: features cannot be cropped."""
        raise TypeError("features cannot be cropped")

    def manifest_sha256(self) -> str:
        """SHA-256 (hexadecimal) of the file's hash and of the rows that are in the set, in ascending order."""
        digest = hashlib.sha256(self.sha256.encode())
        digest.update(self.rows.sort().values.numpy().tobytes())
        return digest.hexdigest()

    def select(self, index: Tensor) -> FeatureImages:
        """Subset of the images, in the given order, in the same mapped file."""
        return FeatureImages(self.arrays, self.rows[index], *self.selected_names(index), self.sha256)
