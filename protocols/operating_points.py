"""Operating points: from which confidence on is a decision accepted, and how sure is it?

A decision is accepted if its confidence reaches a threshold. It is about a ``pair`` of images (accepted as one class),
the first ``answer`` of a ranking (trusted), or the question whether a query is ``known`` (accepted as one of the
gallery's classes). Thresholds are chosen on some cases, and what they give is measured on others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from .calibration import brier_score, expected_calibration_error, fit_isotonic, platt_line
from .statistics.bootstrap import ratio_intervals

WISHES = {"pair": ("far",), "answer": ("risk", "coverage"), "known": ("far",)}
"""What may be wished for each decision.

``risk`` is the largest share of wrong ones among the accepted, ``coverage`` the least share of cases that are accepted,
``far`` the largest share of different pairs, or of unknown queries, that are accepted."""

MISSING = 0.1
"""Largest probability with which a guaranteed threshold breaks the wish: the guarantee is one at 90 %."""

_FIRST, _RESTART, _STEPS = 2, 4, 128
"""Accepted cases that are tested first, as a multiple of those that no error would need; their ratio from one new start
to the next; and the tests between two of these. Found by trial to lose little on sets of 200 to 8,000 queries."""


@dataclass(frozen=True, eq=False)
class Cases:
    """N decided cases: ``confidence`` ``[N]``, and whether accepting each is ``right``, ``[N]`` in [0, 1].

    A fraction, which tied scores give, is the probability of being right. ``groups`` ``[N]`` are the classes of the
    cases as numbers; of pairs, ``others`` ``[N]`` are those of the second image.
    """

    confidence: np.ndarray
    right: np.ndarray
    groups: np.ndarray
    others: np.ndarray | None = None

    def __post_init__(self) -> None:
        arrays = [np.asarray(array) for array in (self.confidence, self.right, self.groups)]
        if len({array.shape for array in arrays}) > 1 or arrays[0].ndim != 1:
            raise ValueError(f"expected vectors of one length, got {', '.join(str(each.shape) for each in arrays)}")
        if not np.isfinite(self.confidence).all() or not ((arrays[1] >= 0) & (arrays[1] <= 1)).all():
            raise ValueError("confidences must be finite, and cases right by a share in [0, 1]")


@dataclass(frozen=True)
class Choice:
    """A threshold, which accepts what reaches it, and why there is none, or what to know of it."""

    threshold: float | None
    reason: str = ""


def choose(cases: Cases, wish: str, value: float, missing: float | None = None) -> Choice:
    """Choose the threshold on some cases that grants a wish and otherwise accepts as much as it can.

    Without ``missing``, the wish holds for these very cases: of others it is broken about as often as not. For a
    coverage it is the strictest threshold, else the loosest.

    With ``missing``, it is broken by future cases of the same kind with at most that probability (learn then test,
    Angelopoulos et al. 2021, arXiv:2110.01052; for the risk, selection with guaranteed risk, Geifman and El-Yaniv 2017,
    arXiv:1705.08500). "The threshold breaks the wish" is refuted by the binomial tail given the number of cases:
    accepted ones for ``risk``, wrong ones for ``far``, all for ``coverage``. Thresholds are tested from safe to unsafe.
    The share of wrong ones among few accepted fluctuates; so the tests of ``risk`` start anew where their number has
    grown fourfold, each time with an equal part of ``missing`` (the fallback procedure, Wiens and Dmitrienko 2005,
    doi:10.1080/10543400500265660). A partly right case counts as wrong. This presumes cases
    that are exchangeable, drawn one by one from one source, and for ``risk`` that it rises as the threshold falls.
    Cases of new classes are not so drawn: the guarantee falls short there.

    Args:
        cases: The cases, of whatever classes.
        wish: ``risk``, ``coverage`` or ``far``.
        value: The wished share, in (0, 1).
        missing: Largest probability of breaking the wish.

    Returns:
        The choice. There is no threshold, but a reason, if none grants the wish, or there are too few cases: one
        wrong case would be more than is allowed, or no number of right ones would be enough.

    Raises:
        ValueError: If the wish is unknown, or a share is not in (0, 1).

    Example:
        >>> cases = Cases(np.array([3.0, 2.0, 1.0]), np.array([1.0, 1.0, 0.0]), np.arange(3))
        >>> choose(cases, "risk", 0.4).threshold, choose(cases, "coverage", 0.6).threshold
        (1.0, 2.0)
        >>> choose(cases, "far", 0.01, missing=0.1).reason
        'a far of 0.01 needs 230 cases to reject, there are 1'
    """
    if wish not in ("risk", "coverage", "far") or not 0 < value < 1 or not 0 < (missing or 0.5) < 1:
        raise ValueError(f"wish for risk, coverage or far in (0, 1), not {wish}={value:g}")
    if not len(cases.confidence):
        return Choice(None, "there are no cases")
    thresholds, bad, total, limit = _sequence(cases, wish, value, whole=missing is not None)
    most, need = round(total.max()), math.ceil(math.log(missing) / math.log1p(-limit) if missing else 1 / limit - 1e-9)
    if most < need if missing else wish != "coverage" and most * limit < 1:
        what = "cases to reject" if wish == "far" else "cases"
        return Choice(None, f"a {wish} of {value:g} needs {need:,} {what}, there are {most:,}")
    met = bad <= limit * total + 1e-9 if missing is None else _refuted(bad, total, limit, missing, need)
    if not met.any():
        constant = "the confidence is constant" if len(thresholds) == 1 else "no threshold grants it"
        return Choice(None, f"{constant}: a {wish} of {value:g}{'' if missing is None else ' cannot be guaranteed'}")
    note = "no wrong case was seen, so all are accepted" if wish == "risk" and not bad.any() else ""
    return Choice(float(thresholds[np.flatnonzero(met)[-1]]), note)


def _sequence(cases: Cases, wish: str, value: float, whole: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Distinct thresholds from safe to unsafe, bad and all cases of each ``[T]``, and the largest share of bad ones."""
    wrong = (cases.right < 1).astype(float) if whole else 1.0 - cases.right
    negative, group = np.unique(-cases.confidence, return_inverse=True)
    accepted, errors = np.bincount(group).cumsum(), np.bincount(group, wrong).cumsum()
    if wish == "coverage":
        return -negative[::-1], (len(group) - accepted)[::-1], np.full(len(negative), len(group)), 1.0 - value
    return -negative, errors, accepted if wish == "risk" else np.full(len(negative), wrong.sum()), value


def _refuted(bad: np.ndarray, total: np.ndarray, limit: float, missing: float, need: int) -> np.ndarray:
    """Thresholds ``[T]`` of which it is refuted that their share of bad cases is above the limit."""
    from scipy.special import bdtr  # scipy.stats takes a second to import

    chance = bdtr(bad, np.asarray(total, dtype=int), limit)
    if total[0] == total[-1]:  # the same cases for all thresholds: chances ascend, and one sequence is enough
        return np.asarray(chance <= missing)
    first = min(_FIRST * need, total[-1])
    starts = int(math.log(total[-1] / first, _RESTART)) + 1
    counts = first * _RESTART ** (np.arange(starts * _STEPS) / _STEPS)
    met, level, last = np.zeros(len(total), dtype=bool), 0.0, -1
    for number, place in enumerate(np.searchsorted(total, np.minimum(np.ceil(counts), total[-1])).tolist()):
        level += 0.0 if number % _STEPS else missing / starts
        if place != last:
            level = level if chance[place] <= level else 0.0
            met[place], last = level > 0, place
    return met


MEASURED = tuple(f"{name}{end}" for name in ("coverage", "risk", "far", "tar") for end in ("", "_low", "_high"))
"""What a threshold gives, with the ends of 95 % percentile intervals over draws of classes.

``tar`` is the share of right ones that are accepted."""


def measure(cases: Cases, thresholds: list[float], *, resamples: int = 500, seed: int = 0) -> list[dict[str, float]]:
    """Measure what each threshold gives on cases (:data:`MEASURED`), with intervals for other classes of the same kind.

    A share is nan if there are no cases of which it could be one. Classes are drawn with replacement, with all their
    cases (:func:`~.statistics.bootstrap.ratio_intervals`); a share of 0 or 1, which no draw changes, has the exact
    bound of independent cases (Clopper and Pearson 1934).

    Raises:
        ValueError: If there is no case.

    Example:
        >>> cases = Cases(np.array([3.0, 2.0, 1.0]), np.array([1.0, 0.0, 1.0]), np.arange(3))
        >>> found = measure(cases, [2.0])[0]
        >>> round(found["coverage"], 3), found["risk"], found["far"], found["tar"]
        (0.667, 0.5, 1.0, 0.5)
    """
    if not len(cases.confidence):
        raise ValueError("there are no cases to measure a threshold on")
    columns = [each for threshold in thresholds for each in _ratios(cases, threshold)]
    if not columns:
        return []
    top, bottom = (np.stack(each, 1) for each in zip(*columns))
    classes = [cases.groups] if cases.others is None else [cases.groups, cases.others]
    numbers = np.split(np.unique(np.concatenate(classes), return_inverse=True)[1], len(classes))
    low, high = ratio_intervals(top, bottom, *numbers, resamples=resamples, seed=seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = top.sum(0) / bottom.sum(0)
        least = 0.025 ** (1.0 / bottom.sum(0))
    low, high = np.where(value == 1.0, least, low), np.where(value == 0.0, 1.0 - least, high)
    values = np.stack([value, low, high], 1).reshape(len(thresholds), -1)
    return [dict(zip(MEASURED, each)) for each in values.tolist()]


def _ratios(cases: Cases, threshold: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """What is summed above and below the line for the four shares that a threshold gives, ``[N]`` each."""
    accepted, right = (cases.confidence >= threshold).astype(float), cases.right
    wrong = accepted * (1.0 - right)
    return [(accepted, np.ones(len(right))), (wrong, accepted), (wrong, 1.0 - right), (accepted * right, right)]


def shares(cases: Cases, threshold: float) -> dict[str, float]:
    """Coverage, risk, far and tar by name; nan of nothing, and all of them without a threshold (nan)."""
    sums = [(float(top.sum()), float(bottom.sum())) for top, bottom in _ratios(cases, threshold)]
    found = [top / bottom if bottom and not math.isnan(threshold) else math.nan for top, bottom in sums]
    return dict(zip(MEASURED[::3], found))


@dataclass(frozen=True)
class ProbabilityMap:
    """Probability that accepting is right, by a confidence; never falling, unless a slope is negative.

    ``logistic``: ``1 / (1 + exp(-(slope * confidence + intercept)))``. ``isotonic``: linear between the knots ``x`` and
    ``y``, constant beyond.
    """

    kind: str
    slope: float = 0.0
    intercept: float = 0.0
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()

    def __call__(self, confidence: np.ndarray) -> np.ndarray:
        """Probabilities ``[N]`` in [0, 1]."""
        if self.kind == "isotonic":
            return np.asarray(np.interp(confidence, self.x, self.y))
        from scipy.special import expit

        return np.asarray(expit(self.slope * confidence + self.intercept))


FOLDS, COMPARED = 5, 10_000
"""Parts of the classes by which maps are compared, and about the largest number of cases that takes part in that."""


def fit_map(cases: Cases) -> ProbabilityMap:
    """Fit the map, logistic or isotonic, whose Brier score is lower on classes that it was not fitted to.

    It is logistic if there is one class only, or nothing is right or wrong.

    Example:
        >>> fit_map(Cases(np.array([1.0, 1.0]), np.array([1.0, 0.0]), np.arange(2)))(np.array([5.0])).tolist()
        [0.5]
    """
    classes, number = np.unique(cases.groups, return_inverse=True)
    step = max(1, min(len(number) // COMPARED, len(classes) // FOLDS))
    some = number % step == 0
    confidence, right, part = cases.confidence[some], cases.right[some], number[some] // step % FOLDS
    errors = {}
    for kind in _FITS if part.max(initial=0) and 0 < right.sum() < len(part) else ():
        found = np.empty(len(part))
        for fold in range(part.max() + 1):
            out = part == fold
            found[out] = _FITS[kind](confidence[~out], right[~out])(confidence[out])
        errors[kind] = _brier(found, right)
    return _FITS[min(errors, key=errors.__getitem__, default="logistic")](cases.confidence, cases.right)


def _logistic(confidence: np.ndarray, right: np.ndarray) -> ProbabilityMap:
    middle, scale, slope, intercept = platt_line(*map(torch.from_numpy, (confidence, right)))
    if not scale:
        return ProbabilityMap("logistic", 0.0, math.log(intercept / (1.0 - intercept)))
    return ProbabilityMap("logistic", slope / scale, intercept - slope * middle / scale)


def _isotonic(confidence: np.ndarray, right: np.ndarray) -> ProbabilityMap:
    x = np.unique(confidence)
    y = fit_isotonic(*map(torch.from_numpy, (confidence, right)))(torch.from_numpy(x)).numpy()
    # Knots inside a flat stretch say nothing.
    kept = np.append(True, y[1:] != y[:-1]) | np.append(y[1:] != y[:-1], True)
    return ProbabilityMap("isotonic", x=tuple(x[kept].tolist()), y=tuple(y[kept].tolist()))


_FITS = {"logistic": _logistic, "isotonic": _isotonic}


BINS = 10

Reliability = dict[str, float | list[dict[str, float]]]
"""``bins`` that have cases, with their mean ``probability`` and the share that is ``right``, and errors by name."""


def reliability(probability: np.ndarray, right: np.ndarray, *, draws: int = 200, seed: int = 0) -> Reliability:
    """Compare probabilities ``[N]`` with what was right, ``[N]``: ten equal bins, Brier score, calibration error.

    The expected calibration error is above 0 for true probabilities, too, and more so for fewer cases (Roelofs et al.
    2022, arXiv:2012.08668). What it would be, ``ece_if_true``, is the mean over outcomes that are drawn by the
    probabilities themselves (consistency resampling, Broecker and Smith 2007, doi:10.1175/WAF993.1), case by case:
    cases of a class that are right or wrong together show more.

    Example:
        >>> found = reliability(np.array([0.75, 0.75]), np.array([1.0, 0.0]))
        >>> found["bins"], found["ece"]
        ([{'probability': 0.75, 'right': 0.5, 'cases': 2}], 0.25)
    """
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], probability, side="left")
    counts = np.bincount(place, minlength=BINS)
    means, shares = (np.bincount(place, values, minlength=BINS) for values in (probability, right))
    found = zip(means.tolist(), shares.tolist(), counts.tolist())
    bins = [{"probability": p / n, "right": y / n, "cases": n} for p, y, n in found if n]
    generator, errors = np.random.default_rng(seed), []
    for _ in range(draws):
        drawn = np.bincount(place, generator.random(len(place)) < probability, minlength=BINS)
        errors.append(float(np.abs(drawn - means).sum() / max(len(place), 1)))
    both = torch.from_numpy(probability), torch.from_numpy(right)
    ece = expected_calibration_error(*both, bins=BINS)
    brier = _brier(probability, right)
    return {"bins": bins, "brier": brier, "ece": ece, "ece_if_true": float(np.mean(errors))}


def _brier(probability: np.ndarray, right: np.ndarray) -> float:
    return brier_score(torch.from_numpy(probability), torch.from_numpy(right))
