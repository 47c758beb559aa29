"""The paired bootstrap against a direct computation, a closed limit and its purpose."""

import numpy as np
import pytest
from bench.protocols.statistics.bootstrap import paired_bootstrap


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
