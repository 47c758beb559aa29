"""Verification pairs, sampled per identity."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from .controls import random_confidence


@dataclass(frozen=True)
class Pairs:
    """Pairs of images for verification: positions ``[P]`` of both, and whether they share a class, bool ``[P]``."""

    left: Tensor
    right: Tensor
    same: Tensor


def _draw(seed: int, *what: object) -> int:
    text = "|".join(map(str, (seed, *what)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def sample_pairs(labels: Tensor, ids: Sequence[str], seed: int) -> Pairs:
    """One positive and one negative pair per image for verification, as in "Probabilistic Embeddings Revisited".

    Positives, which come first: each class is put in a random circular order, and every image is paired with the next;
    an image alone in its class has none. Negatives: every image is paired with a uniform image of another class. The
    pairs depend on ``seed`` and the identities only, not on the order of the images or the numbers of the classes.

    Raises:
        ValueError: If there is only one class, or no class has two images.

    Example:
        >>> pairs = sample_pairs(torch.tensor([0, 0, 1]), ["a", "b", "c"], seed=0)
        >>> pairs.same.tolist()
        [True, True, False, False, False]
    """
    order = sorted(range(len(ids)), key=lambda index: ids[index])
    label = labels.tolist()
    members: dict[int, list[int]] = defaultdict(list)
    for index in order:
        members[label[index]].append(index)
    if len(members) < 2:
        raise ValueError("verification pairs need at least two classes")
    following: dict[int, int] = {}
    for group in members.values():
        if len(group) > 1:
            circle = sorted(group, key=lambda index: (_draw(seed, "positive", ids[index]), ids[index]))
            following |= dict(zip(circle, circle[1:] + circle[:1]))
    if not following:
        raise ValueError("verification pairs need a class with at least two images")
    positive = [(index, following[index]) for index in order if index in following]
    negative = []
    for index in order:
        attempt = 0
        while label[other := order[_draw(seed, "negative", ids[index], attempt) % len(order)]] == label[index]:
            attempt += 1
        negative.append((index, other))
    both = torch.tensor(positive + negative)
    same = torch.arange(len(both)) < len(positive)
    return Pairs(both[:, 0], both[:, 1], same)


def classes_in_random_order(labels: Tensor, ids: Sequence[str], seed: int) -> Tensor:
    """Classes in a random order, int64 ``[C]``.

    The draw of a class depends on the seed and the alphabetically first identity of its images, not on its number.

    Example:
        >>> sorted(classes_in_random_order(torch.tensor([0, 0, 1]), ["a", "b", "c"], seed=0).tolist())
        [0, 1]
    """
    least: dict[int, str] = {}
    for label, name in zip(labels.tolist(), ids):
        least[label] = min(name, least.get(label, name))
    classes = sorted(least)
    drawn = random_confidence([least[label] for label in classes], seed)
    return torch.tensor(classes, dtype=torch.long)[drawn.argsort()]


def class_halves(labels: Tensor, ids: Sequence[str], seed: int) -> tuple[Tensor, Tensor]:
    """Positions of the images of two random halves of the classes, drawn as in :func:`classes_in_random_order`.

    Example:
        >>> sorted(map(len, class_halves(torch.tensor([0, 0, 1]), ["a", "b", "c"], seed=0)))
        [1, 2]
    """
    classes = classes_in_random_order(labels, ids, seed)
    first = classes[: len(classes) // 2]
    inside = torch.isin(labels, first)
    return inside.nonzero().squeeze(1), (~inside).nonzero().squeeze(1)
