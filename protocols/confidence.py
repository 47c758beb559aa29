"""Worth of a confidence for retrieval: risk-coverage areas and the detection of wrong answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .confidence_kinds import COMBINED, FITTED, kind_of
from .controls import JUDGED_BY, oracle_confidence
from .declare import test
from .embeddings import Embeddings
from .retrieval_confidence import LogisticFit, mean_rank
from .rows import Row, row
from .vectors import as_vectors


def risk_coverage(confidence: Tensor, risk: Tensor) -> Tensor:
    """Risk-coverage curve ``[N]``: mean risk of the n most confident items for n = 1..N (Geifman et al. 2019).

    Items of equal confidence take the mean risk of their group, the expectation over their orders: a constant
    confidence gives exactly the mean risk everywhere.

    Args:
        confidence: Confidence of each item (such as a query), ``[N]``.
        risk: Risk of each item, ``[N]``, such as 1 - Recall@1.

    Example:
        >>> risk_coverage(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0])).tolist()
        [0.0, 0.5]
    """
    x, y = as_vectors(confidence, risk)
    _, group = np.unique(-x, return_inverse=True)
    mean = np.bincount(group, weights=y) / np.bincount(group)
    expected = mean[np.sort(group)]
    return torch.from_numpy(np.cumsum(expected) / np.arange(1, len(x) + 1))


def aurc(confidence: Tensor, risk: Tensor) -> float:
    """Area under the risk-coverage curve (AURC, Geifman et al. 2019), lower is better; nan without items.

    It is the mean of :func:`risk_coverage` over n, so a constant confidence gives exactly the mean risk.

    Args:
        confidence: Confidence of each item (such as a query), ``[N]``.
        risk: Risk of each item, ``[N]``, such as 1 - Recall@1.

    Example:
        >>> aurc(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0]))
        0.25
    """
    return float(risk_coverage(confidence, risk).numpy().mean()) if len(risk) else math.nan


def e_aurc(confidence: Tensor, risk: Tensor) -> float:
    """Excess AURC: the area under the risk-coverage curve minus that of the best possible order (Geifman et al. 2019).

    It is 0 for a perfect confidence; lower is better.

    Args:
        confidence: Confidence of each item (such as a query), ``[N]``.
        risk: Risk of each item, ``[N]``, such as 1 - Recall@1.

    Example:
        >>> e_aurc(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0]))
        0.0
    """
    return aurc(confidence, risk) - aurc(-risk, risk)


def confidence_auroc(confidence: Tensor, correct: Tensor) -> float:
    """AUROC of telling right from wrong answers (Recall@1) by confidence; ties count half.

    Args:
        confidence: Confidence of each query, ``[N]``.
        correct: Recall@1 of each query, ``[N]`` in [0, 1]; a fraction, which tied scores give, counts partly as right
            and partly as wrong.

    Returns:
        In [0, 1], 0.5 for an uninformative confidence; nan if all are right or all wrong.

    Example:
        >>> confidence_auroc(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 1.0, 0.0]))
        1.0
    """
    x, y = as_vectors(confidence, correct)
    if not 0 < y.sum() < len(y):
        return math.nan
    _, group = np.unique(x, return_inverse=True)
    right, wrong = np.bincount(group, weights=y), np.bincount(group, weights=1.0 - y)
    below = np.cumsum(wrong) - wrong
    return float((right * (below + 0.5 * wrong)).sum() / (right.sum() * wrong.sum()))


def risk_rows(
    values: Mapping[str, Tensor], confidences: Mapping[str, Tensor], *, scorer: str = "", oracle: bool = True
) -> Iterator[Row]:
    """AURC and E-AURC of each confidence for MAP@R and for Recall@1, and its AUROC for Recall@1.

    AURC is the area under the risk-coverage curve of the queries, whose risk is 1 - metric. E-AURC is the AURC minus
    that of the best possible order. The AUROC is that of telling right from wrong queries by their confidence.

    Args:
        values: Metrics of every query by name (``map_at_r``, ``recall_at_1``), each ``[Q]``, nan for queries without a
            positive, which are left out (:func:`~bench.protocols.query_metrics.per_query`).
        confidences: Confidences of the queries by name, each ``[Q]``.
        scorer: Name of the scorer (similarity of embeddings) that the values were computed with; copied to the rows.
        oracle: Add ``oracle``, the best possible confidence, for comparison: each query's own value of the metric.

    Yields:
        Rows (:class:`~bench.protocols.rows.Row`) with ``metric`` (``aurc``, ``e_aurc`` or ``confidence_auroc``),
        ``confidence``, ``value``, and in ``variant`` the metric that gives the risk (empty for the AUROC).

    Example:
        >>> values = {"recall_at_1": torch.tensor([1.0, 0.0]), "map_at_r": torch.tensor([1.0, 0.0])}
        >>> rows = risk_rows(values, {"method": torch.tensor([2.0, 1.0])}, oracle=False)
        >>> [(r["metric"], r["variant"], r["value"]) for r in rows][:2]
        [('aurc', 'map_at_r', 0.25), ('e_aurc', 'map_at_r', 0.0)]
    """
    lone = values["recall_at_1"].isnan()
    extra: dict[str, Any] = {"scorer": scorer, "n_queries": int((~lone).sum()), "n_lone": int(lone.sum())}
    for name in [*confidences, *(["oracle"] if oracle else [])]:
        by_metric = {}
        for metric in JUDGED_BY:
            order = oracle_confidence(values[metric]) if name == "oracle" else confidences[name]
            by_metric[metric] = kept = order[~lone]
            risk = 1.0 - values[metric][~lone]
            yield row("aurc", aurc(kept, risk), confidence=name, variant=metric, **extra)
            yield row("e_aurc", e_aurc(kept, risk), confidence=name, variant=metric, **extra)
        auroc = confidence_auroc(by_metric["recall_at_1"], values["recall_at_1"][~lone])
        yield row("confidence_auroc", auroc, confidence=name, **extra)


@test(group="risk", per="scorer")
def risk(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Areas under risk-coverage curves (AURC) of confidences, and their AUROC of telling right from wrong answers.

    An answer is right if the nearest neighbour has the query's class. The retrieval confidences, which the ranking
    itself gives, are judged under every scorer. Those of the images (known before there is a gallery) are judged under
    the scorers chosen for that; so is each of them combined with the margin, by the mean of the ranks that the queries
    have by the two, and by a logistic fit on validation classes if there are any: this tells whether the image
    confidence adds anything to the margin, which costs nothing. Two confidences serve for comparison: a random one and
    the oracle, the best possible one, which is each query's own value of the metric.

    Args:
        view: The embedded images, with their confidences (one of them random), if they have any.
        scorer: Name of the scorer (similarity of embeddings) that ranks the gallery.

    Yields:
        Rows (:class:`~bench.protocols.rows.Row`) with ``metric``, ``confidence`` and ``value``. The metric is ``aurc``,
        ``e_aurc`` (AURC minus that of the oracle) or ``confidence_auroc``. The risk of an AURC is 1 - ``map_at_r`` or
        1 - ``recall_at_1``; ``variant`` names this metric. The value is nan for a logistic fit if all answers on the
        validation classes are right, or all wrong. :func:`~bench.protocols.confidence_kinds.kind_of` tells the
        kinds of confidences apart by their names.
    """
    values = view.query_values(scorer, view.options.risk_ks)
    of_images = view.confidences_of_queries() if scorer in view.own_scorers else {}
    if of_images:
        yield from risk_rows(values, of_images, scorer=scorer)
    of_ranking = view.retrieval_confidences(scorer)
    combined: dict[str, Tensor] = {}
    gaps: dict[str, Tensor] = {}
    for name, confidence in of_images.items():
        if kind_of(name) == "image":
            combined[f"{name}{COMBINED}"] = mean_rank(confidence, of_ranking["margin"])
            fit = _fit_on_validation(view, scorer, name)
            if fit is not None:
                (combined if fit.found else gaps)[f"{name}{FITTED}"] = fit(confidence, of_ranking["margin"])
    yield from risk_rows(values, {**of_ranking, **combined}, scorer=scorer, oracle=False)
    for line in risk_rows(values, gaps, scorer=scorer, oracle=False):
        yield {**line, "value": math.nan}


def _fit_on_validation(view: Embeddings, scorer: str, name: str) -> LogisticFit | None:
    """Combination of an image confidence and the margin that suits clean images of validation classes."""
    validation = view.validation
    if validation is None or view.validation_split != "val" or name not in validation.confidences:
        return None

    def fit() -> LogisticFit:
        own, margin = validation.confidences_of_queries()[name], validation.retrieval_confidences(scorer)["margin"]
        return LogisticFit.of(own, margin, validation.query_values(scorer, (1,))["recall_at_1"])

    return validation.once(f"fit of {name} under {scorer}", fit)
