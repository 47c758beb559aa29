"""Reading image files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import DataError


def decode(path: Path) -> Tensor:
    """Read an image file as RGB.

    Greyscale, palette and CMYK images are converted. EXIF orientation is ignored, as in the public code of the
    benchmarked papers.

    Args:
        path: Path of the image file.

    Returns:
        uint8 ``[3, H, W]``, with the strides of channels-last memory.

    Raises:
        DataError: If the file is missing, damaged, of more than 8 bits per channel, or has a side of one pixel.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise DataError(
                    f"{path}: {image.mode} pixels (more than 8 bits) are not supported; convert it to 8 bits"
                )
            pixels = np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a readable image ({error})") from None
    if min(pixels.shape[:2]) < 2:
        raise DataError(
            f"{path}: an image of {pixels.shape[1]} x {pixels.shape[0]} pixels has no content to learn from"
        )
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


__all__ = ["decode"]
