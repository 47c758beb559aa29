"""Corruptions of test images beyond the centre crop, at graded severities: blur, JPEG, noise, occlusion.

A corruption acts on the 8-bit pixels of the evaluation view, so what is degraded is what a network would have seen.
Severity 0 is the clean image, bit for bit; 1 is the strongest. What a corruption draws (noise, a place) depends on a
seed and the image's identity, never on the severity: a stronger corruption of an image is the same one, stronger.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from .augmentation import identity_key, identity_uniform

CROP = "crop"
"""The corruption that every image set makes itself, from the original image: its severity is 1 - side of the crop."""

LEVELS = 5
"""Level k of a corruption is severity k / 5."""

BLUR_SIGMA = 0.08
"""Standard deviation of the strongest blur, as a fraction of the image's shorter side."""

JPEG_QUALITY = (95, 5)
"""JPEG quality where severity begins, and at severity 1."""

NOISE_SD = 0.4
"""Standard deviation of the strongest noise, for pixels in [0, 1]."""

Draw = Callable[[int], NDArray[np.float64]]
"""The first n of an image's own uniform random numbers in (0, 1)."""


def _blur(image: Tensor, severity: float, draw: Draw) -> Tensor:
    from torchvision.transforms.v2 import functional as F

    side = min(image.shape[1:])
    sigma = severity * BLUR_SIGMA * side
    # Three standard deviations; mirrored borders cannot be wider than the image.
    reach = min(max(1, math.ceil(3 * sigma)), side - 1)
    width = 2 * reach + 1
    # One axis after the other: torchvision convolves with the full square kernel, which is slow where it is wide.
    rows = F.gaussian_blur(image.float(), [width, 1], [sigma, sigma])
    both: Tensor = F.gaussian_blur(rows, [1, width], [sigma, sigma])
    return both.round_().to(torch.uint8)


def _jpeg(image: Tensor, severity: float, draw: Draw) -> Tensor:
    from PIL import Image

    best, worst = JPEG_QUALITY
    # torchvision's jpeg is deprecated; both end in libjpeg.
    parts = []
    for part in [image] if len(image) == 3 else image.split(1):
        file = io.BytesIO()
        held = part.permute(1, 2, 0).numpy()
        Image.fromarray(held if len(part) == 3 else held[:, :, 0]).save(
            file, "jpeg", quality=round(best + (worst - best) * severity)
        )
        with Image.open(file) as read:
            parts.append(torch.from_numpy(np.array(read)).view(*image.shape[1:], len(part)).permute(2, 0, 1))
    return torch.cat(parts)


def _noise(image: Tensor, severity: float, draw: Draw) -> Tensor:
    # torchvision's gaussian_noise takes its numbers from the global generator.
    normal = torch.from_numpy(ndtri(draw(image.numel()))).view(image.shape)
    noisy: Tensor = image + 255 * NOISE_SD * severity * normal
    return noisy.round_().clamp_(0, 255).to(torch.uint8)


def _occlusion(image: Tensor, severity: float, draw: Draw) -> Tensor:
    from torchvision.transforms.v2 import functional as F

    height, width = image.shape[1:]
    h, w = (round(math.sqrt(severity) * side) for side in (height, width))
    u, v = draw(2).tolist()
    grey = image.double().mean((1, 2), keepdim=True).round_().to(torch.uint8)
    covered: Tensor = F.erase(image, math.floor(u * (height - h + 1)), math.floor(v * (width - w + 1)), h, w, grey)
    return covered


@dataclass(frozen=True)
class Corruption:
    """One kind of corruption.

    Attributes:
        name: Its name in ``--corruptions`` and after ``test_`` in the tables.
        summary: One line for ``bench list corruptions``.
        low: Smallest severity if none is asked for.
        high: Largest severity if none is asked for.
        apply: ``(image uint8 [C, H, W], severity in (0, 1], draw) -> image``; None for the crop.
    """

    name: str
    summary: str
    low: float
    high: float
    apply: Callable[[Tensor, float, Draw], Tensor] | None


CORRUPTIONS = {
    kind.name: kind
    for kind in (
        Corruption(CROP, "centre crop of side 1 - severity, enlarged to the full size", 0.0, 0.5, None),
        Corruption("blur", f"Gaussian, sigma = {BLUR_SIGMA:g} x severity x shorter side", 0.0, 1.0, _blur),
        Corruption("jpeg", "JPEG, quality 95 to 5", 0.0, 1.0, _jpeg),
        Corruption("noise", f"additive Gaussian, SD {NOISE_SD:g} x severity of the grey range", 0.0, 1.0, _noise),
        Corruption(
            "occlusion", "a patch of the image's mean colour; severity is its share of the area", 0.0, 0.5, _occlusion
        ),
    )
}


def corrupt(name: str, image: Tensor, severity: float, identity: str, seed: int) -> Tensor:
    """Corrupt one image.

    Args:
        name: Kind of corruption, any but the crop.
        image: uint8 ``[C, H, W]``.
        severity: In [0, 1]; 0 gives the image itself.
        identity: Lasting name of the image.
        seed: Seed of what the corruption draws.

    Returns:
        uint8 ``[C, H, W]``.

    Raises:
        ValueError: If the kind is unknown, the image is not 8-bit, or the severity is out of its range.

    Example:
        >>> image = torch.tensor([[[0, 40], [80, 120]]], dtype=torch.uint8)
        >>> corrupt("occlusion", image, 1.0, "a.png", seed=0).unique().tolist()
        [60]
    """
    kind = CORRUPTIONS.get(name)
    if kind is None or kind.apply is None:
        raise ValueError(f"no corruption of pixels is called {name!r}")
    if image.dtype != torch.uint8 or image.dim() != 3:
        raise ValueError(f"an image is uint8 [C, H, W], not {image.dtype} {list(image.shape)}")
    if not 0 <= severity <= 1:
        raise ValueError(f"severity must be in [0, 1], not {severity}")
    if severity == 0:
        return image

    def draw(count: int) -> NDArray[np.float64]:
        # Raw bits of a bit generator have a stable stream (NEP 19); torch's and numpy's distributions have not.
        key = int.from_bytes(blake2b(identity_key(seed, identity), digest_size=16).digest(), "little")
        raw = np.random.PCG64(key).random_raw(count)
        # Centres of 2^52 intervals: never 0 or 1, where the normal quantile is infinite.
        uniform: NDArray[np.float64] = ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return uniform

    return kind.apply(image, severity, draw)


def draw_quality(name: str, ids: Sequence[str], seed: int, low: float, high: float) -> Tensor:
    """What a corruption leaves of each image, 1 - severity: one uniform draw per identity.

    It depends on the seed and the image's identity alone: not on the order of the list, nor on its other members. For
    the crop it is the side, as :func:`~.augmentation.crop_fractions` draws it.

    Args:
        name: Kind of corruption.
        ids: Identities of the images.
        seed: Seed of the corruption.
        low: Smallest severity.
        high: Largest severity, ``0 <= low <= high <= 1``.

    Returns:
        float64 ``[N]`` in [1 - high, 1 - low].

    Raises:
        ValueError: If the range is not one, or a crop of nothing is asked for.

    Example:
        >>> draw_quality("blur", ["a.png", "b.png"], 0, 0.6, 0.6).tolist()
        [0.4, 0.4]
    """
    check_range(name, low, high)
    least, most = round(1 - high, 12), round(1 - low, 12)
    return least + (most - least) * identity_uniform(ids, seed)


def check_range(name: str, low: float, high: float) -> None:
    """Check a range of severities.

    Raises:
        ValueError: If it is not within [0, 1], or leaves nothing of a crop.
    """
    if not 0 <= low <= high <= 1:
        raise ValueError(f"severities are from 0 to 1, the smaller first, not {low:g} to {high:g}")
    if name == CROP and high == 1:
        raise ValueError("a crop of severity 1 is empty; its side is 1 - severity")


def manifest_sha256(ids: Sequence[str], quality: Tensor, seed: int) -> str:
    """SHA-256 (hexadecimal) of how each image was corrupted, whatever their order.

    It covers the seed, then a line ``["id", severity]`` (JSON) per image in the order of the identities.
    """
    digest = hashlib.sha256(f"{seed}\n".encode())
    for identity, value in sorted(zip(ids, quality.tolist())):
        digest.update(json.dumps([identity, 1 - value]).encode() + b"\n")
    return digest.hexdigest()


__all__ = ["CORRUPTIONS", "CROP", "LEVELS", "Corruption", "check_range", "corrupt", "draw_quality", "manifest_sha256"]
