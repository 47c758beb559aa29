"""Checks of a corruption: 8-bit images of the same shape, a change that grows, draws of the image alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from ..datasets.corruptions._base import Corruption, check_range, corrupt
from ..seeds import seed_generators
from .failure import require


def _pictures(shape: tuple[int, ...] = (3, 24, 20)) -> Tensor:
    """Eight smooth random images, uint8 ``[8, C, H, W]``."""
    coarse = 255 * torch.rand(8, shape[0], 5, 5, generator=torch.Generator().manual_seed(0))
    return nn.functional.interpolate(coarse, shape[1:], mode="bilinear").to(torch.uint8)


def _corrupted(corruption: Corruption, severity: float, images: Tensor) -> Tensor:
    """Images under a corruption, each with the draws of its own identity, ``[N, C, H, W]``."""
    made = (corrupt(corruption.name, image, severity, f"image {i}", 0) for i, image in enumerate(images))
    return torch.stack(list(made))


def metadata_of_corruption(corruption: Corruption) -> None:
    """Require that a corruption has a name, a summary, and a valid range of default severities within [0, 1]."""
    require(bool(corruption.name and corruption.summary), "name and summary must not be empty")
    check_range(corruption.name, corruption.low, corruption.high)


def corrupted_pixels(corruption: Corruption) -> None:
    """Require that a corruption keeps the shape and the type uint8, and does not change the given image in place."""
    for shape in ((1, 20, 20), (3, 24, 20), (3, 31, 40)):
        images = _pictures(shape)
        before = images.clone()
        for severity in (0.01, 0.5, 1.0):
            _corrupted(corruption, severity, images)  # refuses another shape or type
            require(torch.equal(images, before), "it changes the image that it is given; work on a copy")


def corruption_grows(corruption: Corruption) -> None:
    """Require that a corruption changes nothing at severity 0, and its mean change of a pixel grows with severity."""
    images = _pictures()
    change = [
        float((_corrupted(corruption, severity, images).double() - images.double()).abs().mean())
        for severity in (0.0, 1e-3, 0.25, 0.5, 0.75, 1.0)
    ]
    require(change[0] == 0, "severity 0 changes the image")
    require(change[-1] > change[1], "severity 1 changes images no more than severity 0.001")
    falls = any(later < earlier - 0.02 * change[-1] for earlier, later in itertools.pairwise(change))
    shown = ", ".join(f"{value:.3g}" for value in change)
    require(not falls, f"it must be stronger with severity; the mean change of a pixel from 0 to 1 is {shown}")


def _global_generators() -> tuple[bytes, str, object]:
    """States of the global generators of torch, NumPy and Python."""
    state = np.random.get_state()  # noqa: NPY002 (whoever uses it is to be found)
    return torch.get_rng_state().numpy().tobytes(), repr(state), random.getstate()


def corruption_draws(corruption: Corruption) -> None:
    """Require that a corruption gives equal pixels for equal image and severity, and draws by ``draw`` alone."""
    images, found = _pictures(), []
    for seed in (0, 1):
        seed_generators(seed)
        before = _global_generators()
        found.append(_corrupted(corruption, 0.5, images))
        untouched = before == _global_generators()
        require(untouched, "it uses a global random generator; take its random numbers from draw(n)")
    require(torch.equal(*found), "the same image, severity and draw give other pixels the second time")


CORRUPTION_CHECKS: dict[str, Callable[[Corruption], None]] = {
    "metadata": metadata_of_corruption,
    "pixels": corrupted_pixels,
    "grows": corruption_grows,
    "draws": corruption_draws,
}
"""Every check of a registered corruption of pixels, by name; the crop is made, and checked, by data sets."""
