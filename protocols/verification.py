"""Verification: are two images of one class? On pairs sampled by identity, with a threshold that never saw them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from .all_pairs import LIMIT, all_pairs_tpr, class_draws
from .confidence import confidence_auroc
from .declare import test
from .embeddings import Embeddings, Options
from .retrieval_confidence import random_confidence
from .rows import Row, row


@dataclass(frozen=True)
class Pairs:
    """Pairs of images for verification: positions ``[P]`` of both, and whether they share a class, bool ``[P]``."""

    left: Tensor
    right: Tensor
    same: Tensor


def _draw(seed: int, *what: object) -> int:
    text = "|".join(map(str, (seed, *what)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def sample_pairs(
    labels: Tensor, ids: Sequence[str], seed: int, kin: Tensor | None = None, roles: Tensor | None = None
) -> Pairs:
    """One positive and one negative pair per image for verification, as in "Probabilistic Embeddings Revisited".

    Positives, which come first: each class is put in a random circular order, and every image is paired with the next;
    an image alone in its class has none. With ``kin`` (:func:`~bench.protocols.ranking.rank`) it is paired with the
    next that is not of its number. Negatives: every image is paired with a uniform image of another class. The pairs
    depend on ``seed`` and the identities only, not on the order of the images or the numbers of the classes.
    With ``roles``, bool ``[2, N]``, images of the first are paired with images of the second: queries with a gallery.

    Raises:
        ValueError: If there is only one class, or no positive pair.

    Example:
        >>> pairs = sample_pairs(torch.tensor([0, 0, 1]), ["a", "b", "c"], seed=0)
        >>> pairs.same.tolist()
        [True, True, False, False, False]
    """
    order = sorted(range(len(ids)), key=lambda index: ids[index])
    is_query, searched = (torch.ones(2, len(ids)) if roles is None else roles).tolist()
    asked, gallery = ([index for index in order if role[index]] for role in (is_query, searched))
    label, number = labels.tolist(), (torch.arange(len(ids)) if kin is None else kin).tolist()
    members: dict[int, list[int]] = defaultdict(list)
    for index in order:
        members[label[index]].append(index)
    if len({label[index] for index in gallery}) < 2:
        raise ValueError("verification pairs need at least two classes")
    following: dict[int, int] = {}
    for group in members.values():
        circle = sorted(group, key=lambda index: (_draw(seed, "positive", ids[index]), ids[index]))
        after = next((index for index in circle if searched[index]), circle[0])
        for index in 2 * circle[::-1]:  # from the end, and once more for those whose partner is past the end
            following[index] = after if number[after] != number[index] else following.get(after, after)
            after = index if searched[index] else after
    pairs = [(index, following[index]) for index in asked]
    positive = [(a, b) for a, b in pairs if searched[b] and number[a] != number[b]]
    if not positive:
        raise ValueError("verification pairs need a class with at least two images, of two groups if there are groups")
    negative = []
    for index in asked:
        attempt = 0
        while label[other := gallery[_draw(seed, "negative", ids[index], attempt) % len(gallery)]] == label[index]:
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


def best_threshold(scores: Tensor, same: Tensor) -> tuple[float, float]:
    """Threshold of the highest verification accuracy, and that accuracy; pairs at or above it count as the same class.

    Thresholds lie half-way between neighbouring distinct scores, or at plus or minus infinity. The lowest of the best
    is taken. For this and all functions below, ``scores`` is the similarity of each pair of images, ``[P]``, and
    ``same`` is whether the pair shares a class (is positive), bool ``[P]``; both kinds must occur.

    Example:
        >>> best_threshold(torch.tensor([1.0, 3.0]), torch.tensor([False, True]))
        (2.0, 1.0)
    """
    _check(scores, same)
    values, inverse = torch.unique(scores.double(), return_inverse=True)
    positive = torch.zeros(len(values), dtype=torch.long).index_add_(0, inverse, same.long())
    negative = torch.zeros(len(values), dtype=torch.long).index_add_(0, inverse, (~same).long())
    zero = torch.zeros(1, dtype=torch.long)
    # Entry i: everything from the i-th distinct score upwards is called the same.
    right = torch.cat([positive.flip(0).cumsum(0).flip(0), zero]) + torch.cat([zero, negative.cumsum(0)])
    best = int(right.argmax())
    middles = values[:-1] / 2 + values[1:] / 2
    # Between adjacent floats the middle rounds onto one of them; only the upper one separates the two.
    middles = torch.where(middles > values[:-1], middles, values[1:])
    ends = torch.tensor([math.inf], dtype=torch.float64)
    threshold = torch.cat([-ends, middles, ends])[best].item()
    return threshold, right[best].item() / len(scores)


def accuracy_at(threshold: float, scores: Tensor, same: Tensor) -> float:
    """Share of pairs of images that a threshold decides rightly; pairs at or above it count as the same class.

    Example:
        >>> accuracy_at(2.0, torch.tensor([1.0, 3.0, 4.0]), torch.tensor([False, True, False]))
        0.6666666666666666
    """
    _check(scores, same)
    return ((scores.double() >= threshold) == same).sum().item() / len(scores)


def auc(scores: Tensor, same: Tensor) -> float:
    """Area under the ROC curve of verification: P(a positive pair scores above a negative one); ties count half.

    Example:
        >>> auc(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([False, True, True]))
        0.75
    """
    _check(scores, same)
    return confidence_auroc(scores, same.double())


def _roc(scores: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """False and true positive rates at every distinct threshold, from (0, 0) to (1, 1)."""
    _check(scores, same)
    ordered, order = scores.double().sort(descending=True)
    last = torch.cat([(ordered.diff() != 0).nonzero().squeeze(1), torch.tensor([len(ordered) - 1])])
    right = torch.cat([torch.zeros(1, dtype=torch.int64), same[order].cumsum(0)[last]])
    wrong = torch.cat([torch.zeros(1, dtype=torch.int64), last + 1]) - right
    return wrong.double() / wrong[-1], right.double() / right[-1]


def equal_error_rate(scores: Tensor, same: Tensor) -> float:
    """Error rate of verification at which false positives and false negatives are equally frequent.

    The ROC curve is interpolated linearly between its points.

    Example:
        >>> equal_error_rate(torch.tensor([1.0, 2.0]), torch.tensor([False, True]))
        0.0
    """
    fpr, tpr = _roc(scores, same)
    difference = fpr - (1.0 - tpr)
    after = int((difference >= 0).nonzero()[0])
    if after == 0:
        return fpr[0].item()
    before = after - 1
    span = difference[after] - difference[before]
    weight = -difference[before] / span
    return (fpr[before] + weight * (fpr[after] - fpr[before])).item()


def tpr_at_fpr(scores: Tensor, same: Tensor, rate: float) -> float:
    """Largest true positive rate of verification at a false positive rate of at most ``rate``, in [0, 1].

    Example:
        >>> tpr_at_fpr(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True]), 0.1)
        0.5
    """
    fpr, tpr = _roc(scores, same)
    return tpr[fpr <= rate].max().item()


def _nearest(values: Tensor, target: Tensor, *, last: bool) -> int:
    """Place of the value nearest to its target, the first or the last of equally near ones."""
    places = ((values - target).abs() == (values - target).abs().min()).nonzero().squeeze(1)
    return int(places[-1 if last else 0])


def nearest_equal_error_rate(scores: Tensor, same: Tensor) -> float:
    """Mean of the false positive and the false negative rate at the ROC point where they are nearest to each other.

    As in the public code of "Probabilistic Embeddings Revisited" (PER). If several points are equally near, the smaller
    mean of the first and the last is taken, since that code looks at no other.

    Example:
        >>> nearest_equal_error_rate(torch.tensor([1.0, 2.0]), torch.tensor([False, True]))
        0.0
    """
    fpr, tpr = _roc(scores, same)
    at = (_nearest(fpr, 1.0 - tpr, last=last) for last in (False, True))
    return min(0.5 * (fpr[i] + 1.0 - tpr[i]).item() for i in at)


def tpr_at_nearest_fpr(scores: Tensor, same: Tensor, rate: float) -> float:
    """True positive rate at the last ROC point whose false positive rate is nearest to ``rate``, which it may exceed.

    As in the public code of "Probabilistic Embeddings Revisited" (PER).

    Example:
        >>> tpr_at_nearest_fpr(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True]), 0.9)
        1.0
    """
    fpr, tpr = _roc(scores, same)
    return tpr[_nearest(fpr, torch.full_like(fpr, rate), last=True)].item()


def _check(scores: Tensor, same: Tensor) -> None:
    if scores.shape != same.shape or scores.dim() != 1:
        raise ValueError(f"{tuple(scores.shape)} scores for {tuple(same.shape)} pairs")
    bad = int((~torch.isfinite(scores)).sum())
    if bad:
        raise ValueError(f"{bad} of {len(scores)} pair scores are not finite")
    if bool(same.all()) or not bool(same.any()):
        raise ValueError("pairs of both kinds are needed")


def verification_rows(
    scores: Tensor, same: Tensor, validation: tuple[Tensor, Tensor] | None, options: Options, split: str = "val"
) -> Iterator[Row]:
    """Verification accuracy, AUC, equal error rate (EER) and true positive rate of scored pairs of images.

    The accuracy is given at two thresholds: the best one for the validation pairs, of which scores and ``same`` are
    given if there are any, and the best one for the test pairs. The latter is optimistic; "Probabilistic Embeddings
    Revisited" (PER) uses it. The option ``nearest_roc_point`` adds the EER and the true positive rate as in PER's
    public code: at the nearest point of the ROC, without interpolation, which may exceed ``false_positive_rate``.
    ``split`` is ``train`` if a model was trained on the validation pairs.

    The variant names the pairs that gave the threshold of an accuracy (``threshold_val``, ``threshold_train`` or
    ``threshold_test``), or is ``fpr=0.001`` or ``nearest_fpr=0.001`` (or another rate) for a true positive rate, and
    empty or ``nearest_point`` for the EER.

    Raises:
        ValueError: If a score is not finite, or if all pairs or no pairs share a class.

    Example:
        >>> s, y = torch.tensor([0.0, 1.0]), torch.tensor([False, True])
        >>> [r["value"] for r in verification_rows(s, y, (s, y), Options())]
        [1.0, 1.0, 1.0, 0.0, 1.0]
    """
    made, rate = partial(row, n_queries=len(scores)), options.false_positive_rate
    if validation is not None:
        accuracy = accuracy_at(best_threshold(*validation)[0], scores, same)
        yield made("verification_accuracy", accuracy, variant=f"threshold_{split}")
    yield made("verification_accuracy", best_threshold(scores, same)[1], variant="threshold_test")
    yield made("verification_auc", auc(scores, same))
    yield made("verification_eer", equal_error_rate(scores, same))
    yield made("verification_tpr_at_fpr", tpr_at_fpr(scores, same, rate), variant=f"fpr={rate:g}")
    if options.nearest_roc_point:
        nearest = tpr_at_nearest_fpr(scores, same, rate)
        yield made("verification_eer", nearest_equal_error_rate(scores, same), variant="nearest_point")
        yield made("verification_tpr_at_fpr", nearest, variant=f"nearest_fpr={rate:g}")


def pairs_among(view: Embeddings, rows: Tensor, seed: int, roles: Tensor | None = None) -> Pairs:
    """Pairs that are sampled among some images (:func:`sample_pairs`), by their positions in the set."""
    kin = None if view.kin is None else view.kin[rows]
    found = sample_pairs(view.labels[rows], view.names(rows), seed, kin, roles)
    return Pairs(rows[found.left], rows[found.right], found.same)


def verification_pairs(view: Embeddings) -> Pairs:
    """Sampled pairs of images, drawn once for all tests."""
    return view.once("pairs", lambda: sample_pairs(view.labels, view.ids, view.seed("pairs"), view.kin), shared=True)


def pair_scores(view: Embeddings, scorer: str) -> Tensor:
    """Scores of the sampled pairs, float64 ``[P]``, computed once for all tests."""
    pairs = verification_pairs(view)
    return view.once(f"pair scores {scorer}", lambda: view.scorer(scorer).pairs(pairs.left, pairs.right))


def _scored_pairs(view: Embeddings, scorer: str) -> tuple[Tensor, Tensor]:
    """Scores of the sampled pairs, and whether each shares a class."""
    return pair_scores(view, scorer), verification_pairs(view).same


@test(group="verification", per="scorer", version=2)
def verification(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Verification accuracy, AUC, equal error rate and true positive rate over sampled pairs of images.

    The accuracy is given at two thresholds: the best one for pairs of validation images (if there are any) and the best
    one for the tested pairs themselves. With the option ``held_out_threshold``, a threshold is also chosen on half of
    the classes and tested on the other half. The true positive rate is also that over all pairs of images (variant
    ``all_pairs,fpr=0.001`` or another rate), with the ends of a 95 % interval for other classes of the same kind
    (variants with ``,ci95_low`` and ``,ci95_high``); ``n_queries`` is the number of pairs. It is left out for more than
    20,000 images.
    """
    scored, validation = _scored_pairs(view, scorer), view.validation
    known = None if validation is None else _scored_pairs(validation, scorer)
    yield from verification_rows(*scored, known, view.options, view.validation_split)
    if view.options.held_out_threshold:
        yield _held_out_accuracy(view, scorer)
    if len(view) <= LIMIT:
        yield from _all_pairs_rows(view, scorer)


def _all_pairs_rows(view: Embeddings, scorer: str) -> Iterator[Row]:
    """True positive rate over all pairs with the ends of its interval, by a bootstrap of classes."""
    seed, rate = view.seed("class bootstrap"), view.options.false_positive_rate
    order = classes_in_random_order(view.labels, view.ids, seed)
    labels = order.argsort()[torch.unique(view.labels, return_inverse=True)[1]]
    weights = torch.cat([torch.ones(1, len(order), dtype=torch.long), class_draws(len(order), seed)])
    value, *drawn = all_pairs_tpr(view.scorer(scorer), labels, weights, rate, kin=view.kin).tolist()
    known = [x for x in drawn if not math.isnan(x)]
    low, high = np.quantile(known, [0.025, 0.975]).tolist() if known else (math.nan, math.nan)
    pairs = len(view) * (len(view) - 1) // 2
    for end, number in (("", value), (",ci95_low", low), (",ci95_high", high)):
        yield row("verification_tpr_at_fpr", number, variant=f"all_pairs,fpr={rate:g}{end}", n_queries=pairs)


def _held_out_accuracy(view: Embeddings, scorer: str) -> Row:
    """Accuracy on half of the classes at the threshold of the other half."""
    seed, scores, same = view.seed("pairs"), [], []
    for rows in class_halves(view.labels, view.ids, seed):
        try:
            half = pairs_among(view, rows, seed)
        except ValueError:
            raise ValueError(
                "verification needs at least four classes, most of them of two images: half of the classes choose the"
                " threshold, the other half are tested"
            ) from None
        scores.append(view.scorer(scorer).pairs(half.left, half.right))
        same.append(half.same)
    threshold, _ = best_threshold(scores[0], same[0])
    accuracy = accuracy_at(threshold, scores[1], same[1])
    return row("verification_accuracy", accuracy, variant="threshold_held_out_classes", n_queries=len(scores[1]))
