"""Augmentation of small training images by random crops, shifts and rotations, and centre crops of any images.

Both are one bilinear affine warp per batch. Coordinates are those of ``grid_sample`` with
``align_corners=False``: the image spans [-1, 1] on both axes from edge to edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class TrainingAugmentation:
    """Base class for the settings of the random augmentation of training images.

    A subclass is a frozen dataclass that checks its values when it is made.
    """


@dataclass(frozen=True)
class Augmentation(TrainingAugmentation):
    """Settings of the random crops, shifts and rotations of small training images (:func:`augment`).

    Attributes:
        crop_probability: Probability that an image is cropped, in [0, 1].
        crop_low: Smallest side of a crop, as a fraction of the image's side, in (0, crop_high].
        crop_high: Largest side of a crop, as such a fraction, in [crop_low, 1].
        shift: Largest shift along each axis, as a fraction of the image's side along the axis, in [0, 1].
        rotation: Largest rotation in degrees, in [0, 180].

    Raises:
        ValueError: If a setting is out of its range.
    """

    crop_probability: float = 0.5
    crop_low: float = 0.5
    crop_high: float = 1.0
    shift: float = 0.1
    rotation: float = 5.0

    def __post_init__(self) -> None:
        if not 0 <= self.crop_probability <= 1:
            raise ValueError(f"crop_probability must be in [0, 1], not {self.crop_probability}")
        if not 0 < self.crop_low <= self.crop_high <= 1:
            raise ValueError(
                f"crop sides must satisfy 0 < low <= high <= 1, not low={self.crop_low} high={self.crop_high}"
            )
        if not 0 <= self.shift <= 1:
            raise ValueError(f"shift must be in [0, 1], not {self.shift}")
        if not 0 <= self.rotation <= 180:
            raise ValueError(f"rotation must be in [0, 180] degrees, not {self.rotation}")


def augment(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Crop, rotate and shift images ``[B, C, H, W]`` at random; those that are not moved are returned bit for bit.

    They are floating point, with a background of 0 (before normalisation). A crop is a window of the image's own aspect
    ratio, anywhere inside the image, enlarged to the full size. It is then rotated about its centre and shifted; pixels
    from outside the image are 0. The generator gives 7 numbers per image, whatever the settings are.
    """
    u = torch.rand(len(images), 7, generator=generator, device=generator.device, dtype=torch.float64)
    u = u.to(images.device)
    low, high = augmentation.crop_low, augmentation.crop_high
    side = torch.where(u[:, 0] < augmentation.crop_probability, low + (high - low) * u[:, 1], 1.0)
    centre = (2 * u[:, 2:4] - 1) * (1 - side)[:, None]
    shift = (2 * u[:, 4:6] - 1) * (2 * augmentation.shift)
    angle = (2 * u[:, 6] - 1) * math.radians(augmentation.rotation)
    return _warp(images, side, centre, shift, angle)


def centre_crop(images: Tensor, fraction: Tensor) -> Tensor:
    """Crop the centre of images ``[B, C, H, W]`` and enlarge it to the full size: less context, more blur.

    ``fraction`` is the side of each crop as a fraction of the image's side on both axes, ``[B]`` in (0, 1], else a
    ValueError is raised; 1 gives the image itself, bit for bit.
    """
    if fraction.shape != images.shape[:1]:
        raise ValueError(f"{len(images)} images need as many fractions, not shape {list(fraction.shape)}")
    if not bool(((fraction > 0) & (fraction <= 1)).all()):
        raise ValueError("crop fractions must be in (0, 1]")
    side = fraction.to(images.device, torch.float64)
    still = torch.zeros_like(side)
    return _warp(images, side, still[:, None].expand(-1, 2), still[:, None].expand(-1, 2), still)


def _warp(images: Tensor, side: Tensor, centre: Tensor, shift: Tensor, angle: Tensor) -> Tensor:
    """Show the window of each image, rotated and then shifted; outside the image is 0.

    A window has a side ``[B]`` (1 = the whole image) and a centre ``[B, 2]`` (x, y); the result is shifted by ``[B,
    2]``, of which 2 is a whole side, and rotated clockwise by radians ``[B]``.
    """
    _, _, height, width = images.shape
    cos, sin = torch.cos(angle), torch.sin(angle)
    # The warp maps places of the result to places of the image, hence the inverse of rotation and shift.
    # Rotation acts on pixels, the coordinates are relative to the sides: width and height convert.
    xx, xy = side * cos, side * sin * (height / width)
    yx, yy = -side * sin * (width / height), side * cos
    x0 = centre[:, 0] - xx * shift[:, 0] - xy * shift[:, 1]
    y0 = centre[:, 1] - yx * shift[:, 0] - yy * shift[:, 1]
    xx, xy, x0, yx, yy, y0 = (v.to(images.dtype)[:, None, None] for v in (xx, xy, x0, yx, yy, y0))

    x = _pixel_centres(width, images)[None, None, :]
    y = _pixel_centres(height, images)[None, :, None]
    grid = torch.stack([xx * x + xy * y + x0, yx * x + yy * y + y0], dim=-1)
    warped = functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    # Interpolation rounds even if nothing is moved.
    moved = (side != 1) | (angle != 0) | (shift != 0).any(1) | (centre != 0).any(1)
    return torch.where(moved[:, None, None, None], warped, images)


def _pixel_centres(size: int, like: Tensor) -> Tensor:
    steps = torch.arange(size, dtype=torch.float64, device=like.device)
    return ((2 * steps + 1) / size - 1).to(like.dtype)
