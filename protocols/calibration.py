"""Calibration of a confidence: from any scale to the probability that an answer is right.

A calibration is fitted on the queries of a validation set, whose answers are known, and applied to others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .confidence import fit_on_validation, fitted_together
from .declare import test
from .embeddings import Embeddings
from .retrieval_confidence import as_vectors, logistic_weights, power_of_two
from .rows import Row, kind_of, row

Calibration = Callable[[Tensor], Tensor]
"""Function from confidences ``[N]`` to probabilities, float64 ``[N]`` in [0, 1]."""


def fit_isotonic(confidence: Tensor, correct: Tensor) -> Calibration:
    """Isotonic calibration (Zadrozny and Elkan 2002): the non-decreasing function of the least squared error.

    It is interpolated linearly and constant beyond the confidences of the fit. A confidence that is constant, or falls
    as answers get better, gives the share of right answers.

    Args:
        confidence: Confidence of each validation query, ``[N]``.
        correct: Recall@1 of each, ``[N]`` in [0, 1]; a fraction, which tied scores give, counts partly as right.

    Raises:
        ValueError: If there is no query, the lengths differ, or a value is not finite or no share.

    Example:
        >>> calibrate = fit_isotonic(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 1.0]))
        >>> calibrate(torch.tensor([0.0, 1.5, 9.0])).tolist()
        [0.0, 0.5, 1.0]
    """
    x, y = _checked(confidence, correct)
    known, place = np.unique(x, return_inverse=True)
    count = np.bincount(place)
    # Pools of adjacent values: mean and weight of each, and the number of values (Ayer et al. 1955).
    pools: list[tuple[float, int, int]] = []
    for mean, weight in zip((np.bincount(place, weights=y) / count).tolist(), count.tolist()):
        number = 1
        while pools and pools[-1][0] >= mean:
            lower, more, members = pools.pop()
            mean = (mean * weight + lower * more) / (weight + more)
            weight, number = weight + more, number + members
        pools.append((mean, weight, number))
    fitted = np.repeat([mean for mean, _, _ in pools], [number for *_, number in pools])
    unit = float(power_of_two(confidence.double()))  # slopes between very small confidences leave the range of numbers
    known = known / unit
    return lambda values: torch.from_numpy(
        np.interp(as_vectors(values, values)[0].clip(x.min(), x.max()) / unit, known, fitted)
    )


def fit_platt(confidence: Tensor, correct: Tensor) -> Calibration:
    """Platt's calibration (1999): a logistic function of the confidence of the greatest likelihood.

    As in his paper, the targets are ``(N+ + 1) / (N+ + 2)`` and ``1 / (N- + 2)`` instead of 1 and 0, so it is finite if
    all answers are right or confidence separates them. A constant confidence gives the mean target. Arguments and
    errors are those of :func:`fit_isotonic`.

    Example:
        >>> calibrate = fit_platt(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0]))
        >>> calibrate(torch.tensor([5.0])).tolist()
        [0.5]
    """
    from scipy.special import expit

    middle, scale, slope, intercept = platt_line(confidence, correct)
    if not scale:
        return lambda values: torch.full(values.shape, intercept, dtype=torch.float64)

    def calibrate(values: Tensor) -> Tensor:
        z = (as_vectors(values, values)[0] - middle) / scale
        return torch.from_numpy(expit(slope * z + intercept))

    return calibrate


def platt_line(confidence: Tensor, correct: Tensor) -> tuple[float, float, float, float]:
    """Middle, scale, slope and intercept of :func:`fit_platt`: log odds ``slope (x - middle) / scale + intercept``.

    Of a constant confidence the scale is 0, and the last number is the probability itself.
    """
    x, y = _checked(confidence, correct)
    middle = float(np.median(x))
    scale = float(np.abs(x - middle).max())
    high, low = (y.sum() + 1) / (y.sum() + 2), 1 / ((1 - y).sum() + 2)
    target = y * high + (1 - y) * low
    if not scale:
        return middle, 0.0, 0.0, float(target.mean())
    (slope,), intercept = logistic_weights(((x - middle) / scale)[:, None], target, penalty=0.0)
    return middle, scale, float(slope), intercept


def expected_calibration_error(probability: Tensor, correct: Tensor, bins: int = 15) -> float:
    """Expected calibration error (ECE, Naeini et al. 2015, Guo et al. 2017), lower is better; nan without queries.

    Mean over queries of the distance between the mean probability and the share of right answers of their bin. The bins
    are of equal width, and a probability between two belongs to the lower one, within 1e-6: shares such as 4/15 lie on
    edges, and their rounding must not choose the bin.

    Args:
        probability: Probability that the answer is right, ``[N]`` in [0, 1].
        correct: Recall@1 of each query, ``[N]`` in [0, 1].
        bins: Number of bins.

    Raises:
        ValueError: If the lengths differ, or a value is not in [0, 1].

    Example:
        >>> expected_calibration_error(torch.tensor([0.75, 0.75]), torch.tensor([1.0, 0.0]))
        0.25
    """
    p, y = _shares(probability, correct)
    if not len(p):
        return math.nan
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1] + 1e-6, p, side="left")
    return float(np.abs(np.bincount(place, p) - np.bincount(place, y)).sum() / len(p))


def brier_score(probability: Tensor, correct: Tensor) -> float:
    """Brier score (Brier 1950): mean squared error of the probability, lower is better; nan without queries.

    Of a Recall@1 that is a fraction, the expected score is taken. Arguments and errors are those of
    :func:`expected_calibration_error`.

    Example:
        >>> brier_score(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 1.0]))
        0.125
    """
    p, y = _shares(probability, correct)
    return float((y * (1 - p) ** 2 + (1 - y) * p**2).mean()) if len(p) else math.nan


def _checked(confidence: Tensor, correct: Tensor) -> tuple[np.ndarray, np.ndarray]:
    x, y = as_vectors(confidence, correct)
    if not len(x):
        raise ValueError("calibration needs at least one validation query with a positive")
    if not ((y >= 0) & (y <= 1)).all():
        raise ValueError("answers must be right by a share in [0, 1]")
    return x, y


def _shares(probability: Tensor, correct: Tensor) -> tuple[np.ndarray, np.ndarray]:
    p, y = as_vectors(probability, correct)
    for name, values in (("probabilities", p), ("answers", y)):
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError(f"{name} must be in [0, 1]")
    return p, y


FITS = {"isotonic": fit_isotonic, "platt": fit_platt}
"""Ways to calibrate by their names in tables."""


@test(group="calibration", per="own scorer", needs=("validation",), version=4)
def calibration(view: Embeddings, scorer: str) -> Iterator[Row]:
    """Calibration of "the top-1 answer is right": errors of probabilities that were fitted on validation classes.

    Every confidence is turned into a probability by a fit on the clean images of validation classes, also if the test
    images are corrupted. Judged are image confidences, retrieval confidences, and the logistic combinations with the
    margin, whose weights come from the same images. Mean ranks are not judged: they depend on the other queries.

    The metric is ``ece_top1``, the expected calibration error, or ``brier_top1``, the Brier score; the variant is
    ``isotonic`` or ``platt``. The value is nan if no validation query has a positive, or a combination had nothing to
    be fitted to. There are no rows if the validation classes were trained on.
    """
    validation = view.validation
    if validation is None or view.validation_split != "val":
        return
    known = validation.query_values(scorer, (1,))["recall_at_1"]
    right = view.query_values(scorer, view.options.risk_ks)["recall_at_1"]
    fitted_to, counted = ~known.isnan(), ~right.isnan()
    counts: dict[str, Any] = {"n_queries": int(counted.sum()), "n_lone": int((~counted).sum())}
    for name, (before, now) in _confidences_of_both(view, validation, scorer).items():
        for variant, fit in FITS.items():
            error, brier = math.nan, math.nan
            if before is not None and bool(fitted_to.any()):
                probability = validation.once(
                    f"{variant} calibration of {name} under {scorer}",
                    partial(fit, before[fitted_to], known[fitted_to]),
                )(now[counted])
                error = expected_calibration_error(probability, right[counted])
                brier = brier_score(probability, right[counted])
            for metric, value in (("ece_top1", error), ("brier_top1", brier)):
                yield row(metric, value, confidence=name, variant=variant, **counts)


def _confidences_of_both(
    view: Embeddings, validation: Embeddings, scorer: str
) -> dict[str, tuple[Tensor | None, Tensor]]:
    """Confidences of validation and of test queries by name; None for a combination that was fitted to nothing."""
    of_validation, of_test = (
        {**each.confidences_of_queries(), **each.retrieval_confidences(scorer)} for each in (validation, view)
    )
    both: dict[str, tuple[Tensor | None, Tensor]] = {
        name: (of_validation[name], now) for name, now in of_test.items() if name in of_validation
    }
    for names in fitted_together([name for name in both if kind_of(name) == "image"]):
        fit = fit_on_validation(view, scorer, names)
        if fit is not None:
            before, now = ([known[name] for name in names] for known in (of_validation, of_test))
            both["+".join(names)] = (fit(before) if fit.found else None, fit(now))
    return both
