"""Applying a corruption to the images of a set, or to the pixels of one image."""

from __future__ import annotations

import torch
from torch import Tensor

from ..image_set import ImageSet
from ._base import CROP, identity_draw


def corrupted(images: ImageSet, name: str, index: Tensor, quality: Tensor, seed: int) -> Tensor:
    """Corrupted images of a set at positions ``[B]``, float32 ``[B, C, H, W]``, as by :meth:`.ImageSet.normalised`.

    ``quality`` ``[B]`` is 1 - severity of each image, in [0, 1], above 0 for the crop; 1 is the clean image, bit for
    bit. The random numbers of an image depend on the seed and its identity alone. An unknown name or a quality out of
    range is a ValueError.
    """
    if name == CROP:
        return images.cropped(index, quality)

    def one(item: tuple[Tensor, float, int]) -> Tensor:
        pixels, severity, place = item
        return corrupt(name, pixels, severity, images.ids[place], seed)

    items = list(zip(images.pixels_of(index), (1 - quality).tolist(), index.tolist()))
    return images.normalised(torch.stack(list(images.map(one, items))))


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
    if kind is None or kind.apply is None:
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


__all__ = ["corrupt", "corrupted"]
