"""Multiple comparisons with the best, against simulations of a known truth."""

import numpy as np
import pytest
from bench.protocols.statistics import may_be_best

DRAWS = 20_000


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("methods", "missed"),
    [(2, pytest.approx(0.05, abs=0.005)), (6, pytest.approx(0.035, abs=0.015))],
    ids=["two: exact", "six: at most 5 %"],
)
def test_the_best_is_left_out_seldom_at_any_variances(methods, missed, rng):
    spread = np.geomspace(0.2, 5, methods)
    means = np.array([1e-9] + [0.0] * (methods - 1))
    seeds = means + rng.normal(size=(DRAWS, 5, 1)) + spread * rng.normal(size=(DRAWS, 5, methods))
    assert 1 - np.mean([may_be_best(values)[0] for values in seeds]) == missed


def test_sets_shrink_to_the_best_one(rng):
    values = np.array([3.0, 1.0, 0.0]) + 0.01 * rng.normal(size=(5, 3))
    assert may_be_best(values).tolist() == [True, False, False]


def test_seeds_that_shift_all_methods_alike_do_not_count(rng):
    values = rng.normal(size=(5, 4))
    shifted = values + 100 * rng.normal(size=(5, 1))
    assert may_be_best(shifted).tolist() == may_be_best(values).tolist()


@pytest.mark.parametrize("values", [np.ones((1, 3)), np.ones((3, 1)), np.ones(3), np.array([[1.0, np.nan]] * 2)])
def test_too_few_or_undefined_values_are_refused(values):
    with pytest.raises(ValueError, match="two seeds and two methods"):
        may_be_best(values)
