"""Characters in the twelve DejaVu fonts that ship with matplotlib: many classes of unequal size, as in SOP.

A class is a character; its images are the character in up to twelve fonts. Each is cropped to its ink before
it is resized: with a margin, a centre crop would only enlarge the character instead of taking parts of it
away.

Left out are characters without ink of their own (spaces, controls, combining marks, private use),
superscripts and subscripts (the same as their base once size is taken away), and whatever cannot be told
apart: characters that look alike in DejaVu Sans (Latin A and Greek Alpha; the lowest code point stays), and
images that repeat an earlier one.

Pixels depend slightly on the FreeType that Pillow was built with; :meth:`ImageSet.manifest_sha256` tells.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from .array_images import ArrayImages, EmbeddedDataset, Part
from .dataset import register_dataset

FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSerif-BoldItalic",
)

SEED = 1234
"""Seed of the order of the classes, and of the number and choice of their images."""

NUM_CLASSES = 1000
SIDE = 32
"""Side of an image in pixels; the longer side of a character fills it."""

MIN_FONTS = 8
"""Fonts in which a character must look different, for it to be a class."""

IMAGES_PER_CLASS = (2, 12)
"""Fewest and most images of a class."""

EM = 48
"""Size at which characters are drawn before they are resized, in pixels per em."""


_SHRUNK = ("<super>", "<sub>")


def _rank(*what: object) -> int:
    """Fixed pseudo-random 64-bit number of something."""
    key = "|".join(map(str, ("glyphs", SEED, *what)))
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little")


def _is_candidate(code: int) -> bool:
    character = chr(code)
    if unicodedata.category(character)[0] in "CMZ":
        return False
    return not unicodedata.decomposition(character).startswith(_SHRUNK)


def render(character: str, font: ImageFont.FreeTypeFont) -> bytes | None:
    """Draw a character, cropped to its ink, centred in 32 x 32 bytes, white on black; None if it has no ink."""
    left, top, right, bottom = (round(edge) for edge in font.getbbox(character))
    if right <= left or bottom <= top:
        return None
    # Anti-aliased edges may reach past the box that the font reports.
    canvas = Image.new("L", (right - left + 4, bottom - top + 4))
    ImageDraw.Draw(canvas).text((2 - left, 2 - top), character, fill=255, font=font)
    ink = canvas.getbbox()
    if ink is None:
        return None
    width, height = ink[2] - ink[0], ink[3] - ink[1]
    scale = SIDE / max(width, height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    image = Image.new("L", (SIDE, SIDE))
    resized = canvas.resize(size, Image.Resampling.BILINEAR, box=ink)
    image.paste(resized, ((SIDE - size[0]) // 2, (SIDE - size[1]) // 2))
    return image.tobytes()


@lru_cache(maxsize=1)
def _all_images() -> tuple[tuple[int, dict[str, bytes]], ...]:
    """Code point and images by font of every class, in the order of the classes."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    paths = {name: str(folder / f"{name}.ttf") for name in FONTS}
    # Basic layout: the other depends on whether a shaping library is installed.
    fonts = {name: ImageFont.truetype(path, EM, layout_engine=ImageFont.Layout.BASIC) for name, path in paths.items()}
    charmaps = {name: FT2Font(path).get_charmap() for name, path in paths.items()}
    counts = Counter(code for charmap in charmaps.values() for code in charmap)
    candidates = sorted(code for code, count in counts.items() if count >= MIN_FONTS and _is_candidate(code))

    reference = FONTS[0]
    first: dict[bytes, int] = {}
    for code in candidates:
        image = render(chr(code), fonts[reference]) if code in charmaps[reference] else None
        if image is not None:
            first.setdefault(image, code)

    classes: list[tuple[int, dict[str, bytes]]] = []
    seen: set[bytes] = set()
    for code in sorted(first.values(), key=_rank):
        images: dict[str, bytes] = {}
        for name in FONTS:
            image = render(chr(code), fonts[name]) if code in charmaps[name] else None
            if image is not None and image not in seen and image not in images.values():
                images[name] = image
        if len(images) < MIN_FONTS:
            continue
        seen.update(images.values())
        low, high = IMAGES_PER_CLASS
        wanted = low + _rank(code, "images") % (high - low + 1)
        chosen = set(sorted(images, key=lambda name: _rank(code, name))[:wanted])
        classes.append((code, {name: image for name, image in images.items() if name in chosen}))
        if len(classes) == NUM_CLASSES:
            return tuple(classes)
    raise RuntimeError(f"matplotlib's DejaVu fonts gave {len(classes)} characters, {NUM_CLASSES} are needed")


@register_dataset
class Glyphs(EmbeddedDataset):
    """1000 characters as classes, each in 2 to 12 fonts: 375 for training, 125 for validation, 500 for the test.

    The 32 x 32 images are drawn with the DejaVu fonts that come with matplotlib; there is nothing to download.
    """

    name = "glyphs"
    summary = "1000 characters in 2-12 DejaVu fonts each, 32x32, unequal classes; nothing to download"
    licence = "free (Bitstream Vera)"
    citation = "the DejaVu fonts, dejavu-fonts.github.io"
    image_size = (SIDE, SIDE)
    classes = NUM_CLASSES
    mean = 0.2844
    std = 0.4078

    def images(self, part: Part, classes: Sequence[int]) -> ArrayImages:
        """Images of the given classes, in memory of their own."""
        chosen = [_all_images()[c] for c in classes]
        ids = [f"glyphs/U+{code:04X}/{name}" for code, images in chosen for name in images]
        pixels = np.frombuffer(b"".join(i for _, images in chosen for i in images.values()), dtype=np.uint8)
        labels: Tensor = torch.arange(len(chosen)).repeat_interleave(torch.tensor([len(i) for _, i in chosen]))
        names = [f"U+{code:04X}" for code, _ in chosen]
        copied = torch.from_numpy(pixels.reshape(-1, 1, SIDE, SIDE).copy())
        return ArrayImages(copied, labels, ids, names, mean=(self.mean,), std=(self.std,))
