"""Multiple comparisons with the best, against SciPy's distributions and simulations of a known truth."""

import numpy as np
import pytest
from bench.protocols.statistics import best_intervals, dunnett_quantile, may_be_best
from scipy import stats

DRAWS = 20_000


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("freedom", [1, 4, 100])
def test_one_comparison_is_a_t_test(freedom):
    assert dunnett_quantile(1, freedom) == pytest.approx(stats.t.ppf(0.95, freedom), rel=2e-3)


@pytest.mark.parametrize(("comparisons", "freedom"), [(2, 5), (4, 20), (9, 10), (25, 100)])
def test_the_quantile_is_that_of_correlated_t_statistics(comparisons, freedom):
    shape = 0.5 + 0.5 * np.eye(comparisons)
    joint = stats.multivariate_t(shape=shape, df=freedom, seed=0)
    bound = dunnett_quantile(comparisons, freedom)
    assert joint.cdf(np.full(comparisons, bound), maxpts=200_000) == pytest.approx(0.95, abs=2e-4)


@pytest.mark.parametrize(("comparisons", "freedom", "value"), [(2, 5, 2.44), (4, 20, 2.30), (9, 10, 2.81)])
def test_quantiles_of_dunnetts_table(comparisons, freedom, value):
    """Dunnett (1955), table 1a, one-sided comparisons at 5 %."""
    assert round(dunnett_quantile(comparisons, freedom), 2) == value


def test_intervals_of_equal_variances_miss_as_often_as_they_may(rng):
    """The worst case: all methods equal but for a lead of the first that no data can show."""
    means = np.array([1e-9, 0, 0, 0, 0, 0])
    truth = means - np.array([np.delete(means, method).max() for method in range(6)])
    missed = 0
    for values in means + rng.normal(size=(DRAWS, 5, 1)) + rng.normal(size=(DRAWS, 5, 6)):
        low, high = best_intervals(values)
        missed += bool(((truth < low) | (truth > high)).any())
    assert missed / DRAWS == pytest.approx(0.05, abs=0.005)


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
    low, high = best_intervals(values)
    assert (low[0], high[1], high[2]) == (0, 0, 0)
    assert high[0] == pytest.approx(2, abs=0.1)
    assert low[1] == pytest.approx(-2, abs=0.1)


def test_seeds_that_shift_all_methods_alike_do_not_count(rng):
    values = rng.normal(size=(5, 4))
    shifted = values + 100 * rng.normal(size=(5, 1))
    assert may_be_best(shifted).tolist() == may_be_best(values).tolist()
    np.testing.assert_allclose(best_intervals(shifted), best_intervals(values), atol=1e-9)


@pytest.mark.parametrize("compare", [best_intervals, may_be_best])
@pytest.mark.parametrize("values", [np.ones((1, 3)), np.ones((3, 1)), np.ones(3), np.array([[1.0, np.nan]] * 2)])
def test_too_few_or_undefined_values_are_refused(compare, values):
    with pytest.raises(ValueError, match="two seeds and two methods"):
        compare(values)
