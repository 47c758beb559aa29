"""Resizing and cropping of photographs to the square input of a network in evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class View:
    """Settings of how photographs are resized, cropped and cached; recorded with every result.

    Attributes:
        image_size: Side S of the network's input, pixels.
        resize: Shorter side of an image before its centre crop in evaluation, pixels; at least S.
        fit: ``crop`` evaluates the centre square; ``squash`` the whole image, its sides made equal (``resize`` is then
            not used): for long objects whose ends a crop would cut off.
        antialias: Whether evaluation resizes with antialiasing; "Probabilistic Embeddings Revisited" (PER) did not
            (torchvision 0.11 on tensors).
        cache_side: Shorter side to which larger training images are reduced before they are cached, pixels.
        cache: Whether decoded pixels are kept in files; if not, originals are decoded every time.
        upright: Whether images are turned as their EXIF orientation says, as viewers do. The public code of the
            benchmarked papers ignores it.

    Raises:
        ValueError: If ``resize`` is below ``image_size``, or the fit is unknown.
    """

    image_size: int = 224
    resize: int = 256
    fit: str = "crop"
    antialias: bool = True
    cache_side: int = 512
    cache: bool = True
    upright: bool = False

    def __post_init__(self) -> None:
        if self.resize < self.image_size:
            raise ValueError(f"resize ({self.resize}) must not be below image_size ({self.image_size})")
        if self.fit not in ("crop", "squash"):
            raise ValueError(f"fit must be crop or squash, not {self.fit!r}")


def resize(image: Tensor, size: list[int], antialias: bool = True) -> Tensor:
    """Resize one image, uint8 ``[3, H, W]``, to ``[height, width]``, or to ``[side]``, that of its shorter side."""
    from torchvision.transforms.v2 import functional as F

    out: Tensor = F.resize(image, size, antialias=antialias)
    return out


def evaluation_view(image: Tensor, view: View) -> Tensor:
    """Resize one image for evaluation and cut out its centre square, or squash it into one: uint8 ``[3, S, S]``."""
    from torchvision.transforms.v2 import functional as F

    if view.fit == "squash":
        return resize(image, [view.image_size] * 2, view.antialias)
    out: Tensor = F.center_crop(resize(image, [view.resize], view.antialias), [view.image_size])
    return out


def cropped_view(image: Tensor, fraction: float, view: View) -> Tensor:
    """Crop a centred square from an original image and resize it for evaluation: less context, more blur.

    As in "Probabilistic Embeddings Revisited" (PER); its side is a fraction in (0, 1] of the shorter side.
    """
    from torchvision.transforms.v2 import functional as F

    side = max(1, round(fraction * min(image.shape[1:])))
    return evaluation_view(F.center_crop(image, [side]), view)


__all__ = ["View", "cropped_view", "evaluation_view", "resize"]
