"""Calibration of a confidence against direct optimisation, loops and scikit-learn."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from bench.protocols.calibration import brier_score, expected_calibration_error, fit_isotonic, fit_platt
from bench.protocols.retrieval_confidence import LogisticFit
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.metrics import brier_score_loss

from .views import rows_of, view_of

pytestmark = pytest.mark.filterwarnings("error")


def _queries(count, seed=0, fractional=False, scale=3.0):
    """Confidences whose logistic function is the probability of a right answer."""
    g = torch.Generator().manual_seed(seed)
    confidence = torch.randn(count, generator=g, dtype=torch.float64)
    probability = torch.sigmoid(scale * confidence + 0.5)
    if fractional:
        return confidence, (probability * torch.rand(count, generator=g, dtype=torch.float64)).clamp(0, 1)
    return confidence, (torch.rand(count, generator=g, dtype=torch.float64) < probability).double()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=12))
def test_isotonic_values_are_the_minimax_means(data):
    """The least-squares monotone function at x: the largest over a <= x of the least mean from a to b >= x."""
    levels = sorted({x for x, _ in data})
    calibrate = fit_isotonic(*(torch.tensor(column, dtype=torch.float64) for column in zip(*data)))

    def mean(a, b):
        inside = [y for x, y in data if a <= x <= b]
        return sum(inside) / len(inside)

    expected = [max(min(mean(a, b) for b in levels if b >= x) for a in levels if a <= x) for x in levels]
    assert calibrate(torch.tensor(levels, dtype=torch.float64)).tolist() == pytest.approx(expected, abs=1e-12)
    ends = calibrate(torch.tensor([-100.0, 100.0], dtype=torch.float64)).tolist()
    assert ends == pytest.approx([expected[0], expected[-1]], abs=1e-12)


@pytest.mark.parametrize("fractional", [False, True], ids=["right or wrong", "fractions"])
@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (1e6, 250.0), (0.0, 1e-9)])
def test_platts_parameters_maximise_his_likelihood(fractional, offset, scale):
    x, y = _queries(300, fractional=fractional)
    target = y * (y.sum() + 1) / (y.sum() + 2) + (1 - y) / ((1 - y).sum() + 2)

    def loss(parameters):
        z = parameters[0] * x.numpy() + parameters[1]
        return float((np.logaddexp(0, z) - target.numpy() * z).mean())

    slope, intercept = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14}).x
    grid = torch.linspace(-3, 3, 13, dtype=torch.float64)
    got = fit_platt(x * scale + offset, y)(grid * scale + offset)
    assert got.tolist() == pytest.approx(torch.sigmoid(slope * grid + intercept).tolist(), abs=1e-5)


@pytest.mark.parametrize("fit", [fit_isotonic, fit_platt, lambda x, y: lambda z: LogisticFit([x], y)([z])])
@pytest.mark.parametrize("unit", [1e-300, 1e-170, 1e-14, 1e170, 1e300])
def test_the_unit_of_a_confidence_does_not_matter(fit, unit):
    x, y = _queries(200)
    fresh = torch.cat([x, torch.tensor([-100.0, 0.1, 100.0])])
    assert fit(x * unit, y)(fresh * unit).tolist() == pytest.approx(fit(x, y)(fresh).tolist(), abs=1e-9)


@pytest.mark.parametrize("fit", [fit_isotonic, fit_platt])
def test_confidences_of_float32_are_fitted_like_the_same_of_float64(fit):
    x, y = _queries(200)
    x = x.float()
    got, expected = fit(x, y.float())(x), fit(x.double(), y)(x.double())
    assert got.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    assert float(got.max() - got.min()) > 0.5


@pytest.mark.parametrize("fit", [fit_isotonic, fit_platt])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("answers", [[0.0] * 4, [1.0] * 4, [0.0, 0.0, 1.0, 1.0]], ids=["wrong", "right", "separated"])
def test_answers_of_one_kind_and_constant_confidences_have_probabilities(fit, constant, answers):
    x, y = torch.full((4,), 7.0) if constant else torch.arange(4.0), torch.tensor(answers)
    probability = fit(x, y)(torch.tensor([-1e6, 1.5, 7.0, 1e6]))
    assert bool(((probability >= 0) & (probability <= 1)).all())
    assert bool((probability.diff() >= -1e-7).all())
    if constant:
        one = (sum(answers) + 1) / 6 if len(set(answers)) == 1 else 0.5
        assert probability.tolist() == pytest.approx([one if fit is fit_platt else sum(answers) / 4] * 4)


@pytest.mark.parametrize("fit", [fit_isotonic, fit_platt])
def test_nothing_to_fit_on_is_refused(fit):
    with pytest.raises(ValueError, match="at least one validation query"):
        fit(torch.zeros(0), torch.zeros(0))
    with pytest.raises(ValueError, match="share in"):
        fit(torch.ones(2), torch.tensor([0.0, 2.0]))
    with pytest.raises(ValueError, match="finite"):
        fit(torch.ones(2), torch.tensor([0.0, math.nan]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=40),
    st.sampled_from([1, 5, 15]),
)
def test_calibration_error_equals_a_loop_over_bins(data, bins):
    total = 0.0
    for b in range(bins):
        # p = k / 30 is in ((b) / bins, (b + 1) / bins]; 0 is in the first bin.
        inside = [(k / 30, y) for k, y in data if 30 * b < k * bins <= 30 * (b + 1) or (k == b == 0)]
        total += abs(sum(p - y for p, y in inside))
    p, y = torch.tensor([k / 30 for k, _ in data], dtype=torch.float64), torch.tensor([y for _, y in data])
    assert expected_calibration_error(p, y, bins) == pytest.approx(total / len(data), abs=1e-12)


@pytest.mark.parametrize("fractional", [False, True])
def test_the_brier_score_is_sklearns(fractional):
    x, y = _queries(50, fractional=fractional)
    p = torch.sigmoid(x)
    weights = torch.cat([y, 1 - y]).numpy()
    expected = brier_score_loss([1] * 50 + [0] * 50, p.repeat(2).numpy(), sample_weight=weights)
    assert brier_score(p, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("voters", [3, 5, 15, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shares_of_votes_lie_in_the_bin_that_exact_numbers_choose(voters, dtype):
    votes = torch.arange(voters + 1).repeat_interleave(2)
    right = (torch.arange(len(votes)) % 3 == 0).double()
    sums = Counter()
    for count, each in zip(votes.tolist(), right.tolist()):
        sums[max(math.ceil(Fraction(15 * count, voters)) - 1, 0)] += count / voters - each
    expected = sum(map(abs, sums.values())) / len(votes)
    assert expected_calibration_error(votes.to(dtype) / voters, right) == pytest.approx(expected, abs=1e-6)


def test_scores_of_probabilities_without_queries_and_out_of_range():
    none = torch.zeros(0)
    for score in (expected_calibration_error, brier_score):
        assert math.isnan(score(none, none))
        with pytest.raises(ValueError, match="probabilities must be in"):
            score(torch.tensor([1.5]), torch.ones(1))
        with pytest.raises(ValueError, match="answers must be in"):
            score(torch.ones(1), torch.tensor([-1.0]))


def _images(seed, labels, **changes):
    """Images of which the noisier ones have a lower ``norm``."""
    g = torch.Generator().manual_seed(seed)
    noise = torch.rand(len(labels), generator=g, dtype=torch.float64)
    x = torch.eye(9, dtype=torch.float64)[labels] + noise[:, None] * torch.randn(len(labels), 9, generator=g)
    confidences = {"norm": -noise, "random": torch.rand(len(labels), generator=g)}
    return view_of(labels, -torch.cdist(x, x), "l2", **({"confidences": confidences} | changes))


def _rows(view):
    return rows_of(view, "calibration", "metric", "confidence", "variant")


def test_rows_are_errors_of_fits_to_validation_answers():
    validation = _images(1, torch.arange(80) // 10)
    view = _images(2, torch.cat([torch.arange(60) // 12, torch.tensor([8])]), validation=validation)
    rows = _rows(view)
    fitted = {"norm+margin+agreement", "margin+agreement"}
    names = {"norm", "random", "top1_score", "margin", "agreement", "spread"} | fitted
    assert {name for _, name, _ in rows} == names
    assert len(rows) == 2 * 2 * len(names)
    answers, values = [], []
    for each in (validation, view):
        scores = each.scorers["l2"]().scores.clone().fill_diagonal_(-math.inf)
        right = (each.labels[scores.argmax(1)] == each.labels).double()
        right[60:] = math.nan if each is view else right[60:]
        rival = scores.masked_fill(each.labels[scores.argmax(1)][:, None] == each.labels, -math.inf).amax(1)
        answers.append(right)
        values.append({**each.confidences, "top1_score": scores.amax(1), "margin": scores.amax(1) - rival})
    together = ("norm", "margin", "agreement")
    for each, own in zip((validation, view), values):
        own["agreement"] = each.retrieval_confidences("l2")["agreement"]
    fit = LogisticFit([values[0][name] for name in together], answers[0])
    for own in values:
        own["+".join(together)] = fit([own[name] for name in together])
    right = answers[1][:60]
    assert 0 < right.mean() < 1
    for name in ("norm", "random", "top1_score", "margin", "norm+margin+agreement"):
        for variant, calibrate in (("isotonic", fit_isotonic), ("platt", fit_platt)):
            p = calibrate(values[0][name].double(), answers[0])(values[1][name][:60])
            ece, brier = rows["ece_top1", name, variant], rows["brier_top1", name, variant]
            assert ece["value"] == pytest.approx(expected_calibration_error(p, right), abs=1e-6), name
            assert brier["value"] == pytest.approx((p - right).square().mean().item(), abs=1e-6), name
            assert (ece["n_queries"], ece["n_lone"]) == (60, 1)


def test_corrupted_images_are_judged_by_the_fit_to_clean_validation_images():
    validation = _images(1, torch.arange(80) // 10)
    view = _images(3, torch.arange(60) // 12, validation=validation, clean=False)
    assert _rows(view)["brier_top1", "norm", "platt"]["value"] > 0


def test_validation_classes_that_are_missing_or_were_trained_on_calibrate_nothing():
    labels = torch.arange(20) // 5
    assert _rows(_images(2, labels)) == {}
    assert _rows(_images(2, labels, validation=_images(1, labels), validation_split="train")) == {}


def test_without_validation_answers_or_a_fit_there_is_no_value():
    labels = torch.arange(20) // 5
    lone = _rows(_images(2, labels, validation=_images(1, torch.arange(9))))
    assert all(math.isnan(row["value"]) for row in lone.values())
    one = _rows(_images(2, labels, validation=_images(1, torch.zeros(9, dtype=torch.long))))  # all answers are right
    for key, row in one.items():
        assert math.isnan(row["value"]) == (key[1] in ("norm+margin+agreement", "margin+agreement")), key
    # One class on both sides, and a constant confidence: the answer is known to be right.
    alone, flat = torch.zeros(9, dtype=torch.long), {"norm": torch.ones(9)}
    sure = _rows(_images(2, alone, confidences=flat, validation=_images(1, alone, confidences=flat)))
    assert sure["ece_top1", "norm", "isotonic"]["value"] == 0.0
