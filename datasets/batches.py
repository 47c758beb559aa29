"""Class-balanced batches: P classes x K images."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class _Cycle:
    """Endless draws from a set in passes: each pass is a fresh shuffle, and a draw never repeats a member.

    Where a draw runs past the end of a pass, it goes on in the next one; members of the next pass that the
    draw already holds are put off, and come first in the draw after it.
    """

    def __init__(self, members: list[int], queue: Iterable[int], generator: torch.Generator) -> None:
        self._members = members
        self._queue, self._next = list(queue), 0
        self._generator = generator

    def draw(self, count: int) -> list[int]:
        """Next ``count`` members, all different; ``count`` must not exceed the size of the set."""
        drawn = self._queue[self._next : self._next + count]
        self._next += len(drawn)
        if len(drawn) == count:
            return drawn
        order = torch.randperm(len(self._members), generator=self._generator).tolist()
        held = set(drawn)
        put_off: list[int] = []
        for position, member in enumerate(order):
            member = self._members[member]
            if member in held:
                put_off.append(member)
                continue
            drawn.append(member)
            if len(drawn) == count:
                self._queue, self._next = put_off + [self._members[i] for i in order[position + 1 :]], 0
                break
        return drawn


def class_balanced_batches(
    labels: Tensor,
    classes_per_batch: int,
    images_per_class: int,
    generator: torch.Generator,
    num_batches: int | None = None,
) -> list[Tensor]:
    """Draw batches of exactly P different classes with K images each: indices, int64 ``[P * K]``, class by class.

    Classes are visited in passes, each a fresh shuffle of all of them, so that none is left out. The images of a class
    are visited in passes too, from one batch with this class to the next. A class with fewer than K images gives all of
    them, then repeats them evenly. Without ``num_batches`` there is one epoch, max(1, floor(N / (P * K))).

    Raises:
        ValueError: If there are fewer than P classes, or an argument is out of range.
    """
    if labels.dim() != 1:
        raise ValueError(f"labels must be one-dimensional, not of shape {list(labels.shape)}")
    if classes_per_batch < 1 or images_per_class < 1:
        raise ValueError(
            f"classes per batch and images per class must be at least 1, not {classes_per_batch} and {images_per_class}"
        )
    if num_batches is not None and num_batches < 0:
        raise ValueError(f"the number of batches must not be negative: {num_batches}")
    classes, inverse, counts = torch.unique(labels.cpu(), return_inverse=True, return_counts=True)
    if len(classes) < classes_per_batch:
        raise ValueError(
            f"a batch of {classes_per_batch} classes needs as many; there are {len(classes)}: "
            "lower the number of classes per batch"
        )
    if num_batches is None:
        num_batches = max(1, len(labels) // (classes_per_batch * images_per_class))

    # One shuffle of all images, sorted stably by class, shuffles every class at once.
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[torch.argsort(inverse[shuffled], stable=True)]
    members = [block.tolist() for block in torch.split(by_class, counts.tolist())]
    images = [_Cycle(block, block, generator) for block in members]
    visits = _Cycle(list(range(len(classes))), (), generator)

    batches = []
    for _ in range(num_batches):
        batch: list[int] = []
        for visited in visits.draw(classes_per_batch):
            repeats, rest = divmod(images_per_class, len(members[visited]))
            batch += members[visited] * repeats + images[visited].draw(rest)
        batches.append(torch.tensor(batch, dtype=torch.int64))
    return batches
