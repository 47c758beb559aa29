"""Batch sizes of small data sets: the default ones are lowered to what the training images have."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TooFewClasses, UserError
from .setting import Values

PAIR = 2
"""Fewest classes to tell apart, and fewest images of a class in a batch: a pair, if need be of one image twice."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the training and validation sets of all folds, the smallest of each.

    Attributes:
        classes: Number of training classes.
        images: Number of images of the largest training class.
        validation: Number of validation classes.
    """

    classes: int
    images: int
    validation: int


def fitting_batches(
    dataset: str, asked: Values, pinned: frozenset[str], sizes: Sizes, *, selects: bool = True, instead: str = ""
) -> Values:
    """Batch sizes that replace default ones for which a data set is too small; none if all fit.

    Classes are lowered to the number of training classes, and images per class to those of the largest one.

    Args:
        dataset: Name of the data set.
        asked: Setting with ``classes_per_batch`` and ``images_per_class``.
        pinned: Names of those that the user fixed, which are kept.
        sizes: Sizes of the data set.
        selects: Whether epochs or trials are selected by the validation images.
        instead: Advice for a data set that is too small to train on.

    Returns:
        New values by name.

    Raises:
        TooFewClasses: If the user fixed a number of classes that is larger than that of the training classes.
        UserError: If there are too few classes to train on.

    Example:
        >>> usual = {"classes_per_batch": 16, "images_per_class": 4}
        >>> fitting_batches("folder", usual, frozenset(), Sizes(9, 3, 3))
        {'classes_per_batch': 9, 'images_per_class': 3}
        >>> fitting_batches("folder", usual, frozenset({"images_per_class"}), Sizes(40, 3, 10))
        {}
    """
    fitting: dict[str, int] = {}
    wanted = asked["classes_per_batch"]
    if wanted > sizes.classes:
        if "classes_per_batch" in pinned:
            raise TooFewClasses(dataset, wanted, sizes.classes)
        if sizes.classes < PAIR or (selects and sizes.validation < PAIR):
            raise UserError(
                f"data set {dataset!r} has {sizes.classes} training and {sizes.validation} validation classes, training"
                f" needs at least {PAIR} of each{f'; {instead}' if instead else ''}"
            )
        fitting["classes_per_batch"] = sizes.classes
    if asked["images_per_class"] > max(PAIR, sizes.images) and "images_per_class" not in pinned:
        fitting["images_per_class"] = max(PAIR, sizes.images)
    return fitting


def said_of_batches(dataset: str, asked: Values, fitting: Values, sizes: Sizes) -> str:
    """Line that says which batch sizes replace the default ones, and why; empty if none do.

    Args:
        dataset: Name of the data set.
        asked: The default sizes.
        fitting: Those that replace them, see :func:`fitting_batches`.
        sizes: Sizes of the data set.
    """
    if not fitting:
        return ""
    before, now = (
        f"{values['classes_per_batch']} classes x {values['images_per_class']} images"
        for values in (asked, {**asked, **fitting})
    )
    return (
        f"{dataset} has {sizes.classes} training classes of at most {sizes.images} images: batches of {now} instead of"
        f" {before}"
    )
