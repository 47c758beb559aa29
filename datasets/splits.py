"""Class splits: development and test halves, and the folds of the development classes.

Splits are over classes, never over images: what is tested are classes that training has not seen. Classes are
numbered 0..C-1 in the order of the data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

Class = TypeVar("Class")


def development_and_test_classes(num_classes: int) -> tuple[range, range]:
    """Split C classes into 0..C//2-1 for development, i.e. training and validation, and C//2..C-1 for the test."""
    if num_classes < 2:
        raise ValueError(f"a split needs at least 2 classes, not {num_classes}")
    middle = num_classes // 2
    return range(middle), range(middle, num_classes)


def drawn_classes(development: Sequence[Class], test: Sequence[Class], seed: int) -> tuple[list[Class], list[Class]]:
    """Draw development and test classes anew, as many as the own split of a data set has.

    The first of four folds of the development classes, by which settings are tuned, comes first and is never tested;
    all others are drawn. Each part keeps the order in which the classes are given.
    """
    kept = len(class_folds(len(development), min(4, len(development)))[0])
    others = [*development[kept:], *test]
    # Ranking by raw bits is a shuffle that is the same in every version of numpy.
    import numpy as np  # late: the folder is light

    order = np.argsort(np.random.PCG64(seed).random_raw(len(others)), kind="stable").tolist()
    middle = len(development) - kept
    trained, tested = ([others[i] for i in sorted(part)] for part in (order[:middle], order[middle:]))
    return [*development[:kept], *trained], tested


def class_folds(num_classes: int, folds: int) -> list[range]:
    """Cut C classes into 2 to C contiguous blocks, as ``sklearn.model_selection.KFold`` without shuffling does."""
    if not 2 <= folds <= num_classes:
        needed = f"; {folds} folds need at least {folds} development classes" if folds > num_classes else ""
        raise ValueError(
            f"the number of folds must be in 2..{num_classes} (the number of classes), not {folds}{needed}"
        )
    size, larger = divmod(num_classes, folds)
    starts = [i * size + min(i, larger) for i in range(folds + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def train_and_validation_classes(num_classes: int, fold: int = 0, folds: int = 4) -> tuple[list[int], list[int]]:
    """Split development classes (all but the test classes) into training classes and the validation block of one fold.

    With 1 fold nothing is held out: all classes train, and the first quarter of them is returned as validation classes
    too, by which nothing may then be selected.

    Raises:
        ValueError: If the fold or the number of folds is out of range.
    """
    if folds == 1 and num_classes >= 1:
        return list(range(num_classes)), list(range(max(1, num_classes // 4)))
    blocks = class_folds(num_classes, folds)
    if not 0 <= fold < folds:
        raise ValueError(f"the fold must be in 0..{folds - 1}, not {fold}")
    validation = blocks[fold]
    return [c for c in range(num_classes) if c not in validation], list(validation)
