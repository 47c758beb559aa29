"""Is a confidence worth anything? Rank correlations with image quality, risk-coverage areas, error detection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .embeddings import Row, row
from .filter_out import METRICS, oracle_confidence


def _pair(a: Tensor, b: Tensor) -> tuple[np.ndarray, np.ndarray]:
    if a.shape != b.shape or a.dim() != 1:
        raise ValueError(f"expected two vectors of one length, got {tuple(a.shape)} and {tuple(b.shape)}")
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise ValueError("values must be finite")
    return a.double().numpy(), b.double().numpy()


def spearman_crop(confidence: Tensor, fraction: Tensor) -> float:
    """Spearman correlation of confidence with the side of the crop, pooled over all images (PER, Table 5).

    Of other corruptions ``fraction`` is what they leave, 1 - severity; of people's label distributions, minus the
    :func:`label_entropy`.
    Ties get average ranks. nan if either is constant: a constant confidence has no order to correlate.

    Example:
        >>> spearman_crop(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.6, 0.9]))
        1.0
    """
    x, y = _pair(confidence, fraction)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    from scipy import stats  # late: a second to import, and most tests do without

    return float(np.clip(stats.spearmanr(x, y).statistic, -1.0, 1.0))


def kendall_crop(confidence: Tensor, fraction: Tensor) -> float:
    """Kendall's tau-b of confidence with the side of the crop, or as :func:`spearman_crop`; nan if either is constant.

    Example:
        >>> kendall_crop(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.9, 0.6, 0.5]))
        -1.0
    """
    x, y = _pair(confidence, fraction)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    from scipy import stats

    return float(np.clip(stats.kendalltau(x, y).statistic, -1.0, 1.0))


def paired_crop(clean: Tensor, crop: Tensor) -> float:
    """P(an image is more confident than its own crop), ties count half (Kirchhof et al. 2023, URL benchmark).

    Example:
        >>> paired_crop(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 1.0]))
        0.75
    """
    x, y = _pair(clean, crop)
    return float((x > y).mean() + 0.5 * (x == y).mean())


def label_entropy(probabilities: Tensor) -> Tensor:
    """Entropy of label distributions, in nats: how much people disagree about an image.

    Args:
        probabilities: ``[N, K]``, rows that sum to 1 (within 1e-3; they are normalised), or of nan where an image has
            no distribution.

    Returns:
        float64 ``[N]`` in [0, log K], nan where there is no distribution.

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


def risk_coverage(confidence: Tensor, risk: Tensor) -> Tensor:
    """Mean risk of the n most confident items for n = 1..N, ``[N]`` (Geifman et al. 2019).

    Items of equal confidence take the mean risk of their group, the expectation over their orders: a constant
    confidence gives exactly the mean risk everywhere.

    Args:
        confidence: ``[N]``.
        risk: ``[N]``, such as 1 - Recall@1.

    Example:
        >>> risk_coverage(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0])).tolist()
        [0.0, 0.5]
    """
    x, y = _pair(confidence, risk)
    _, group = np.unique(-x, return_inverse=True)
    mean = np.bincount(group, weights=y) / np.bincount(group)
    expected = mean[np.sort(group)]
    return torch.from_numpy(np.cumsum(expected) / np.arange(1, len(x) + 1))


def aurc(confidence: Tensor, risk: Tensor) -> float:
    """Area under the risk-coverage curve (Geifman et al. 2019), lower is better; nan without items.

    The mean of :func:`risk_coverage` over n, so a constant confidence gives exactly the mean risk.

    Args:
        confidence: ``[N]``.
        risk: ``[N]``, such as 1 - Recall@1.

    Example:
        >>> aurc(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0]))
        0.25
    """
    return float(risk_coverage(confidence, risk).numpy().mean()) if len(risk) else math.nan


def e_aurc(confidence: Tensor, risk: Tensor) -> float:
    """AURC in excess of the best order's: 0 for a perfect confidence (Geifman et al. 2019).

    Example:
        >>> e_aurc(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0]))
        0.0
    """
    return aurc(confidence, risk) - aurc(-risk, risk)


def confidence_auroc(confidence: Tensor, correct: Tensor) -> float:
    """AUROC of telling right from wrong answers (Recall@1) by confidence, ties count half.

    Args:
        confidence: ``[N]``.
        correct: ``[N]`` in [0, 1]; a fraction under tied scores counts in part as right and in part as wrong.

    Returns:
        In [0, 1], 0.5 for an uninformative confidence; nan if all are right or all wrong.

    Example:
        >>> confidence_auroc(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 1.0, 0.0]))
        1.0
    """
    x, y = _pair(confidence, correct)
    if not 0 < y.sum() < len(y):
        return math.nan
    _, group = np.unique(x, return_inverse=True)
    right, wrong = np.bincount(group, weights=y), np.bincount(group, weights=1.0 - y)
    below = np.cumsum(wrong) - wrong
    return float((right * (below + 0.5 * wrong)).sum() / (right.sum() * wrong.sum()))


def risk_rows(
    values: Mapping[str, Tensor], confidences: Mapping[str, Tensor], *, scorer: str = "", oracle: bool = True
) -> Iterator[Row]:
    """AURC and E-AURC of MAP@R and of Recall@1, and the AUROC of Recall@1, for some confidences of the queries.

    Args:
        values: Metrics of every query by name, each ``[Q]``, nan for lone queries
            (:func:`~bench.protocols.retrieval.per_query`).
        confidences: Confidences of the queries by name, each ``[Q]``.
        scorer: Name of the scorer.
        oracle: Add the order by the queries' own values.

    Example:
        >>> found = {"recall_at_1": torch.tensor([1.0, 0.0]), "map_at_r": torch.tensor([1.0, 0.0])}
        >>> rows = risk_rows(found, {"method": torch.tensor([2.0, 1.0])}, oracle=False)
        >>> [(r["metric"], r["variant"], r["value"]) for r in rows][:2]
        [('aurc', 'map_at_r', 0.25), ('e_aurc', 'map_at_r', 0.0)]
    """
    lone = values["recall_at_1"].isnan()
    extra: dict[str, Any] = {"scorer": scorer, "n_queries": int((~lone).sum()), "n_lone": int(lone.sum())}
    for name in [*confidences, *(["oracle"] if oracle else [])]:
        by_metric = {}
        for metric in METRICS:
            order = oracle_confidence(values[metric]) if name == "oracle" else confidences[name]
            by_metric[metric] = kept = order[~lone]
            risk = 1.0 - values[metric][~lone]
            yield row("aurc", aurc(kept, risk), confidence=name, variant=metric, **extra)
            yield row("e_aurc", e_aurc(kept, risk), confidence=name, variant=metric, **extra)
        auroc = confidence_auroc(by_metric["recall_at_1"], values["recall_at_1"][~lone])
        yield row("confidence_auroc", auroc, confidence=name, **extra)
