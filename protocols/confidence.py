"""Worth of a confidence for retrieval: risk-coverage areas and the detection of wrong answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .declare import test
from .embeddings import Embeddings
from .retrieval_confidence import JUDGED_BY, LogisticFit, as_vectors, mean_rank, oracle_confidence
from .rows import AGREEMENT, COMBINED, MARGIN, Row, kind_of, row

COVERAGE = 0.8
"""Coverage at which tables give the risk."""

RISK = 0.05
"""Risk at which tables give the coverage."""


def risk_coverage(confidence: Tensor, risk: Tensor) -> Tensor:
    """Risk-coverage curve ``[N]``: mean risk of the n most confident items for n = 1..N (Geifman et al. 2019).

    Items of equal confidence take the mean risk of their group, the expectation over their orders: a constant
    confidence gives exactly the mean risk everywhere. Confidence and risk, such as 1 - Recall@1, are ``[N]`` for N
    items.

    Example:
        >>> risk_coverage(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0])).tolist()
        [0.0, 0.5]
    """
    x, y = as_vectors(confidence, risk)
    _, group, sizes = np.unique(-x, return_inverse=True, return_counts=True)
    expected = np.repeat(np.bincount(group, weights=y) / sizes, sizes)
    return torch.from_numpy(np.cumsum(expected) / np.arange(1, len(x) + 1))


def aurc(confidence: Tensor, risk: Tensor) -> float:
    """Area under the risk-coverage curve (AURC, Geifman et al. 2019), lower is better; nan without items.

    It is the mean of :func:`risk_coverage` over n, so a constant confidence gives exactly the mean risk.

    Example:
        >>> aurc(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0]))
        0.25
    """
    return _area(risk_coverage(confidence, risk))


def e_aurc(confidence: Tensor, risk: Tensor) -> float:
    """Excess AURC: the area under the risk-coverage curve minus that of the best possible order (Geifman et al. 2019).

    It is 0 for a perfect confidence; lower is better. Arguments are those of :func:`risk_coverage`.

    Example:
        >>> e_aurc(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0]))
        0.0
    """
    return aurc(confidence, risk) - aurc(-risk, risk)


def augrc(confidence: Tensor, risk: Tensor) -> float:
    """Area under the generalised risk-coverage curve (AUGRC, Traub et al. 2024), lower is better; nan without items.

    The generalised risk at coverage n / N is the total risk of the n most confident items divided by N: if risks are
    errors, the share of all items that are wrong and accepted. The area is that of the trapezoids from (0, 0) on. With
    the expectation over the orders of equal confidences it equals ``(1 - AUROC) a (1 - a) + (1 - a)^2 / 2``, where ``1
    - a`` is the mean risk and AUROC is :func:`confidence_auroc`; so it is in [0, 1/2], and unlike AURC it does not
    weigh an error more if the items before it are few. Arguments are those of :func:`risk_coverage`.

    Example:
        >>> augrc(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0]))
        0.125
    """
    return _generalised_area(risk_coverage(confidence, risk))


def risk_at_coverage(confidence: Tensor, risk: Tensor, coverage: float) -> float:
    """Mean risk of the most confident items, the smallest number of them that is a share ``coverage`` of all.

    It is a point of the risk-coverage curve (El-Yaniv and Wiener 2010), lower is better; nan without items. Items of
    equal confidence count by the expectation over their orders.

    Raises:
        ValueError: If the coverage is not in (0, 1].

    Example:
        >>> risk_at_coverage(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0]), 0.5)
        0.0
    """
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage must be in (0, 1], not {coverage:g}")
    return _risk_at(risk_coverage(confidence, risk), coverage)


def coverage_at_risk(confidence: Tensor, risk: Tensor, largest: float) -> float:
    """Largest share of the items, the most confident ones, whose mean risk is at most ``largest``.

    Higher is better (Geifman and El-Yaniv 2017); nan without items. It is 0 if the risk is larger at every coverage.
    Items of equal confidence count by the expectation over their orders.

    Example:
        >>> coverage_at_risk(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0]), 0.05)
        0.5
    """
    return _coverage_at(risk_coverage(confidence, risk), largest)


def _area(curve: Tensor) -> float:
    """Area under a risk-coverage curve."""
    return float(curve.numpy().mean()) if len(curve) else math.nan


def _generalised_area(curve: Tensor) -> float:
    """Area under the generalised curve of a risk-coverage curve, by trapezoids from (0, 0)."""
    if not len(curve):
        return math.nan
    accepted = curve.numpy() * np.arange(1, len(curve) + 1) / len(curve)
    return float((accepted.sum() - accepted[-1] / 2) / len(curve))


def _risk_at(curve: Tensor, coverage: float) -> float:
    # Less a billionth of an item: 0.07 * 100 is a little more than 7.
    return float(curve[max(math.ceil(coverage * len(curve) - 1e-9), 1) - 1]) if len(curve) else math.nan


def _coverage_at(curve: Tensor, largest: float) -> float:
    # The tolerance is for sums of mean risks of equal confidences.
    allowed = np.flatnonzero(curve.numpy() <= largest + 1e-12)
    if not len(curve):
        return math.nan
    return float(allowed[-1] + 1) / len(curve) if len(allowed) else 0.0


def confidence_auroc(confidence: Tensor, correct: Tensor) -> float:
    """AUROC of telling right from wrong answers by confidence, 0.5 if uninformative; nan if all are right or all wrong.

    ``correct`` is the Recall@1 of each query, ``[N]`` in [0, 1]; a fraction, which tied scores give, counts partly as
    right and partly as wrong. Tied confidences count half.

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


def risk_rows(values: Mapping[str, Tensor], confidences: Mapping[str, Tensor], *, oracle: bool = True) -> Iterator[Row]:
    """AURC, E-AURC and AUGRC of each confidence for MAP@R and Recall@1; for Recall@1, points of the curve and AUROC.

    Metrics (``map_at_r``, ``recall_at_1``) and confidences of the queries are ``[Q]`` each by name; queries without a
    positive, of which a metric is nan, are left out. ``oracle`` adds the best possible confidence: each query's own
    value of the metric. The ``variant`` of a row is the metric that gives the risk, 1 - metric (empty for the AUROC),
    followed by the coverage or the risk at which the value is read off, as in ``recall_at_1,coverage=0.8``.

    Example:
        >>> values = {"recall_at_1": torch.tensor([1.0, 0.0]), "map_at_r": torch.tensor([1.0, 0.0])}
        >>> rows = risk_rows(values, {"method": torch.tensor([2.0, 1.0])}, oracle=False)
        >>> [(r["metric"], r["variant"], r["value"]) for r in rows][:2]
        [('aurc', 'map_at_r', 0.25), ('e_aurc', 'map_at_r', 0.0)]
    """
    lone = values["recall_at_1"].isnan()
    best = {}
    for metric in JUDGED_BY:
        risk = 1.0 - values[metric][~lone]
        best[metric] = aurc(-risk, risk)
    extra: dict[str, Any] = {"n_queries": int((~lone).sum()), "n_lone": int(lone.sum())}
    for name in [*confidences, *(["oracle"] if oracle else [])]:
        for metric in JUDGED_BY:
            order = oracle_confidence(values[metric]) if name == "oracle" else confidences[name]
            kept, right = order[~lone], values[metric][~lone]
            curve = risk_coverage(kept, 1.0 - right)
            area = _area(curve)
            yield row("aurc", area, confidence=name, variant=metric, **extra)
            yield row("e_aurc", area - best[metric], confidence=name, variant=metric, **extra)
            yield row("augrc", _generalised_area(curve), confidence=name, variant=metric, **extra)
            if metric == "recall_at_1":
                at = f"{metric},coverage={COVERAGE:g}"
                yield row("risk_at_coverage", _risk_at(curve, COVERAGE), confidence=name, variant=at, **extra)
                at = f"{metric},risk={RISK:g}"
                yield row("coverage_at_risk", _coverage_at(curve, RISK), confidence=name, variant=at, **extra)
                yield row("confidence_auroc", confidence_auroc(kept, right), confidence=name, **extra)


@test(group="risk", per="scorer", version=4)
def risk(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Areas under risk-coverage curves of confidences, points of them, and their AUROC of right and wrong answers.

    An answer is right if the nearest neighbour has the query's class. Judged are the confidences of the images (known
    before there is a gallery), those that the ranking itself gives, and combinations of both: each image confidence
    with the margin, by the mean of the ranks that the queries have by the two; and with the margin and the agreement,
    by a logistic fit on validation classes if there are any. The fit of the margin and the agreement alone, which cost
    nothing, tells whether the image confidence adds anything. Images of the validation classes themselves are judged by
    fits to the other classes. Two confidences serve for comparison: a random one and
    the oracle, the best possible one, which is each query's own value of the metric. The rows are those of
    :func:`risk_rows`; the value is nan for a logistic fit if all answers on the validation classes are right, or all
    wrong.
    """
    values = view.query_values(scorer, view.options.risk_ks)
    of_images = view.confidences_of_queries()
    if of_images:
        yield from risk_rows(values, of_images)
    of_ranking = view.retrieval_confidences(scorer)
    combined, gaps = combined_confidences(view, scorer)
    # Gaps keep their place: rows of several models are averaged one by one.
    for line in risk_rows(values, {**of_ranking, **combined}, oracle=False):
        yield {**line, "value": math.nan} if line["confidence"] in gaps else line


def combined_confidences(view: Embeddings, scorer: str) -> tuple[dict[str, Tensor], set[str]]:
    """Confidences combined with those of the ranking by name, each ``[Q]``; and the names of those without a meaning.

    Fits have no meaning on validation classes all of whose answers are right, or all wrong.
    """
    of_images, of_ranking = view.confidences_of_queries(), view.retrieval_confidences(scorer)
    images = [name for name in of_images if kind_of(name) == "image"]
    combined = {f"{name}{COMBINED}": mean_rank(of_images[name], of_ranking[MARGIN]) for name in images}
    gaps: set[str] = set()
    for names in fitted_together(images):
        fit = fit_on_validation(view, scorer, names)
        if fit is not None:
            together = "+".join(names)
            values = [(of_images | of_ranking)[name] for name in names]
            combined[together] = _by_others(view, scorer, names, values) if view.held_out else fit(values)
            gaps |= set() if fit.found else {together}
    return combined, gaps


FOLDS = 5
"""Parts of the validation classes; images of each are judged by a fit to the others."""


def _by_others(view: Embeddings, scorer: str, names: Sequence[str], values: Sequence[Tensor]) -> Tensor:
    """Values of fits for queries of validation classes, ``[Q]``, none of which has seen the query's class."""
    found, part = torch.zeros(len(values[0]), dtype=torch.float64), _part(view)
    for number in range(FOLDS):
        fit, own = fit_on_validation(view, scorer, names, without=number), part == number
        if fit is not None:
            found[own] = fit([each[own] for each in values])
    return found


def _part(view: Embeddings) -> Tensor:
    """Part of the classes, from 0 to :data:`FOLDS` - 1, of each query."""
    number: Tensor = torch.unique(view.labels, return_inverse=True)[1]
    return number[view.query_rows] % FOLDS


def fitted_together(images: Iterable[str]) -> list[tuple[str, ...]]:
    """Names of confidences that are fitted together: the margin and the agreement, alone and with each of images."""
    return [*((name, MARGIN, AGREEMENT) for name in images), (MARGIN, AGREEMENT)]


def fit_on_validation(
    view: Embeddings, scorer: str, names: Sequence[str], without: int | None = None
) -> LogisticFit | None:
    """Combination of confidences that suits clean images of validation classes, all or ``without`` a part of them.

    It is None if there are no validation classes, they were trained on, or their images lack one of the confidences.
    """
    validation = view if view.held_out and view.clean else view.validation
    if validation is None or view.validation_split != "val" or scorer not in validation.scorers:
        return None
    if any(kind_of(name) == "image" and name not in validation.confidences for name in names):
        return None

    def fit() -> LogisticFit:
        known = validation.confidences_of_queries() | validation.retrieval_confidences(scorer)
        right = validation.query_values(scorer, (1,))["recall_at_1"]
        right = right if without is None else right.masked_fill(_part(validation) == without, math.nan)
        return LogisticFit([known[name] for name in names], right)

    return validation.once(f"fit of {'+'.join(names)} under {scorer} without {without}", fit)
