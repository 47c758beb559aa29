"""Agreement of a confidence with what is known of the images, their quality or people's agreement, and with others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .declare import test
from .embeddings import Embeddings
from .retrieval_confidence import as_vectors
from .rows import Row, kind_of, row


def spearman(x: Tensor, y: Tensor) -> float:
    """Spearman correlation of two vectors ``[N]``, such as the confidence and the side of the crop of N images.

    As in "Probabilistic Embeddings Revisited" (PER), Table 5. Ties get average ranks. The result is nan if either is
    constant: a constant confidence has no order to correlate.

    Example:
        >>> spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.6, 0.9]))
        1.0
    """
    return _correlation("spearmanr", x, y)


def kendall(x: Tensor, y: Tensor) -> float:
    """Kendall's rank correlation tau-b of two vectors ``[N]``; nan if either is constant.

    Example:
        >>> kendall(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.9, 0.6, 0.5]))
        -1.0
    """
    return _correlation("kendalltau", x, y)


def _correlation(name: Literal["spearmanr", "kendalltau"], x: Tensor, y: Tensor) -> float:
    a, b = as_vectors(x, y)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    from scipy import stats  # late: a second to import, and most tests do without

    return float(np.clip(getattr(stats, name)(a, b).statistic, -1.0, 1.0))


def share_above(clean: Tensor, corrupted: Tensor) -> float:
    """Share of images that are more confident clean than corrupted, from confidences ``[N]`` of both; ties count half.

    As in the URL benchmark of uncertainty (Kirchhof et al. 2023).

    Example:
        >>> share_above(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 1.0]))
        0.75
    """
    x, y = as_vectors(clean, corrupted)
    return float((x > y).mean() + 0.5 * (x == y).mean())


@test(group="quality", per="embeddings", needs=("quality", "confidences"))
def quality(view: Embeddings) -> Iterator[Row]:
    """Rank correlations of every confidence with a known quality of the images, and comparisons with clean images.

    For the crop, the metrics are ``spearman_crop``, ``kendall_crop`` and ``paired_crop``, the share of images whose
    confidence is higher clean than cropped (only if the confidences of the clean images are known). Those of other
    corruptions are named likewise.
    """
    known = view.quality
    if known is None:
        return
    for name, values in view.confidences.items():

        def value(metric: str, number: float, name: str = name) -> Row:
            return row(f"{metric}_{known.kind}", number, confidence=name, variant=known.variant, n_queries=len(view))

        yield value("spearman", spearman(values, known.values))
        yield value("kendall", kendall(values, known.values))
        if name in known.clean:
            yield value("paired", share_above(known.clean[name], values))


def ranks_by_severity(
    confidences: Mapping[str, Tensor], quality: Tensor, severity: tuple[float, float], bins: int = 10
) -> tuple[list[float], dict[str, list[float]]]:
    """Severity at the middle of bins of equal width, and mean rank of the images in each bin by each confidence.

    The rank of an image among all N images is scaled to [0, 1]; the most confident image has the highest rank.
    ``quality`` is 1 - severity, ``[N]``; bins without an image are left out.

    Example:
        >>> ranks_by_severity({"a": torch.tensor([2.0, 1.0])}, torch.tensor([1.0, 0.5]), (0.0, 0.5), bins=2)
        ([0.125, 0.375], {'a': [0.75, 0.25]})
    """
    from scipy.stats import rankdata

    low, high = severity
    count = bins if high > low else 1
    width = (high - low) / count
    place = ((1 - quality - low) / (width or 1.0)).floor().clamp(0, count - 1).long()
    filled = [b for b in range(count) if bool((place == b).any())]
    ranks = {}
    for name, values in confidences.items():
        rank01 = (torch.as_tensor(rankdata(values.double().numpy())) - 0.5) / len(values)
        ranks[name] = [float(rank01[place == b].mean()) for b in filled]
    return [low + (b + 0.5) * width for b in filled], ranks


def label_entropy(probabilities: Tensor) -> Tensor:
    """Entropy of label distributions, in nats, float64 ``[N]`` in [0, log K]: how much people disagree about an image.

    Rows of ``[N, K]`` sum to 1 (within 1e-3; they are normalised), or are nan where an image has no distribution, and
    so is the entropy.

    Raises:
        ValueError: If a probability is negative, or a row does not sum to 1.

    Example:
        >>> label_entropy(torch.tensor([[0.0, 1.0], [0.5, 0.5]])).tolist()
        [0.0, 0.6931471805599453]
    """
    p = probabilities.double()
    if p.dim() != 2:
        raise ValueError(f"expected label distributions [N, K], got shape {list(p.shape)}")
    known = ~p.isnan().all(1)
    total = p.sum(1, keepdim=True)
    # Written so that a nan inside a row is an error too.
    if not bool(((p >= 0).all(1) & ((total.squeeze(1) - 1).abs() <= 1e-3))[known].all()):
        raise ValueError("label distributions must be non-negative and sum to 1")
    entropy: Tensor = torch.special.entr(p / total).sum(1)
    return entropy


@test(group="soft_labels", per="embeddings", needs=("soft_labels", "confidences"), clean_only=True)
def soft_labels(view: Embeddings) -> Iterator[Row]:
    """Rank correlations of every confidence with people's agreement on the class of an image.

    Agreement is the negative entropy of the label distribution that people gave: a correlation is positive if images on
    which people agree are more confident. Images without a distribution are left out.
    """
    if view.soft_labels is None:
        return
    entropy = label_entropy(view.soft_labels)
    known = ~entropy.isnan()
    agreement, count = -entropy[known], int(known.sum())
    if count == 0:
        return
    for name, values in view.confidences.items():
        rho, tau = spearman(values[known], agreement), kendall(values[known], agreement)
        yield row("spearman_human_entropy", rho, confidence=name, n_queries=count)
        yield row("kendall_human_entropy", tau, confidence=name, n_queries=count)


@test(group="confidence_correlation", per="own scorer", needs=("confidences",))
def confidence_correlation(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Rank correlations of the image and retrieval confidences of the queries with one another.

    Every two of them have a row, with the first in the column ``confidence`` and the other in ``variant``. The value is
    nan if either is constant.
    """
    of_images = {name: x for name, x in view.confidences_of_queries().items() if kind_of(name) == "image"}
    for (first, x), (other, y) in combinations((of_images | view.retrieval_confidences(scorer)).items(), 2):
        value = spearman(x, y)
        yield row("spearman_confidences", value, confidence=first, variant=other, n_queries=len(x))
