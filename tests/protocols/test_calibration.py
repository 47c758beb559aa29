"""Calibration of a confidence against direct optimisation, loops and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from bench.protocols.calibration import brier_score, expected_calibration_error, fit_isotonic, fit_platt
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.metrics import brier_score_loss

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


@pytest.mark.parametrize("fit", [fit_isotonic, fit_platt])
def test_calibrated_probabilities_are_right_as_often_as_they_say(fit):
    x, y = _queries(4000)
    fresh, answers = _queries(4000, seed=1)
    probability = fit(x, y)(fresh)
    raw = torch.sigmoid(fresh)
    assert expected_calibration_error(probability, answers) < 0.03 < expected_calibration_error(raw, answers)
    assert brier_score(probability, answers) < brier_score(raw, answers)


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


def test_scores_of_probabilities_without_queries_and_out_of_range():
    none = torch.zeros(0)
    for score in (expected_calibration_error, brier_score):
        assert math.isnan(score(none, none))
        with pytest.raises(ValueError, match="probabilities must be in"):
            score(torch.tensor([1.5]), torch.ones(1))
        with pytest.raises(ValueError, match="answers must be in"):
            score(torch.ones(1), torch.tensor([-1.0]))
