"""What a corruption is, how its severity and its random numbers belong to an image, and applying it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..dataset import ImageSet
from ..feature_images import FeatureImages
from ..identity_draws import raw_numbers, uniform

CROP = "crop"
"""Name of the centre crop, which starts from the original image instead of the pixels of the evaluation view.

Its severity is 1 - the side of the crop as a fraction of the image's side."""

Draw = Callable[[int], NDArray[np.float64]]
"""Function that returns the first n of an image's own uniform random numbers in (0, 1)."""


@dataclass(frozen=True)
class Corruption:
    """A kind of image corruption, such as blur, with a function that applies it.

    Attributes:
        name: Its name on the command line (``--corruptions``); corrupted test images are the split ``test_NAME`` in
            tables.
        summary: Description of one line for ``bench list corruptions``.
        low: Smallest severity by default, in [0, 1].
        high: Largest severity by default, in [low, 1].
        apply: Function of an image (uint8 ``[C, H, W]``), a severity in (0, 1] and the image's :data:`Draw`, a function
            of n that returns n random numbers in (0, 1); it returns the corrupted image. None for the centre crop,
            which every set of images computes itself (:meth:`ImageSet.cropped`).
        version: Number to raise when the corrupted images change; it is part of the ids of results.
        of: ``images``, or ``features`` if ``apply`` takes and returns the features of an image, float32 ``[F]``.
    """

    name: str
    summary: str
    low: float
    high: float
    apply: Callable[[Tensor, float, Draw], Tensor] | None
    version: int = 1
    of: Literal["images", "features"] = "images"


def identity_uniform(ids: Sequence[str], seed: int) -> Tensor:
    """Uniform random number in [0, 1) for each image, float64 ``[N]``, from its identity and the seed alone."""
    # 53 bits: as many as a float64 in [0, 1) resolves.
    keys = (f"{seed}|{name}".encode("utf-8", "surrogateescape") for name in ids)
    bits = [int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 11 for key in keys]
    return torch.tensor(bits, dtype=torch.float64) * 2.0**-53


def identity_draw(identity: str, seed: int) -> Draw:
    """Stream of random numbers, float64 in (0, 1), that depends on an image's identity and the seed alone."""
    return lambda count: uniform(raw_numbers([f"{seed}|{identity}"], count)[0])


LEVELS = 5
"""Number of graded levels of a corruption: level k is severity k / 5."""


def draw_quality(name: str, ids: Sequence[str], seed: int, low: float, high: float) -> Tensor:
    """Draw the quality of each image, 1 - severity of a corruption, uniformly in [1 - high, 1 - low], float64 ``[N]``.

    A draw depends on the seed and the image's identity alone, not on the other images or their order. The quality of a
    centre crop is the side of the crop as a fraction of the image's side.

    Raises:
        ValueError: If the range is not within [0, 1], or contains severity 1 of the crop, which leaves nothing.

    Example:
        >>> draw_quality("blur", ["a.png", "b.png"], 0, 0.6, 0.6).tolist()
        [0.4, 0.4]
    """
    check_range(name, low, high)
    least, most = round(1 - high, 12), round(1 - low, 12)
    return least + (most - least) * identity_uniform(ids, seed)


def check_range(name: str, low: float, high: float) -> None:
    """Refuse a range of severities outside [0, 1], or with severity 1 of the crop, which leaves nothing."""
    if not 0 <= low <= high <= 1:
        raise ValueError(f"severities are from 0 to 1, the smaller first, not {low:g} to {high:g}")
    if name == CROP and high == 1:
        raise ValueError("a crop of severity 1 is empty; its side is 1 - severity")


def manifest_sha256(ids: Sequence[str], quality: Tensor, seed: int) -> str:
    """SHA-256 (hexadecimal) of the severities of a corruption of N images; the order of the images does not matter.

    It covers the seed, then a line ``["id", severity]`` (JSON) per image, sorted by identity; ``quality`` is 1 -
    severity.
    """
    digest = hashlib.sha256(f"{seed}\n".encode())
    for identity, value in sorted(zip(ids, quality.tolist())):
        digest.update(json.dumps([identity, 1 - value]).encode() + b"\n")
    return digest.hexdigest()


def corrupted(images: ImageSet, name: str, index: Tensor, quality: Tensor, seed: int) -> Tensor:
    """Corrupted images of a set at positions ``[B]``, float32 ``[B, C, H, W]``, as by :meth:`.ImageSet.normalised`.

    ``quality`` ``[B]`` is 1 - severity of each image, in [0, 1], above 0 for the crop; 1 is the clean image, bit for
    bit. The random numbers of an image depend on the seed and its identity alone. An unknown name or a quality out of
    range is a ValueError.
    """
    if isinstance(images, FeatureImages):
        return _corrupted_features(images, name, index, quality, seed)
    if name == CROP:
        return images.cropped(index, quality)

    def one(item: tuple[Tensor, float, int]) -> Tensor:
        pixels, severity, place = item
        return _KEPT.corrupt(name, pixels, severity, images.ids[place], seed)

    items = list(zip(images.pixels_of(index), (1 - quality).tolist(), index.tolist()))
    return images.normalised(torch.stack(list(images.map(one, items))))


def _corrupted_features(images: FeatureImages, name: str, index: Tensor, quality: Tensor, seed: int) -> Tensor:
    """Features that the set has of corrupted images, or its clean features under a corruption of features."""
    from .registry import CORRUPTIONS

    if images.given_severity(name) is not None:
        return images.given(name, index)
    apply = CORRUPTIONS[name].apply
    if apply is None or CORRUPTIONS[name].of != "features":
        raise ValueError(f"the set has no corrupted_{name}, and features cannot be corrupted so")
    severities = (1 - quality).tolist()
    rows = [
        row if severity == 0 else apply(row, severity, identity_draw(images.ids[place], seed))
        for row, severity, place in zip(images.evaluation(index), severities, index.tolist())
    ]
    return torch.stack(rows).float()


def corrupt(name: str, image: Tensor, severity: float, identity: str, seed: int) -> Tensor:
    """Corrupt the pixels of one image, uint8 ``[C, H, W]``; severity 0 gives the image itself.

    Raises:
        ValueError: If the name is unknown or ``crop``, the image is not 8-bit, the severity is not in [0, 1], or the
            corruption returns an image of another shape or type.

    Example:
        >>> image = torch.tensor([[[0, 40], [80, 120]]], dtype=torch.uint8)
        >>> corrupt("occlusion", image, 1.0, "a.png", seed=0).unique().tolist()
        [60]
    """
    from .registry import CORRUPTIONS, corruption_file

    kind = CORRUPTIONS.get(name)
    if kind is None or kind.apply is None or kind.of != "images":
        raise ValueError(f"no corruption of pixels is called {name!r}")
    if image.dtype != torch.uint8 or image.dim() != 3:
        raise ValueError(f"an image is uint8 [C, H, W], not {image.dtype} {list(image.shape)}")
    if not 0 <= severity <= 1:
        raise ValueError(f"severity must be in [0, 1], not {severity}")
    if severity == 0:
        return image
    made = kind.apply(image, severity, identity_draw(identity, seed))
    if not isinstance(made, Tensor) or made.dtype != torch.uint8 or made.shape != image.shape:
        given = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise ValueError(
            f"corruption {name!r} ({corruption_file(name)}) gives {given} for an image {image.dtype}"
            f" {list(image.shape)}; both must be the same"
        )
    return made


class _Kept:
    """Corrupted images of this process, up to a size: all methods and seeds are tested on the same ones."""

    def __init__(self, size: int) -> None:
        self.room = size
        self.images: dict[tuple[Any, ...], Tensor] = {}

    def corrupt(self, name: str, image: Tensor, severity: float, identity: str, seed: int) -> Tensor:
        """Result of :func:`corrupt`, computed once as long as there is room."""
        from .registry import CORRUPTIONS

        content = blake2b(image.contiguous().numpy().tobytes(), digest_size=16).digest()
        key = (CORRUPTIONS.get(name), content, image.shape, severity, identity, seed)
        found = self.images.get(key)
        if found is None:
            found = corrupt(name, image, severity, identity, seed)
            if found.nbytes <= self.room:
                self.room -= found.nbytes
                # A copy, as the result may share memory with the image or with something larger.
                self.images[key] = found.clone()
        return found


_KEPT = _Kept(128 * 2**20)
