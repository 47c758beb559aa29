"""Confidences that need no training: those of a ranking, controls, and combinations with the margin.

A retrieval confidence is what a ranking and the gallery's labels say about the answer, never the query's own label. An
image confidence is known before there is a gallery; a retrieval confidence belongs to a query, a gallery and a scorer
(similarity to rank by). It costs nothing: the ranking is there anyway. The controls are a random confidence and the
best possible one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from .ranking import NEAREST, Answers, Ranking, Scorer, require_finite
from .search import UNIT


def as_vectors(a: Tensor, b: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Check that two tensors are finite vectors of one length, and convert them to float64 NumPy arrays."""
    if a.shape != b.shape or a.dim() != 1:
        raise ValueError(f"expected two vectors of one length, got {tuple(a.shape)} and {tuple(b.shape)}")
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise ValueError("values must be finite")
    return a.double().numpy(), b.double().numpy()


JUDGED_BY = ("map_at_r", "recall_at_1")
"""Metrics of single queries that a confidence is judged by."""


def uniform_by_identity(ids: Sequence[str], seed: int, purpose: str) -> Tensor:
    """Uniform numbers in [0, 1), float64 ``[N]``, each from an identity, the seed and the purpose alone."""
    start, keys = blake2b(f"{purpose}|{seed}|".encode(), digest_size=8), bytearray()
    for name in ids:
        state = start.copy()
        state.update(name.encode())
        keys += state.digest()
    return torch.from_numpy((np.frombuffer(keys, ">u8") >> 11).astype(np.float64) * 2.0**-53)


def random_confidence(ids: Sequence[str], seed: int) -> Tensor:
    """Random confidence of each image, float64 ``[N]`` in [0, 1), from its identity and the seed alone."""
    return uniform_by_identity(ids, seed, "random confidence")


def oracle_confidence(values: Tensor) -> Tensor:
    """Best possible confidence for a metric: each query's own value of it, ``[Q]``; -1, the lowest, if it is nan."""
    return torch.where(values.isnan(), -1.0, values)


def _answers(ranking: Ranking) -> Answers:
    if ranking.answers is None:
        raise ValueError("the ranking has no answers; make it with rank(.., answers=k)")
    return ranking.answers


_PAIRS = 1 << 11
"""Pairs that are scored at a time: 4 MiB of vectors of 128 dimensions."""

_DIGITS, _SPARE = 40, 8
"""Binary digits of the largest score that are kept: scores that differ by rounding alone (tied ones) become equal. It
is the largest of all queries, unless that of a query is more than ``_SPARE`` digits below it."""


def retrieval_confidences(scorer: Scorer, ranking: Ranking) -> dict[str, Tensor]:
    """Retrieval confidences of the queries of a ranking by name, each finite, float64 ``[Q]``, higher = more confident.

    * ``top1_score``: score of the nearest neighbour (as the distance to the best match, a strong baseline in place
      recognition: Zaffar et al. 2024, arXiv:2404.00546).
    * ``margin``: score of the nearest neighbour minus the best score of another class than its class (the difference
      form of the ratio test of Lowe 2004, with the second nearest of another object). It is 0 if classes are tied for
      the nearest place, and 0 if the gallery has no other class: there is nothing to compare with.
    * ``agreement``: share of the k nearest that have the class of the nearest one
      (:func:`~bench.protocols.ranking.agreement`).
    * ``spread``: score of the nearest minus that of the tenth nearest (of the last one, if there are fewer): how far
      the best scores stand out (after Miller et al. 2025, arXiv:2510.13464, whose best one is made of ratios of scores:
      those of a distance or a likelihood may be negative, so here it is a difference).

    Scores are computed anew in float64 for three pairs per query, since a search proves the order of scores and not
    their last digits. What comes of them is rounded to float32, so that a file of that type keeps it whole.

    Args:
        scorer: The scorer that made the ranking.
        ranking: The ranking, made with ``answers=k``.

    Raises:
        ValueError: If the ranking was made without answers, or a score is not finite.

    Example:
        >>> from .ranking import rank
        >>> from .ranking import ScoreMatrix
        >>> scorer = ScoreMatrix(torch.tensor([[9.0, 4.0, 1.0], [2.0, 9.0, 0.0], [1.0, 0.0, 9.0]]))
        >>> ranking = rank(scorer, torch.tensor([0, 0, 1]), depth=3, queries=torch.tensor([0]), answers=2)
        >>> {name: values.tolist() for name, values in retrieval_confidences(scorer, ranking).items()}
        {'top1_score': [4.0], 'margin': [3.0], 'agreement': [0.5], 'spread': [3.0]}
    """
    answers = _answers(ranking)
    near = ranking.neighbours[:, :NEAREST]
    last = near.gather(1, (near >= 0).sum(1, keepdim=True) - 1).squeeze(1)
    # A rival that does not exist, or is tied, is the nearest itself: the margin is exactly 0.
    rival = torch.where(answers.tied | (answers.rival < 0), near[:, 0], answers.rival)
    top, second, least = _scores(scorer, ranking.queries, torch.stack([near[:, 0], rival, last]).long())
    # A rounding error must not make a difference negative.
    found = {
        "top1_score": top,
        "margin": (top - second).clamp_min(0.0),
        "agreement": answers.agreement,
        "spread": (top - least).clamp_min(0.0),
    }
    return {name: _rounded(values) for name, values in found.items()}


def _scores(scorer: Scorer, queries: Tensor, items: Tensor) -> Tensor:
    """Scores of queries ``[Q]`` with some gallery items each, ``[M, Q]``, equal for what is tied."""
    scores = torch.empty(items.shape, dtype=torch.float64)
    for part in torch.arange(len(queries)).split(max(1, _PAIRS // len(items))):
        # Filled in place: a new small result after each block of pairs would keep the block's memory from being reused.
        here = slice(int(part[0]), int(part[-1]) + 1)
        pairs = scorer.pairs(queries[here].repeat(len(items)), items[:, here].flatten())
        scores[:, here] = pairs.double().cpu().view(len(items), -1)
    require_finite(scorer, scores)
    digits = torch.frexp(scores.abs().amax(0)).exponent
    return evened(scores, torch.minimum(digits.max(), digits + _SPARE))


def evened(scores: Tensor, digits: Tensor) -> Tensor:
    """Scores rounded to 40 binary digits of 2 ** ``digits``: those that differ by rounding alone become equal."""
    step = 2.0 ** (digits - _DIGITS).clamp_min(-1074).double()  # not 0
    return (scores / step).round() * step


def _rounded(values: Tensor) -> Tensor:
    """Values as float32 holds them, unless they leave its range or lose digits at its lower end."""
    single = values.float().double()
    return torch.where((single - values).abs() <= UNIT * values.abs(), single, values)


HALVES = 32
"""Random halves of the dimensions by which the consistency of an answer is measured."""


def consistency(unit: Tensor, labels: Tensor, ranking: Ranking, seed: int) -> Tensor:
    """Share of random halves of the dimensions by which the nearest image has the class of the answer, ``[Q]``.

    The consistency of the first answer under dropout (Gomez, UAI 2025), applied to embeddings in place of a network:
    it needs no training and no second forward pass. The ten nearest images and the nearest one of another class than
    the answer's compete by their cosine in each half. It is 0 if classes are tied for the nearest place.

    Args:
        unit: Unit embeddings of all images, ``[N, D]``.
        labels: Classes of all images, ``[N]``.
        ranking: The ranking that gives the answers, made with ``answers=k``.
        seed: Seed of the draw of the halves.

    Raises:
        ValueError: If the ranking was made without answers.
    """
    answers = _answers(ranking)
    dim = unit.shape[1]
    draw = torch.rand(HALVES, dim, generator=torch.Generator().manual_seed(seed % 2**63), dtype=torch.float64)
    halves = (draw.argsort(1).argsort(1) < (dim + 1) // 2).double().mT
    near = ranking.neighbours[:, :NEAREST]
    asked, valid = _asked(ranking, answers.rival)
    same = labels[asked.clamp_min(0)] == labels[near[:, :1].long()]
    # Most images are asked by several queries: what float32 needs of each is made once, in the order of their rows.
    rows = torch.unique(torch.cat([asked.clamp_min(0).flatten(), ranking.queries]))
    place_of = torch.zeros(len(labels), dtype=torch.long)
    place_of[rows] = torch.arange(len(rows))
    single, lengths = torch.empty(len(rows), dim), torch.empty(len(rows), HALVES)
    for part in torch.arange(len(rows)).split(max(1, _BLOCK // max(dim, HALVES))):
        here, vectors = slice(int(part[0]), int(part[-1]) + 1), unit[rows[part]].double()
        single[here], lengths[here] = vectors, _lengths(vectors, halves)
    found, sure = torch.empty(len(near), dtype=torch.float64), torch.empty(len(near), dtype=torch.bool)
    # Twice the error of a cosine: products of D numbers in float32 err by (D + 8) u of the two lengths at most.
    error, in_single = 2.1 * (dim + 8) * UNIT, halves.float()
    at_once = max(1, _BLOCK // (asked.shape[1] * max(dim, HALVES)))
    for place in torch.arange(len(near)).split(at_once):
        items, here = place_of[asked[place].clamp_min(0)], slice(int(place[0]), int(place[-1]) + 1)
        products = single[place_of[ranking.queries[place]], None] * single.index_select(0, items.flatten()).view(
            *items.shape, dim
        )
        cosines = products @ in_single / lengths[items]
        best, rival = (
            cosines.masked_fill(~(valid[place] & each)[:, :, None], -math.inf).amax(1)
            for each in (same[place], ~same[place])
        )
        found[here], sure[here] = (best > rival).double().mean(1), ((best - rival).abs() > error).all(1)
    for place in (~sure).nonzero().squeeze(1).split(at_once):
        items = unit[asked[place].clamp_min(0).flatten()].double().view(len(place), asked.shape[1], dim)
        cosines = ((unit[ranking.queries[place]].double()[:, None] * items) @ halves) / _lengths(items, halves)
        found[place] = _share(cosines, valid[place], same[place])
    return found.masked_fill(answers.tied, 0.0).float().double()


def _lengths(vectors: Tensor, halves: Tensor) -> Tensor:
    """Lengths ``[*, H]`` of vectors ``[*, D]`` in each half of the dimensions."""
    return (vectors.square() @ halves).sqrt().clamp_min(1e-12)


def view_agreement(unit: Tensor, views: Tensor, labels: Tensor, ranking: Ranking) -> Tensor:
    """Share of other views of the query, as which the nearest image has the class of the answer, ``[Q]``.

    The ten nearest images of the query itself and the nearest one of another class compete by the cosine, as in
    :func:`consistency`. It is 0 if classes are tied for the nearest place.

    Args:
        unit: Unit embeddings of all images, ``[N, D]``.
        views: Unit embeddings of V views of each, ``[V, N, D]``.
        labels: Classes of all images, ``[N]``.
        ranking: The ranking that gives the answers, made with ``answers=k``.

    Raises:
        ValueError: If the ranking was made without answers.
    """
    answers = _answers(ranking)
    asked, valid = _asked(ranking, answers.rival)
    same = labels[asked.clamp_min(0)] == labels[asked[:, :1]]
    found = torch.empty(len(asked), dtype=torch.float64)
    for place in torch.arange(len(asked)).split(max(1, _BLOCK // (asked.shape[1] * unit.shape[1]))):
        items = unit[asked[place].clamp_min(0)].double()
        cosines = items @ views[:, ranking.queries[place]].double().permute(1, 2, 0)
        found[place] = _share(cosines, valid[place], same[place])
    return found.masked_fill(answers.tied, 0.0).float().double()


def _share(cosines: Tensor, valid: Tensor, same: Tensor) -> Tensor:
    """Share of H looks ``[Q, M, H]`` at M images in which the best of the valid ones ``[Q, M]`` is one of the same."""
    cosines = cosines.masked_fill(~valid[:, :, None], -math.inf)
    best = (cosines >= cosines.amax(1, keepdim=True) - 1e-12).double()
    return ((best * same[:, :, None]).sum(1) / best.sum(1)).mean(1)


def _asked(ranking: Ranking, rival: Tensor) -> tuple[Tensor, Tensor]:
    """Rows ``[Q, M]`` of the ten nearest images and the rival, and whether each counts; none counts twice."""
    near, group = ranking.neighbours[:, :NEAREST], ranking.group[:, :NEAREST]
    # Which of some tied images are among the ten is by chance: then none of them is asked, unless all are tied.
    after = ranking.group[:, NEAREST : NEAREST + 1]
    cut = (group == after) if after.shape[1] else (group == group[:, -1:]) & (ranking.beyond > 0)[:, None]
    valid = (near >= 0) & ~cut
    valid[:, 0] = True
    last = rival[:, None]
    # It counts once: in a half where it is tied with others, each has its share.
    valid = torch.cat([valid, (last >= 0) & ~((near == last) & valid).any(1, keepdim=True)], 1)
    return torch.cat([near, last], 1).long(), valid


_BLOCK = 1 << 16
"""Numbers of a table of images by dimensions that are made at a time: 512 KiB, which stay in the cache."""

UNKNOWN = 0.5
"""Prior probability that the class of a query is not in the gallery."""


def posterior(
    unit: Tensor,
    labels: Tensor,
    ranking: Ranking,
    gallery: Tensor | None,
    density: tuple[float, float],
    kin: Tensor | None = None,
) -> Tensor:
    """Log odds of the answer in a Bayes mixture of the gallery's classes and "unknown", ``[Q]``.

    With a von Mises-Fisher of concentration k around the mean direction m of each of C classes, without the query x and
    those that are no neighbours of it (``kin`` of :func:`~bench.protocols.ranking.rank`), and prior b = 1/2 of an
    unknown class, uniform on the sphere (HolUE: Erlygin and Zaytsev, arXiv:2408.14229, whose confidence is the largest
    posterior):

        log p(x | c) - log p(x | unknown) = peak - k (1 - m.x),   p(c) = (1 - b) / C,   p(unknown) = b.

    Log odds order queries as the posterior does, also where that is 1 to rounding. Of the other classes only those of
    the ten nearest images and of the nearest one of another class take part: all C of them would cost as much as the
    ranking, and correlate with this by .98 or more in worlds of ours, .997 on ndigit (by ranks). A tie of classes for
    the nearest place leaves the prior odds.

    Args:
        unit: Unit embeddings of all images, ``[N, D]``.
        labels: Classes of all images, ``[N]``.
        ranking: The ranking that gives the answers, made with ``answers=k``.
        gallery: Rows that are searched; all if None.
        density: Concentration k, and peak of the density: its log at m above that of the uniform one.
        kin: Numbers of the images ``[N]``, as the ranking was made with.

    Raises:
        ValueError: If the ranking was made without answers.
    """
    answers = _answers(ranking)
    concentration, peak = density
    of_image: Tensor = torch.unique(labels, return_inverse=True)[1]
    searched = torch.arange(len(labels)) if gallery is None else gallery
    sizes = torch.bincount(of_image[searched], minlength=int(of_image.max()) + 1)
    sums = _sums(unit, of_image, searched)
    lengths = sums.square().sum(1)
    # The query is no image of its gallery: its class is without it and its kin, and gone if there are no others.
    of_kin = None if kin is None else _sums(unit, kin, searched)
    number = torch.arange(len(labels)) if kin is None else kin
    left_out = torch.bincount(number[searched], minlength=int(number.max()) + 1)[number[ranking.queries]]
    own = of_image[ranking.queries].masked_fill(left_out == 0, -1)
    classes = (sizes > 0).sum() - ((own >= 0) & (sizes[own] == left_out)).long()
    prior = (1 - UNKNOWN) / classes.double()
    items, valid = _asked(ranking, answers.rival)
    found = of_image[items.clamp_min(0)].masked_fill(~valid, -1).sort(1).values
    once = (found >= 0) & torch.cat([torch.ones_like(valid[:, :1]), found[:, 1:] != found[:, :-1]], 1)
    answer = once & (found == of_image[items[:, :1]])
    above = torch.empty(found.shape, dtype=torch.float64)
    for place in torch.arange(len(found)).split(max(1, _BLOCK // (found.shape[1] * unit.shape[1]))):
        x = unit[ranking.queries[place]].double()
        of = found[place].clamp_min(0)
        inner, here = torch.einsum("qd,qcd->qc", x, sums[of]), of == own[place, None]
        gone, of_gone = x, inner  # what leaves its class, and the products of that with the sums
        if of_kin is not None:
            gone = of_kin[number[ranking.queries[place]]]
            of_gone = torch.einsum("qd,qcd->qc", gone, sums[of])
        taken, square = ((each * gone).sum(1, keepdim=True) * here for each in (x, gone))
        length = (lengths[of] - 2 * of_gone * here + square).clamp_min(_TINY).sqrt()
        above[place] = peak - concentration * (1.0 - ((inner - taken) / length).clamp(-1.0, 1.0))
    above += prior.log()[:, None]
    unknown = torch.full_like(above[:, :1], math.log(UNKNOWN))
    rest = torch.cat([above.masked_fill(~once | answer, -math.inf), unknown], 1).logsumexp(1)
    odds = above.masked_fill(~answer, 0.0).sum(1) - rest
    return _rounded(torch.where(answers.tied, torch.logit(prior), odds))


def _sums(unit: Tensor, number: Tensor, rows: Tensor) -> Tensor:
    """Sums of the unit embeddings of some rows that have the same number, float64 ``[K, D]``."""
    sums = torch.zeros(int(number.max()) + 1, unit.shape[1], dtype=torch.float64)
    for part in rows.split(max(1, _BLOCK // unit.shape[1])):
        sums.index_add_(0, number[part], unit[part].double())
    return sums


_TINY = 1e-24
"""Squared length below which a sum of unit vectors has no direction."""


def mean_rank(*confidences: Tensor) -> Tensor:
    """Mean of the ranks, from 1 (least confident) to N, of items by several confidences ``[N]``: float64 ``[N]``.

    Tied items share the mean of their ranks. No confidence outweighs another by its scale, and nothing is fitted.
    """
    return torch.stack([_ranks(values) for values in confidences]).mean(0)


def _ranks(values: Tensor) -> Tensor:
    _, group, size = np.unique(values.double().numpy(), return_inverse=True, return_counts=True)
    last = np.cumsum(size)
    return torch.from_numpy((last - (size - 1) / 2)[group])


class LogisticFit:
    """Weights of C confidences, standardised, by which they tell right from wrong answers of other queries.

    It is a logistic regression with a unit Gaussian prior on the weights (L2 penalty, :func:`logistic_weights`). Mean,
    scale (1 if constant) and weights are ``[C]``; ``found`` is whether there were right and wrong answers to fit to.

    Args:
        confidences: Confidences of Q queries, ``[Q]`` each.
        correct: Recall@1 of these queries, of other classes than those that are tested, ``[Q]``; queries without a
            positive (nan) are left out, and a fraction, which tied scores give, counts partly as right and partly as
            wrong.
    """

    def __init__(self, confidences: Sequence[Tensor], correct: Tensor) -> None:
        counted = ~correct.isnan()
        x = _side_by_side(confidences)[counted]
        y = correct[counted].double()
        self.mean = self.weights = torch.zeros(len(confidences), dtype=torch.float64)
        self.scale = torch.ones_like(self.mean)
        self.found = 0 < float(y.sum()) < len(y)
        if not self.found:  # nothing went wrong, or nothing right
            return
        unit = power_of_two(x)  # squares of very small or large confidences leave the range of numbers
        self.mean = x.mean(0)
        scale = (x / unit).std(0, correction=0) * unit
        self.scale = torch.where(scale > 0, scale, 1.0)
        weights, _ = logistic_weights(((x - self.mean) / self.scale).numpy(), y.numpy(), penalty=1.0)
        self.weights = torch.from_numpy(weights)

    def __call__(self, confidences: Sequence[Tensor]) -> Tensor:
        """Combined confidence of queries, ``[Q]``: the weighted sum; 0 if there was nothing to fit."""
        return ((_side_by_side(confidences) - self.mean) / self.scale * self.weights).sum(1)


def logistic_weights(x: np.ndarray, target: np.ndarray, penalty: float) -> tuple[np.ndarray, float]:
    """Weights ``[C]`` and intercept of a logistic regression, by Newton's method in float64, to the last digits.

    Args:
        x: Inputs near 1 in size, ``[N, C]``.
        target: Probability of each, ``[N]`` in [0, 1], not all of them 0 or all 1 nor, without a penalty, either.
        penalty: Factor of half the sum of squared weights, at least 0; the loss of all inputs is added up.

    Example:
        >>> weights, intercept = logistic_weights(np.array([[-1.0], [1.0]]), np.array([0.25, 0.75]), 0.0)
        >>> round(float(weights[0]), 9) == round(math.log(3), 9), round(intercept, 9)
        (True, 0.0)
    """
    inputs = np.column_stack([x, np.ones(len(x))])
    ridge = np.append(np.full(x.shape[1], penalty), 0.0)
    weights = np.zeros(len(ridge))

    def loss(weights: np.ndarray) -> float:
        z = inputs @ weights
        return float(np.logaddexp(0.0, z).sum() - target @ z + ridge @ weights**2 / 2)

    for _ in range(200):
        p = (1 + np.tanh(inputs @ weights / 2)) / 2
        gradient = inputs.T @ (p - target) + ridge * weights
        step = np.linalg.solve((inputs.T * (p * (1 - p))) @ inputs + np.diag(ridge), gradient)
        # Twice what a whole step gains near the end, where losses differ in their last digits alone.
        gain, length = float(gradient @ step), 1.0
        while gain > 1e-6 and loss(weights - length * step) > loss(weights):
            length /= 2
        weights = weights - length * step
        if gain < 1e-12:
            break
    return weights[:-1], float(weights[-1])


def power_of_two(values: Tensor) -> Tensor:
    """Powers of 2 near the largest sizes along the first axis: a division by them changes no digit."""
    return (torch.frexp(values.abs().amax(0)).exponent - 1.0).double().exp2()


def _side_by_side(confidences: Sequence[Tensor]) -> Tensor:
    return torch.stack([each.double() for each in confidences], 1)
