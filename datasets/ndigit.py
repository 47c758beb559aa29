"""Three-digit numbers composed of scikit-learn's handwritten digits: nothing to download, quick to train on.

A class is a number, such as 047. Its images are three 8x8 digits side by side, each moved by up to a pixel,
under Gaussian noise that keeps the task from being solved. Some of the 1000 numbers are the classes, in a
fixed order.

**Source digits.** The 1797 digits are divided into pools for test (50 %), training (37.5 %) and validation
(12.5 %), stratified by digit, and an image takes its digits from the pool of its part. So no
handwriting is shared between training, validation and test, in any fold. A class that trains in one fold and
validates in another therefore has different images in the two; the part is in the identity,
``<name>/<part>/<number>/<index>``.

**Reproducibility.** An image is a function of its identity alone (:mod:`~bench.datasets.identity_draws`).

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998), its test part as in
``sklearn.datasets.load_digits``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from .array_images import ArrayImages, EmbeddedDataset, Part
from .dataset import register_dataset
from .identity_draws import raw_numbers, standard_normal, uniform_integers
from .scanned_digits import scanned_digits

SEED = 1234
"""Seed of the order of the classes and of the division of the source digits."""

NOISE_SD = 40.0
"""Standard deviation of the noise, in grey levels of 255."""

DIGITS = 3
SIDE = 8
"""Side of a source digit in pixels."""

PAD = 1
"""Margin around the digits, and the farthest that a digit is moved, in pixels."""

_DRAWS = 3 * DIGITS
"""Raw numbers of an image before its noise: which digit, and how it is moved on both axes, for each place."""


def source_digits(ids: Iterable[str]) -> NDArray[np.int64]:
    """Find the handwritten digits that images of three-digit numbers are made of.

    Args:
        ids: N identities of images of ``ndigit``, ``ndigit_quick`` or ``ndigit_smoke``, such as
            ``"ndigit/test/047/3"``.

    Returns:
        int64 ``[N, 3]``, positions in ``sklearn.datasets.load_digits``, for the digits from left to right.
    """
    identities = list(ids)
    return _sources(identities, raw_numbers(identities, _DRAWS))


def compose(ids: Iterable[str], *, upsample: bool) -> NDArray[np.uint8]:
    """Make images, uint8 ``[N, 18, 50]`` if upsampled, else ``[N, 10, 26]``, from their identities alone."""
    identities = list(ids)
    cell = SIDE * (2 if upsample else 1)
    height, width = cell + 2 * PAD, DIGITS * cell + 2 * PAD
    raw = raw_numbers(identities, _DRAWS + height * width)
    cells = _cells(upsample)[_sources(identities, raw)]
    moves = uniform_integers(raw[:, DIGITS:_DRAWS], 2 * PAD + 1).reshape(-1, DIGITS, 2)

    canvas = np.zeros((len(identities), height, width))
    for place in range(DIGITS):
        for top in range(2 * PAD + 1):
            for left in range(2 * PAD + 1):
                rows = np.flatnonzero((moves[:, place] == (top, left)).all(1))
                x = left + place * cell
                window = canvas[rows, top : top + cell, x : x + cell]
                # Neighbours that were moved towards each other overlap by up to two pixels.
                canvas[rows, top : top + cell, x : x + cell] = np.maximum(window, cells[rows, place])

    noise = NOISE_SD * standard_normal(raw[:, _DRAWS:]).reshape(canvas.shape)
    pixels: NDArray[np.uint8] = np.clip(np.rint(canvas + noise), 0, 255).astype(np.uint8)
    return pixels


@lru_cache(maxsize=8)
def _pixels(ids: tuple[str, ...], upsample: bool) -> NDArray[np.uint8]:
    """Images that the next job of this process may need again."""
    return compose(ids, upsample=upsample)


def _sources(ids: Sequence[str], raw: NDArray[np.uint64]) -> NDArray[np.int64]:
    pools = _pools()
    chosen = [[pools[part, int(d)] for d in number] for _, part, number, _ in (i.split("/") for i in ids)]
    sizes = np.array([[len(pool) for pool in row] for row in chosen], dtype=np.int64).reshape(-1, DIGITS)
    picks = uniform_integers(raw[:, :DIGITS], sizes)
    sources = [[pool[pick] for pool, pick in zip(row, line)] for row, line in zip(chosen, picks)]
    return np.array(sources, dtype=np.int64).reshape(-1, DIGITS)


@lru_cache(maxsize=1)
def _pools() -> dict[tuple[str, int], NDArray[np.int64]]:
    """Rows of the source digits by part and digit: test 1/2, validation 1/8, training the rest."""
    target = scanned_digits()[1]
    # Ranking by raw bits is a shuffle that is the same in every version of numpy.
    order = np.argsort(np.random.PCG64([SEED, 1]).random_raw(len(target)), kind="stable")
    pools = {}
    for digit in range(10):
        rows = order[target[order] == digit]
        test, val = round(len(rows) / 2), round(len(rows) / 8)
        parts = zip(("test", "val", "train"), np.split(rows, [test, test + val]))
        pools.update({(part, digit): block for part, block in parts})
    return pools


@lru_cache(maxsize=2)
def _cells(upsample: bool) -> NDArray[np.float64]:
    """Handwritten digits in grey levels, ``[1797, 8, 8]`` or enlarged ``[1797, 16, 16]``.

    Grey levels and weights are small multiples of powers of two: sums are exact in any order.
    """
    cells: NDArray[np.float64] = scanned_digits()[0].reshape(-1, SIDE, SIDE) * np.float64(255 / 16)
    return _twice(_twice(cells, axis=1), axis=2) if upsample else cells


def _twice(images: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Bilinear enlargement of one axis, aligned at the edges: each pixel becomes two, weights 3/4 and 1/4."""
    size = images.shape[axis]
    at = np.arange(size)
    before = np.take(images, np.maximum(at - 1, 0), axis)
    after = np.take(images, np.minimum(at + 1, size - 1), axis)
    pairs = np.stack([0.75 * images + 0.25 * before, 0.75 * images + 0.25 * after], axis=axis + 1)
    shape = list(images.shape)
    shape[axis] = 2 * size
    return pairs.reshape(shape)


class _Numbers(EmbeddedDataset):
    """Base class of the data sets of numbers."""

    licence = "CC BY 4.0"
    citation = "Alpaydin, Kaynak: Optical Recognition of Handwritten Digits, UCI 1998"
    images_per_class: ClassVar[int]
    upsample: ClassVar[bool]

    def images(self, part: Part, classes: Sequence[int]) -> ArrayImages:
        order = np.argsort(np.random.PCG64(SEED).random_raw(10**DIGITS), kind="stable")
        names = [f"{order[c]:0{DIGITS}d}" for c in classes]
        ids = [f"{self.name}/{part}/{name}/{i}" for name in names for i in range(self.images_per_class)]
        labels = torch.arange(len(names)).repeat_interleave(self.images_per_class)
        pixels = torch.from_numpy(_pixels(tuple(ids), self.upsample).copy())[:, None]
        return ArrayImages(pixels, labels, ids, names, mean=(self.mean,), std=(self.std,))


@register_dataset
class NDigit(_Numbers):
    """The default data set, which comes with the installation: 500 numbers x 8 images.

    An image shows three of scikit-learn's handwritten digits under noise; its class is the number that they form. 187
    classes train, 63 validate, 250 test.
    """

    name = "ndigit"
    summary = "500 three-digit handwritten numbers x 8 images of 18x50, noisy; nothing to download"
    image_size = (18, 50)
    classes = 500
    images_per_class = 8
    upsample = True
    mean = 0.2904
    std = 0.3102


@register_dataset
class NDigitQuick(_Numbers):
    """Half the training time of ``ndigit``: 200 numbers x 10 images; 75 classes train, 25 validate, 100 test.

    An image shows three of scikit-learn's handwritten digits under noise; its class is the number that they form.
    """

    name = "ndigit_quick"
    summary = "200 three-digit handwritten numbers x 10 images of 18x50, noisy; half the time of ndigit"
    image_size = (18, 50)
    classes = 200
    images_per_class = 10
    upsample = True
    mean = 0.2893
    std = 0.3097


@register_dataset
class NDigitSmoke(_Numbers):
    """Small images for quick checks: 300 numbers x 8 images; 112 classes train, 38 validate, 150 test.

    An image shows three of scikit-learn's handwritten digits under noise; its class is the number that they form.
    """

    name = "ndigit_smoke"
    summary = "300 three-digit handwritten numbers x 8 images of 10x26, noisy; for quick checks"
    image_size = (10, 26)
    classes = 300
    images_per_class = 8
    upsample = False
    mean = 0.2603
    std = 0.3308
