"""The statistics of seeds against statsmodels, scikit-posthocs and baycomp."""

import numpy as np
import pytest
from bench.protocols.statistics import paired, ranks

pytestmark = pytest.mark.slow  # seconds to import


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_adjusted_p_values_and_equivalence_are_those_of_statsmodels(rng):
    from statsmodels.stats.multitest import multipletests
    from statsmodels.stats.weightstats import ttost_paired

    for p in rng.uniform(size=(20, 9)) ** 3:
        assert paired.holm(p) == pytest.approx(multipletests(p, method="holm")[1])
        for each in (p, p.round(1)):  # and with ties
            assert paired.benjamini_hochberg(each) == pytest.approx(multipletests(each, method="fdr_bh")[1])
    assert paired.benjamini_hochberg(np.array([0.2, np.nan, 0.1])) == pytest.approx([0.2, np.nan, 0.2], nan_ok=True)
    for a, b in rng.normal(size=(20, 2, 5)):
        assert paired.p_equivalent(a - b, 0.7) == pytest.approx(ttost_paired(a, b, -0.7, 0.7)[0])


@pytest.mark.parametrize("effect", [3.0, 1.0, 0.5, 0.1])
def test_power_is_that_of_statsmodels(effect):
    from statsmodels.stats.power import TTestPower

    n = paired.seeds_needed(1.0, effect)
    assert n == max(2, np.ceil(TTestPower().solve_power(effect, alpha=0.05, power=0.8)))
    assert paired.power_of_seeds(n, 1.0, effect) == pytest.approx(TTestPower().power(effect, n, 0.05), abs=1e-6)


def test_one_sided_p_values_are_the_posterior_of_baycomp(rng):
    """The posterior of a flat prior: the mean is below a bound with the p-value of its being above."""
    from baycomp.single import Posterior

    for differences in rng.normal(size=(10, 6)):
        below, inside, above = Posterior(differences.mean(), differences.var(ddof=1) / 6, 5, 0.3).probs()
        assert paired.p_greater(differences, -0.3) == pytest.approx(below)
        assert paired.p_greater(-differences, -0.3) == pytest.approx(above)
        assert paired.p_equivalent(differences, 0.3) == pytest.approx(max(below, above))
        assert inside == pytest.approx(1 - below - above)


def test_tie_groups_are_the_letters_of_scikit_posthocs(rng):
    """Methods with equal spreads, as in any published example: the groups are neighbours in rank."""
    import scikit_posthocs

    for _ in range(20):
        seeds = np.sort(3 * rng.normal(size=8))[::-1] + 0.3 * rng.normal(size=(10, 8))
        order = np.argsort(-seeds.mean(0))
        better = ranks.significantly_better(seeds[:, order])
        letters = scikit_posthocs.compact_letter_display(np.where(better | better.T, 0.0, 1.0))
        theirs = [set(text.replace(" ", "")) for text in letters]
        ours = [set(rank.ties) for rank in ranks.rank_intervals(seeds[:, order])]
        for j in range(8):
            for k in range(8):
                assert bool(ours[j] & ours[k]) == bool(theirs[j] & theirs[k])
        assert len(set().union(*ours)) <= len(set().union(*theirs))


def test_the_friedman_test_and_the_critical_difference_are_those_of_scikit_posthocs(rng):
    """Two methods differ by the critical difference exactly if Nemenyi's p-value is at most 0.05."""
    import scikit_posthocs
    from scipy import stats

    values = rng.normal(size=(12, 6)) + 0.8 * np.arange(6)
    p = scikit_posthocs.posthoc_nemenyi_friedman(values).to_numpy()
    means = ranks.mean_ranks(values)
    apart = np.abs(means[:, None] - means) >= ranks.critical_difference(6, 12)
    assert apart.any()
    assert not apart.all()
    assert (apart == (p <= 0.05)).all()
    assert ranks.friedman(values) == pytest.approx(stats.friedmanchisquare(*values.T).pvalue)
    assert ranks.friedman(np.ones((5, 3))) == 1.0
