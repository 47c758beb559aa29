"""Handwritten digits seen through a known channel, so that the probability of every identity is known exactly.

A class, here called an identity, is one of scikit-learn's 1797 scanned digits: two scans of a 3 are two identities.
An image is what a channel makes of the scan of its identity. The channel moves the digit, shows the whole image, its
centre or all but one side of it, and adds Gaussian noise of one of two strengths; grey levels are then rounded and
cut off at 0 and 255. Scans of the same digit look alike, so some images leave the identity open and others do not.

**Posterior.** An observer who knows the scans of all test identities and the channel knows the probability of every
image given an identity. It is a mean over the finitely many things that the channel can do; each gives a product
over pixels of the probability that a Gaussian falls into a bin of rounding. Test identities are equally likely, so
Bayes' rule gives the probability of every identity given an image, ``ImageSet.posterior``. Nothing is approximated.

**Queries and gallery.** The queries of the test come from the whole channel. The gallery has images of the same
identities that are complete and have little noise. The posterior of a query does not depend on the gallery: an
observer who knows the scans learns nothing from it.

**Source digits.** Training, validation and test have different identities, so they share no scan.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998), its test part as in
``sklearn.datasets.load_digits``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import log_ndtr, logsumexp, softmax
from torch import Tensor

from .array_images import ArrayImages, EmbeddedDataset, Part
from .dataset import register_dataset
from .identity_draws import raw_numbers, standard_normal, uniform_integers
from .scanned_digits import scanned_digits

View = Literal["whole", "centre", "left", "right", "top", "bottom"]

SEED = 1234
"""Seed of the choice and order of the identities."""

IDENTITIES = 1000
"""Scans that serve as identities: 375 for training, 125 for validation, 500 for the test."""

SCAN = 8
"""Side of a scan in pixels."""

SHIFT = 1
"""Farthest that a digit is moved on either axis, in pixels, which is also the margin around it."""

SIDE = SCAN + 2 * SHIFT
"""Side of an observed image in pixels."""

PIXELS = SIDE * SIDE

LEVELS = 17
"""Grey levels of a scan, 0 to 16."""

CENTRE = 6
"""Side of the centre that is enlarged to the whole image if nothing else is shown, in pixels."""

SHOWN = 7
"""Rows or columns of an image that stay if its other side turns dark."""

REPEAT = 2
"""Copies of a pixel on either axis in the images that a network sees."""


_QUERIES_AT_ONCE = 64


@dataclass(frozen=True)
class Channel:
    """A random way from a scan to an observed image of 10 x 10 pixels, of which every probability is known.

    The digit is moved by -1, 0 or 1 pixels on either axis; a view of the result is taken; Gaussian noise is added; grey
    levels are rounded to whole numbers and cut off at 0 and 255. Moves, views and strengths of noise are independent of
    one another and of the identity, and uniform; a view that is named n times has n times the chance.

    Views are ``whole``; ``centre``, the 6 x 6 pixels there, enlarged by repeating some; or the side of which 7 rows or
    columns stay (``left``, ``right``, ``top``, ``bottom``), while the others turn dark. Noise is in grey levels of 255.
    """

    views: tuple[View, ...]
    noise_sds: tuple[float, ...]

    @cached_property
    def actions(self) -> NDArray[np.int64]:
        """Source of every pixel for every move and view, ``[A, 100]``: a pixel of the scan, or 64 for a dark one."""
        frame = np.full((SIDE + 2 * SHIFT, SIDE + 2 * SHIFT), SCAN * SCAN)
        frame[2 * SHIFT : -2 * SHIFT, 2 * SHIFT : -2 * SHIFT] = np.arange(SCAN * SCAN).reshape(SCAN, SCAN)
        moves = range(2 * SHIFT + 1)
        # A digit that starts further down is seen through a window that starts further up.
        windows = [slice(2 * SHIFT - move, 2 * SHIFT - move + SIDE) for move in moves]
        moved = [frame[rows, columns] for rows in windows for columns in windows]
        return np.stack([_seen(view, image) for view in self.views for image in moved]).reshape(-1, PIXELS)

    def observe(self, scans: NDArray[np.int64], ids: Sequence[str]) -> NDArray[np.uint8]:
        """Draw an image, uint8 ``[N, 100]``, of each of N scans ``[N, 64]`` (0 to 16), from its identity alone."""
        raw = raw_numbers(ids, 2 + PIXELS)
        action = self.actions[uniform_integers(raw[:, 0], len(self.actions))]
        sd = np.array(self.noise_sds)[uniform_integers(raw[:, 1], len(self.noise_sds))]
        seen = _GREYS[np.take_along_axis(_with_dark(scans), action, axis=1)]
        noisy = seen + sd[:, None] * standard_normal(raw[:, 2:])
        pixels: NDArray[np.uint8] = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
        return pixels

    def log_likelihood(self, pixels: NDArray[np.uint8], scans: NDArray[np.int64]) -> NDArray[np.float64]:
        """Log-likelihood ``[N, C]`` of N images, uint8 ``[N, 100]``, given each of C scans ``[C, 64]``."""
        actions, times = np.unique(self.actions, axis=0, return_counts=True)
        shown = _with_dark(scans)[:, actions].reshape(-1, PIXELS)
        # A dark pixel is the rule, so only the others are looked up; log p of a dark image is added to all.
        row, column = shown.nonzero()
        places = (shown[row, column] - 1) * PIXELS + column
        bright = csr_array((np.ones(len(row)), (row, places)), shape=(len(shown), (LEVELS - 1) * PIXELS))
        tables = [bin_log_probabilities(_GREYS, sd) for sd in self.noise_sds]
        parts = np.array_split(pixels, max(1, -(-len(pixels) // _QUERIES_AT_ONCE)))
        found = [logsumexp([_summed(table, bright, part, times) for table in tables], axis=0) for part in parts]
        count = len(self.actions) * len(tables)
        mean: NDArray[np.float64] = np.concatenate(found).reshape(len(pixels), len(scans)) - np.log(count)
        return mean

    def posterior(self, pixels: NDArray[np.uint8], scans: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probability ``[N, C]`` of equally likely scans ``[C, 64]`` given each of N images, uint8 ``[N, 100]``."""
        probabilities: NDArray[np.float64] = softmax(self.log_likelihood(pixels, scans), axis=1)
        return probabilities


_GREYS: NDArray[np.float64] = np.arange(LEVELS, dtype=np.float64) * (255 / (LEVELS - 1))
"""Grey levels of 255 for the levels of a scan, binary fractions."""


def _seen(view: View, image: NDArray[np.int64]) -> NDArray[np.int64]:
    """A view of an image whose entries are the sources of its pixels."""
    if view == "whole":
        return image
    if view == "centre":
        at = (SIDE - CENTRE) // 2 + np.arange(SIDE) * CENTRE // SIDE
        return image[np.ix_(at, at)]
    dark = {"left": np.s_[:, SHOWN:], "right": np.s_[:, :-SHOWN], "top": np.s_[SHOWN:, :], "bottom": np.s_[:-SHOWN, :]}
    seen = image.copy()
    seen[dark[view]] = SCAN * SCAN
    return seen


def _with_dark(scans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Scans ``[N, 65]`` with a dark pixel at the end."""
    return np.pad(scans, ((0, 0), (0, 1)))


def _summed(
    table: NDArray[np.float64], bright: csr_array, pixels: NDArray[np.uint8], times: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Log-likelihood of images summed over the actions, ``[N, C]``, from that of every level and value."""
    values = table[:, pixels]
    more = (values[1:] - values[0]).transpose(0, 2, 1).reshape(bright.shape[1], len(pixels))
    by_action = (bright @ more).reshape(-1, len(times), len(pixels)) + np.log(times)[:, None]
    summed: NDArray[np.float64] = logsumexp(by_action, axis=1).T + values[0].sum(1)[:, None]
    return summed


def bin_log_probabilities(levels: NDArray[np.float64], sd: float) -> NDArray[np.float64]:
    """Logarithm of the probability of every 8-bit value of grey levels ``[L]`` under noise, rounded and cut off.

    Value v stands for the interval from v - 1/2 to v + 1/2; 0 and 255 stand for all that lies beyond, too. The result
    is ``[L, 256]``; its exponentials sum to 1 in every row.
    """
    edges = (np.arange(255) + 0.5 - levels[:, None]) / sd
    infinite = np.full((len(levels), 1), np.inf)
    low, high = np.hstack([-infinite, edges]), np.hstack([edges, infinite])
    # In the upper half, the tail above keeps its digits; the one below is all but 1.
    low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
    upper = log_ndtr(high)
    inside: NDArray[np.float64] = upper + np.log(-np.expm1(log_ndtr(low) - upper))
    return inside


CHANNEL = Channel(views=("whole",) * 5 + ("centre", "left", "right", "top", "bottom"), noise_sds=(30.0, 100.0))
"""Channel of the training images, the validation images and the queries."""

GALLERY_CHANNEL = Channel(views=("whole",), noise_sds=(30.0,))
"""Channel of the gallery."""


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    """Names of the classes in their order: positions of the scans that serve as identities, such as ``0417``."""
    # Ranking by raw bits is a shuffle that is the same in every version of numpy.
    order = np.argsort(np.random.PCG64([SEED, 2]).random_raw(len(scanned_digits()[0])), kind="stable")
    return tuple(f"{scan:04d}" for scan in order[:IDENTITIES])


@dataclass(frozen=True)
class _Observations:
    """Observed images of some identities, as many of each."""

    role: str
    names: tuple[str, ...]
    each: int
    channel: Channel

    @property
    def ids(self) -> list[str]:
        """Identities (permanent names) of the N images."""
        return [f"ambiguous_digits/{self.role}/{name}/{i}" for name in self.names for i in range(self.each)]

    @property
    def labels(self) -> Tensor:
        """Position of each image's identity in ``names``, ``[N]``."""
        return torch.arange(len(self.names)).repeat_interleave(self.each)

    @property
    def scans(self) -> NDArray[np.int64]:
        """Grey levels of the scans of the identities, ``[C, 64]``."""
        return scanned_digits()[0][[int(name) for name in self.names]]

    def pixels(self) -> NDArray[np.uint8]:
        """Pixels ``[N, 100]``."""
        return self.channel.observe(self.scans[self.labels.numpy()], self.ids)


def _test_parts(names: tuple[str, ...]) -> tuple[_Observations, _Observations]:
    """Queries and gallery."""
    return _Observations("query", names, 4, CHANNEL), _Observations("gallery", names, 4, GALLERY_CHANNEL)


@lru_cache(maxsize=1)
def _posterior(names: tuple[str, ...]) -> Tensor:
    """Posterior of the test images, ``[N, C]``."""
    queries, gallery = _test_parts(names)
    known = torch.from_numpy(queries.channel.posterior(queries.pixels(), queries.scans))
    return torch.cat([known, torch.full((len(gallery.ids), known.shape[1]), torch.nan, dtype=known.dtype)])


@register_dataset
class AmbiguousDigits(EmbeddedDataset):
    """1000 handwritten digits through a known channel: the probability of every identity given an image is known.

    An identity is one scanned digit; its images are moved, cropped or dark on one side, and noisy. 375 identities train
    and 125 validate, with 12 images each. The 500 of the test have 4 queries each, which are searched among 4 images of
    each that are complete and have little noise.
    """

    name = "ambiguous_digits"
    summary = "1000 handwritten digits through a known channel, 20x20: ambiguity known exactly; nothing to download"
    licence = "CC BY 4.0"
    citation = "Alpaydin, Kaynak: Optical Recognition of Handwritten Digits, UCI 1998"
    image_size = (REPEAT * SIDE, REPEAT * SIDE)
    classes = IDENTITIES
    mean = 0.2627
    std = 0.3337

    def images(self, part: Part, classes: Sequence[int]) -> ArrayImages:
        """Images of some identities; of the test queries and gallery, with the posterior of the queries."""
        names = tuple(_names()[c] for c in classes)
        if part != "test":
            return self._joined(_Observations("dev", names, 12, CHANNEL))
        queries, gallery = _test_parts(names)
        images = self._joined(queries, gallery)
        images.queries, images.gallery = torch.arange(len(images)).split([len(queries.ids), len(gallery.ids)])
        images.posterior = partial(_posterior, names)
        return images

    def _joined(self, *observed: _Observations) -> ArrayImages:
        """Images of the same identities, one group after the other, enlarged by repeating their pixels."""
        pixels = np.concatenate([group.pixels() for group in observed]).reshape(-1, 1, SIDE, SIDE)
        return ArrayImages(
            torch.from_numpy(pixels.repeat(REPEAT, axis=2).repeat(REPEAT, axis=3)),
            torch.cat([group.labels for group in observed]),
            [name for group in observed for name in group.ids],
            observed[0].names,
            mean=(self.mean,),
            std=(self.std,),
        )
