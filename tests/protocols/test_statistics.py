"""Tests, ranks, verdicts, power and intervals against SciPy, direct computations, closed forms and simulations."""

import math

import numpy as np
import pytest
from bench.protocols.statistics.bootstrap import paired_bootstrap
from bench.protocols.statistics.paired import (
    holm,
    p_different,
    p_equivalent,
    p_greater,
    power_of_seeds,
    probability_of_superiority,
    seeds_needed,
    summarise,
    summarise_splits,
    verdict,
)
from bench.protocols.statistics.ranks import mean_ranks, rank_intervals, significantly_better, tie_groups
from scipy import stats


def test_intervals_are_those_of_a_direct_resampling():
    rng = np.random.default_rng(0)
    a, b = rng.uniform(size=(40, 2)), rng.uniform(size=(40, 2))
    draws = np.random.default_rng(5)
    means = []
    for _ in range(300):
        chosen = draws.integers(40, size=40)
        means.append([np.mean([a[i, m] - b[i, m] for i in chosen]) for m in range(2)])
    for m, interval in enumerate(paired_bootstrap(a, b, resamples=300, seed=5)):
        column = sorted(row[m] for row in means)
        assert interval.ci_low == pytest.approx(np.percentile(column, 2.5))
        assert interval.ci_high == pytest.approx(np.percentile(column, 97.5))
        assert interval.difference == pytest.approx(a[:, m].mean() - b[:, m].mean())
        assert interval.units == 40


def test_classes_are_drawn_whole():
    rng = np.random.default_rng(1)
    classes = np.repeat([7, 3, 5, 1, 9, 4], [4, 9, 2, 7, 5, 3])
    a, b = rng.uniform(size=(30, 1)), rng.uniform(size=(30, 1))
    names = sorted(set(classes))
    draws = np.random.default_rng(2)
    means = []
    for _ in range(200):
        rows = [i for c in draws.integers(6, size=6) for i in np.flatnonzero(classes == names[c])]
        means.append(np.mean([a[i, 0] - b[i, 0] for i in rows]))
    interval = paired_bootstrap(a, b, classes, resamples=200, seed=2)[0]
    assert [interval.ci_low, interval.ci_high] == pytest.approx(list(np.percentile(means, [2.5, 97.5])))
    assert interval.units == 6


@pytest.mark.parametrize("shapes", [((3, 1), (4, 1)), ((3,), (3,)), ((0, 1), (0, 1))])
def test_what_cannot_be_paired_is_refused(shapes):
    with pytest.raises(ValueError, match="one shape"):
        paired_bootstrap(*map(np.zeros, shapes))


def test_values_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="lone"):
        paired_bootstrap(np.array([[np.nan]]), np.zeros((1, 1)))


def test_the_interval_is_the_formula_of_nadeau_and_bengio():
    values, ratio = [0.61, 0.58, 0.65, 0.60], 4 / 3
    found = summarise_splits(values, ratio)
    # Mean 0.61; squared deviations 0, 9, 16, 1 (1e-4), so the variance is 26/3e4.
    half = 3.1824463 * math.sqrt((1 / 4 + 4 / 3) * 26 / 3e4)
    assert (found.mean, found.n) == (pytest.approx(0.61), 4)
    assert found.sd**2 == pytest.approx(26 / 3e4)
    assert (found.ci_low, found.ci_high) == (pytest.approx(0.61 - half), pytest.approx(0.61 + half))
    assert math.isnan(summarise_splits([0.5], ratio).ci_low)
    with pytest.raises(ValueError, match="no values"):
        summarise_splits([], ratio)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_paired_tests_are_those_of_scipy(rng):
    a, b = rng.normal(size=(2, 6, 3))
    assert p_different(a - b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert p_greater(a - b) == pytest.approx(stats.ttest_rel(a, b, alternative="greater").pvalue)
    assert p_greater(a - b, 0.3) == pytest.approx(stats.ttest_rel(a - 0.3, b, alternative="greater").pvalue)
    low = stats.ttest_1samp(a[:, 0], -2, alternative="greater").pvalue
    high = stats.ttest_1samp(a[:, 0], 2, alternative="less").pvalue
    assert p_equivalent(a[:, 0], 2.0) == pytest.approx(max(low, high))


def test_small_p_values_keep_their_digits():
    differences = 1 + 1e-6 * np.arange(8)
    assert p_different(-differences) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-3)
    assert 0 < p_different(differences) < 1e-30


def test_intervals_of_five_normal_seeds_cover_as_often_as_they_say(rng):
    seeds = rng.normal(size=(5, 20000))
    covered = (p_different(seeds) > 0.05).mean()
    assert 0.94 < covered < 0.96
    # The interval that tables show is the one of this test: its ends have a p-value of 0.05.
    for column in seeds.T[:20]:
        summary = summarise(list(column))
        assert p_different(column - summary.ci_low) == pytest.approx(0.05)
        assert p_different(column - summary.ci_high) == pytest.approx(0.05)


def test_a_method_that_repeats_another_up_to_rounding_is_not_different():
    repeated = np.array([1e-17, 2e-17, 1.5e-17])
    assert p_different(repeated) == 1
    assert p_equivalent(repeated, 0.005) < 1e-20
    assert p_greater(np.full(3, 0.02)) == 0


@pytest.mark.parametrize("values", [np.zeros(1), np.array([0.1, np.nan])])
def test_what_cannot_be_tested_is_refused(values):
    with pytest.raises(ValueError, match="seeds"):
        p_different(values)
    with pytest.raises(ValueError, match="seeds"):
        rank_intervals(np.stack([values, values], 1))


def test_holm_is_the_closed_test_of_bonferroni(rng):
    """Adjusted p-value of a test: the largest Bonferroni p-value of all sets of tests that contain it."""
    for p in rng.uniform(size=(5, 4)) ** 3:
        sets = [[i for i in range(4) if mask >> i & 1] for mask in range(1, 16)]
        closed = [max(min(1, len(one) * p[one].min()) for one in sets if i in one) for i in range(4)]
        assert holm(p) == pytest.approx(closed)


def test_a_test_that_could_not_be_made_counts_as_none():
    assert holm(np.array([0.01, np.nan, 0.04])) == pytest.approx([0.02, np.nan, 0.04], nan_ok=True)


@pytest.mark.parametrize("truth", [np.zeros(5), np.arange(5.0), np.array([0, 0, 0, 9, 9.0])])
def test_rank_intervals_contain_all_true_ranks_at_once(truth, rng):
    """Spreads differ by a factor of eight, and the seed shifts all methods alike."""
    best, worst = 1 + (truth[None] > truth[:, None]).sum(1), 5 - (truth[None] < truth[:, None]).sum(1)
    hits = 0
    for _ in range(600):
        seeds = truth + rng.normal(size=(5, 1)) + np.geomspace(0.25, 2, 5) * rng.normal(size=(5, 5))
        hits += all(r.low <= a and b <= r.high for r, a, b in zip(rank_intervals(seeds), best, worst))
    assert hits / 600 > 0.93  # 95 % less two standard errors


def test_ranks_follow_from_the_pairs_that_are_significant(rng):
    seeds = np.array([3.0, 2.9, 2.0, 0.0]) + 0.1 * rng.normal(size=(5, 4))
    better = significantly_better(seeds)
    p = {(j, k): stats.ttest_rel(seeds[:, j], seeds[:, k], alternative="greater").pvalue
         for j in range(4) for k in range(4) if j != k}  # fmt: skip
    adjusted, running = {}, 0.0
    for step, pair in enumerate(sorted(p, key=p.get)):
        running = max(running, p[pair] * (12 - step))
        adjusted[pair] = running
    assert {pair for pair in p if adjusted[pair] <= 0.05} == set(zip(*np.nonzero(better)))
    assert [(r.text, r.ties) for r in rank_intervals(seeds)] == [("1-2", "a"), ("1-2", "a"), ("3", "b"), ("4", "c")]


def test_methods_share_a_letter_if_and_only_if_they_do_not_differ(rng):
    for count in (1, 2, 6, 12):
        different = np.triu(rng.random((count, count)) < 0.4, 1)
        different |= different.T
        letters = tie_groups(different)
        for j in range(count):
            assert letters[j]
            for k in range(j):
                assert bool(set(letters[j]) & set(letters[k])) != different[j, k]


def test_more_groups_than_letters_are_numbered():
    assert tie_groups(~np.eye(53, dtype=bool))[51:] == ["52", "53"]
    assert tie_groups(~np.eye(52, dtype=bool))[51] == "Z"
    assert tie_groups(np.zeros((0, 0), dtype=bool)) == []


def test_superiority_counts_ties_half_and_has_the_exact_interval():
    for won in range(6):
        _, *ends = probability_of_superiority(np.repeat([1.0, -1.0], [won, 5 - won]))
        exact = stats.binomtest(won, 5).proportion_ci(0.95, method="exact")
        assert ends == pytest.approx([exact.low, exact.high])
    assert probability_of_superiority(np.array([1.0, 0.0, -1e-16, -1.0]))[0] == 0.5
    with pytest.raises(ValueError, match="one run or more"):
        probability_of_superiority(np.array([]))


def test_no_verdict_is_right_by_luck_more_often_than_it_says(rng):
    """Ten differences on the edge of the region: `equivalent` is wrong for each; and none: `better` is."""
    spread, wrong = np.geomspace(0.1, 1, 10), np.zeros(2)
    for _ in range(500):
        noise = spread * rng.normal(size=(5, 10))
        edge, none = noise + 0.5, noise
        wrong[0] += holm(p_equivalent(edge, 0.5)).min() <= 0.05
        wrong[1] += holm(p_different(none)).min() <= 0.05
    assert (wrong / 500 < 0.07).all()


def test_verdicts():
    nan = float("nan")
    assert verdict(0.02, 0.04, 0.5) == "better"
    assert verdict(-0.02, 0.04, 0.5) == "worse"
    assert verdict(-0.02, 0.06, 0.5) == "undecided"
    assert verdict(0.001, 0.001, 0.03) == "equivalent"  # not 0, but of no practical meaning
    assert verdict(0.02, 0.04, nan) == "better"
    assert verdict(0.02, nan, nan) == "undecided"


@pytest.mark.parametrize(("sd", "effect"), [(1, 2), (1, -1), (0.02, 0.005), (0.3, 1)])
def test_the_seeds_that_are_needed_have_the_power_and_one_less_has_not(sd, effect, rng):
    n = seeds_needed(sd, effect)
    assert power_of_seeds(n, sd, effect) >= 0.8
    assert n == 2 or power_of_seeds(n - 1, sd, effect) < 0.8
    measured = (p_different(effect + sd * rng.normal(size=(n, 4000))) <= 0.05).mean()
    assert measured == pytest.approx(power_of_seeds(n, sd, effect), abs=0.02)


@pytest.mark.parametrize(("seeds", "shift", "power"), [(2, 11.582290927366103, 0.636510541773732), (5, 58.6, 1.0)])
def test_a_tail_that_is_0_up_to_rounding_leaves_the_power_known(seeds, shift, power):
    """The first value is an integral by mpmath over the chi-squared variable; SciPy's lower tail is nan there."""
    assert power_of_seeds(seeds, 1.0, shift / seeds**0.5) == pytest.approx(power, abs=1e-9)
    assert seeds_needed(0.029435828584614857, 0.2410769769333776) == 3


def test_seeds_without_a_sensible_answer():
    assert seeds_needed(0.0, 0.1) == 2
    assert seeds_needed(1.0, 1e-9, most=1000) == 1000
    for sd, effect in ((1.0, 0.0), (-1.0, 1.0), (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="effect other than 0"):
            seeds_needed(sd, effect)


def test_mean_ranks(rng):
    values = rng.integers(0, 4, size=(7, 5)).astype(float)
    ranks = [[1 + (row > v).sum() + 0.5 * ((row == v).sum() - 1) for v in row] for row in values]
    assert mean_ranks(values) == pytest.approx(np.mean(ranks, 0))
    with pytest.raises(ValueError, match="every data set"):
        mean_ranks(np.array([[1.0, np.nan]]))
