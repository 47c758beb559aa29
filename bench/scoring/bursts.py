"""Whether images and their first answers are often near-duplicates, as in bursts, where nobody says so."""

from __future__ import annotations

import torch
from torch import Tensor

from ..protocols.embeddings import Embeddings

MANY = 0.1
"""Share of near-duplicates from which it is said. Frozen networks (SqueezeNet, EfficientNet-Lite0) give 0.17 to 0.25 on
Grocery Store, which has bursts, 0.003 to 0.006 on CUB, at most 0.03 on normal classes of 64 dimensions."""

DIMENSIONS = 50
"""Effective dimensions of the classes below which a nearest image is near by chance: then nothing is said."""

_SAMPLE = 1000


def near_duplicates(view: Embeddings, answers: Tensor) -> float:
    """Share of images that form a pair with an image of their class: closest to each other, and close for their class.

    The image of each is the answer to the other, and their cosine distance is less than half of that to the class on
    average. One such pair a class is left out: where some images are sharper than others, there is one.
    ``answers`` are those of a ranking by the cosine, of images that are queries and gallery, ``[N]``; 0 for others.
    """
    unit, labels, rows = view.unit_rows, view.labels, torch.arange(len(view))
    sizes = torch.bincount(labels)
    if len(answers) < len(view) or int(sizes.max()) < 3:
        return 0.0
    sums = torch.zeros(len(sizes), unit.shape[1], dtype=torch.float64)
    for part in rows.split(_SAMPLE):
        sums.index_add_(0, labels[part], unit[part])
    mates = sizes[labels]
    some = rows[:: -(-len(rows) // _SAMPLE)]
    spread = unit[some] - sums[labels[some]] / mates[some, None]
    if spread.square().sum().square() <= DIMENSIONS * (spread @ spread.mT).square().sum():
        return 0.0
    pairs = (answers[answers] == rows) & (labels[answers] == labels) & (mates > 2)
    near = torch.zeros(len(sizes), dtype=torch.long)
    for part in pairs.nonzero().squeeze(1).split(_SAMPLE):
        of, apart = labels[part], 1.0 - (unit[part] * unit[answers[part]]).sum(1)
        of_class = 1.0 - ((unit[part] * sums[of]).sum(1) - 1.0) / (mates[part] - 1)
        near += torch.bincount(of[2.0 * apart < of_class], minlength=len(sizes))
    return float((near - 2).clamp_min(0).sum()) / len(rows)
