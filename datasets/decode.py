"""Reading image files: the one place that opens them."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .files import DataError, check_regular

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM")
"""Formats that are read, whatever a file's name says; PPM is the whole PNM family. Others, such as EPS, start programs.

AVIF is read too if Pillow was built with it, HEIF if the package pillow-heif is installed.
"""

MAX_PIXELS = 100_000_000
"""Most pixels of an image that is decoded, unless ``BENCH_MAX_PIXELS`` gives another number."""

_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")

_STARTS = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF.{4}WEBP|BM.{4}\0{4}|.{4}ftyp(avif|avis|%s)"
    % b"|".join(_HEIF_BRANDS),
    re.DOTALL,
)
"""First bytes of image files, but for TIFF, as which camera makers store raw images, and PNM, which reads as text."""


@contextmanager
def open_image(path: Path) -> Iterator[Image]:
    """Open an image file (of several frames the first) and check its header; pixels are decoded when asked for.

    Raises:
        DataError: If it is not a regular file of one of :data:`FORMATS`, is damaged, truncated or larger than the
            limit; also for whatever goes wrong in the body of the ``with`` statement, which decodes.
    """
    from PIL import Image, UnidentifiedImageError

    limit = pixel_limit()
    if Image.MAX_IMAGE_PIXELS is not None and limit > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = limit  # PIL warns above its own limit, and refuses twice of it
    check_regular(path)
    try:
        # From memory: of a file, decoders ask for as many bytes as it claims, and Python allocates them first.
        largest = 8 * max(limit, MAX_PIXELS)
        if path.stat().st_size > largest:
            raise DataError(f"{path}: larger than {largest / 1e6:g} MB; make it smaller, or raise BENCH_MAX_PIXELS")
        with Image.open(io.BytesIO(path.read_bytes()), formats=_formats()) as image:
            if image.width * image.height > limit:
                raise Image.DecompressionBombError
            yield image
    except DataError:
        raise
    except Image.DecompressionBombError:
        raise DataError(
            f"{path}: more than {limit / 1e6:g} million pixels; make it smaller, or set BENCH_MAX_PIXELS to read it"
        ) from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not a readable image ({_unknown_format(path)})") from None
    except Exception as error:  # decoders raise errors of any kind on damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: not a readable image ({reason})") from None


_BITS, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
"""Tags of TIFF."""


def begins_as_image(path: str) -> bool:
    """Check by its first bytes if a file is an image that can be read, whatever its name."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            start = _STARTS.match(file.read(16))
    except OSError:
        return False
    brand = start and start[1]
    return bool(start) and (not brand or ("AVIF" if brand in (b"avif", b"avis") else "HEIF") in _formats())


def pixel_limit() -> int:
    """Most pixels of an image that is decoded: ``$BENCH_MAX_PIXELS``, or :data:`MAX_PIXELS`."""
    text = os.environ.get("BENCH_MAX_PIXELS")
    if not text:
        return MAX_PIXELS
    try:
        limit = int(float(text))
    except (ValueError, OverflowError):
        limit = 0
    if limit < 1:
        raise DataError(f"BENCH_MAX_PIXELS={text} is not a number of pixels, such as 200000000")
    return limit


def decode(path: Path, upright: bool = False) -> Tensor:
    """Read an image file as RGB, uint8 ``[3, H, W]`` with the strides of channels-last memory.

    Greyscale, palette and CMYK images are converted, transparency is dropped, and 12 or 16 bits are scaled to 8.
    ``upright`` turns the image as its EXIF orientation says, which the public code of the benchmarked papers ignores.

    Raises:
        DataError: If the file cannot be read (:func:`open_image`), has more than 16 bits, or has a side of one pixel.
    """
    with open_image(path) as image:
        return to_rgb(image, upright, str(path))


def to_rgb(image: Image, upright: bool = False, name: str = "image") -> Tensor:
    """Convert an open PIL image to RGB as :func:`decode` does, uint8 ``[3, H, W]``.

    Raises:
        DataError: If it has more than 16 bits or a side of one pixel; the message starts with its name.
    """
    pixels = _eight_bits(image, name)
    if upright:
        pixels = _turned(pixels, image)
    if min(pixels.shape[:2]) < 2:
        raise DataError(
            f"{name}: an image of {pixels.shape[1]} x {pixels.shape[0]} pixels has no content to learn from"
        )
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def _eight_bits(image: Image, name: str) -> np.ndarray:
    """Pixels as RGB, uint8 ``[H, W, 3]``."""
    tags = getattr(image, "tag_v2", {})  # of TIFF
    if 2 in np.ravel(tags.get(_SAMPLE_FORMAT, 1)):
        raise DataError(f"{name}: pixels with a sign are not supported; convert it to 8 or 16 bits without one")
    if not image.mode.startswith(("I", "F")):
        return np.asarray(image.convert("RGB"))
    # PNG and PNM of 16 bits may be opened with 32, all other images in these modes may have any range.
    if not image.mode.startswith("I;16") and (image.mode, image.format) not in (("I", "PNG"), ("I", "PPM")):
        raise DataError(f"{name}: {image.mode} pixels (more than 16 bits) are not supported; convert it to 8 or 16")
    wide = np.asarray(image).astype(np.uint32)
    most = 2 ** int(np.ravel(tags.get(_BITS, 16))[0]) - 1
    if tags.get(_PHOTOMETRIC) == 0:  # white is zero, which Pillow heeds up to 8 bits
        wide = most - wide
    grey = ((255 * wide + most // 2) // most).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _turned(pixels: np.ndarray, image: Image) -> np.ndarray:
    """Pixels ``[H, W, 3]`` turned and mirrored as the EXIF data of their image say."""
    from PIL import ExifTags

    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # of damaged EXIF data, which viewers ignore too
        orientation = 1
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


@cache
def _formats() -> tuple[str, ...]:
    from PIL import Image, features

    # Its second limit, twice the first, raises; between the two our own limit has refused the image already.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    warnings.filterwarnings("ignore", "Corrupt EXIF data", category=UserWarning)
    found = (*FORMATS, "AVIF") if features.check("avif") else FORMATS
    if importlib.util.find_spec("pillow_heif") is None:
        return found
    from pillow_heif import register_heif_opener

    register_heif_opener()
    return (*found, "HEIF")


def _unknown_format(path: Path) -> str:
    """Reason why no reader took a file."""
    with path.open("rb") as file:
        head = file.read(12)
    if head[4:8] == b"ftyp" and head[8:] in _HEIF_BRANDS and "HEIF" not in _formats():
        return "HEIC needs the package pillow-heif: `pip install 'probembed[heic]'`, or convert it to JPEG"
    if head.startswith((b"II*\0", b"MM\0*")):
        return "damaged, or a TIFF of a rare kind, such as 10 or 14 bits; convert it to 8 or 16 bits, or remove it"
    return "damaged, or none of JPEG, PNG, WebP, GIF, TIFF, BMP, PNM; convert or remove it"
