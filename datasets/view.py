"""What a network sees of a photograph: resized and cropped in evaluation, cropped and changed at random in training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .augmentation import TrainingAugmentation


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
        interpolation: ``bilinear`` or ``bicubic``, for every change of size: in evaluation, in training and before
            images are cached.

    Raises:
        ValueError: If ``resize`` is below ``image_size``, or the fit or the interpolation is unknown.
    """

    image_size: int = 224
    resize: int = 256
    fit: str = "crop"
    antialias: bool = True
    cache_side: int = 512
    cache: bool = True
    upright: bool = False
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if self.resize < self.image_size:
            raise ValueError(f"resize ({self.resize}) must not be below image_size ({self.image_size})")
        if self.fit not in ("crop", "squash"):
            raise ValueError(f"fit must be crop or squash, not {self.fit!r}")
        if self.interpolation not in ("bilinear", "bicubic"):
            raise ValueError(f"interpolation must be bilinear or bicubic, not {self.interpolation!r}")


def resize(image: Tensor, size: list[int], view: View, antialias: bool = True) -> Tensor:
    """Resize one image, uint8 ``[3, H, W]``, to ``[height, width]``, or to ``[side]``, that of its shorter side."""
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    out: Tensor = F.resize(image, size, InterpolationMode(view.interpolation), antialias=antialias)
    return out


def evaluation_view(image: Tensor, view: View) -> Tensor:
    """Resize one image for evaluation and cut out its centre square, or squash it into one: uint8 ``[3, S, S]``."""
    from torchvision.transforms.v2 import functional as F

    if view.fit == "squash":
        return resize(image, [view.image_size] * 2, view, view.antialias)
    out: Tensor = F.center_crop(resize(image, [view.resize], view, view.antialias), [view.image_size])
    return out


def cropped_view(image: Tensor, fraction: float, view: View) -> Tensor:
    """Crop a centred square from an original image and resize it for evaluation: less context, more blur.

    As in "Probabilistic Embeddings Revisited" (PER); its side is a fraction in (0, 1] of the shorter side.
    """
    from torchvision.transforms.v2 import functional as F

    side = max(1, round(fraction * min(image.shape[1:])))
    return evaluation_view(F.center_crop(image, [side]), view)


@dataclass(frozen=True)
class PhotoAugmentation(TrainingAugmentation):
    """Settings of the random resized crop, horizontal flip and colour jitter of training photographs.

    The defaults are those of "Probabilistic Embeddings Revisited" (PER).

    Attributes:
        area_low: Smallest area of a crop, as a share of the image's, in (0, area_high].
        area_high: Largest area of a crop, at most 1.
        ratio_low: Smallest width over height of a crop.
        ratio_high: Largest width over height of a crop.
        flip: Probability of a horizontal flip.
        brightness: Range b of the brightness factor, which is drawn from U[1 - b, 1 + b]; b is in [0, 1].
        contrast: Range of the contrast factor, likewise.
        saturation: Range of the saturation factor, likewise.

    Raises:
        ValueError: If a setting is out of its range.
    """

    area_low: float = 0.16
    area_high: float = 1.0
    ratio_low: float = 3 / 4
    ratio_high: float = 4 / 3
    flip: float = 0.5
    brightness: float = 0.25
    contrast: float = 0.25
    saturation: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.area_low <= self.area_high <= 1:
            raise ValueError(f"areas must satisfy 0 < low <= high <= 1, not {self.area_low}, {self.area_high}")
        if not 0 < self.ratio_low <= self.ratio_high:
            raise ValueError(f"ratios must satisfy 0 < low <= high, not {self.ratio_low}, {self.ratio_high}")
        for name in ("flip", "brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], not {getattr(self, name)}")


def crop_boxes(heights: Tensor, widths: Tensor, augmentation: PhotoAugmentation, u: Tensor) -> Tensor:
    """Draw the boxes of random resized crops (top, left, height, width) as torchvision's ``RandomResizedCrop`` does.

    A box has the first of ten draws of area and ratio (uniform and log-uniform) that fits into the image; if none does,
    it is the largest centred box whose ratio is in range. Of the uniform numbers ``u``, ``[B, 22]`` in [0, 1), ten
    pairs are for area and ratio, the last two for the position.
    """
    h0, w0 = heights.double()[:, None], widths.double()[:, None]
    a = augmentation
    area = h0 * w0 * (a.area_low + (a.area_high - a.area_low) * u[:, 0:20:2])
    ratio = (math.log(a.ratio_low) + (math.log(a.ratio_high) - math.log(a.ratio_low)) * u[:, 1:20:2]).exp()
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (w > 0) & (w <= w0) & (h > 0) & (h <= h0)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    w, h = w.gather(1, first).squeeze(1), h.gather(1, first).squeeze(1)
    h0, w0 = h0.squeeze(1), w0.squeeze(1)
    top, left = (u[:, 20] * (h0 - h + 1)).floor(), (u[:, 21] * (w0 - w + 1)).floor()
    own = w0 / h0
    fallback_w = torch.where(own > a.ratio_high, (h0 * a.ratio_high).round(), w0)
    fallback_h = torch.where(own < a.ratio_low, (w0 / a.ratio_low).round(), h0)
    fitted = fits.any(1)
    w, h = torch.where(fitted, w, fallback_w), torch.where(fitted, h, fallback_h)
    top = torch.where(fitted, top, ((h0 - h) / 2).floor())
    left = torch.where(fitted, left, ((w0 - w) / 2).floor())
    return torch.stack([top, left, h, w], 1).long()


_GREY = (0.2989, 0.587, 0.114)
_GREY_ROW = torch.tensor([_GREY])


def colour_jitter(image: Tensor, factors: Sequence[float], order: Sequence[int]) -> Tensor:
    """Change brightness, contrast and saturation in place and in some order, as torchvision's ``adjust_*`` do.

    It works on one image at a time, float ``[3, H, W]`` in [0, 1]: an image stays in the processor's cache, a batch
    does not. A factor of 1 changes nothing.
    """
    pixels = image.view(3, -1)
    for change in order:
        factor = factors[change]
        if factor == 1:
            continue
        if change == 0:
            pixels.mul_(factor)
        elif change == 1:
            mean = sum(w * m for w, m in zip(_GREY, pixels.mean(1).tolist()))
            pixels.mul_(factor).add_((1 - factor) * mean)
        else:
            torch.lerp(torch.mm(_GREY_ROW, pixels), pixels, factor, out=pixels)
        pixels.clamp_(0, 1)
    return image


def finished(pixels: Tensor, flip: Tensor, factors: Tensor, order: Sequence[int]) -> Tensor:
    """Flip, scale and jitter crops on their device, all at once: what :func:`colour_jitter` does to one at a time.

    The pixels are uint8 ``[B, 3, H, W]``, the flips bool ``[B]``, and the factors float64 ``[B, 3]``; the latter two
    are on the CPU.
    """

    def beside(values: Tensor) -> Tensor:
        values = values.pin_memory() if pixels.is_cuda else values
        return values.to(pixels.device, non_blocking=True).view(-1, 1, 1, 1)

    images = torch.where(beside(flip), pixels.flip(3), pixels).float().div_(255)
    for change in order:
        factor = beside(factors[:, change].float())
        if change == 0:
            images.mul_(factor)
        elif change == 1:
            mean = _grey(images.mean((2, 3), keepdim=True))
            images.mul_(factor).add_((1 - factor) * mean)
        else:
            images = torch.lerp(_grey(images), images, factor)
        images.clamp_(0, 1)
    return images


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.split(1, 1)
    grey: Tensor = _GREY[0] * red + _GREY[1] * green + _GREY[2] * blue
    return grey
