"""Intervals over class splits, and of a confidence's metrics over classes: by hand, by loops, by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from bench.protocols.confidence import augrc, confidence_auroc
from bench.protocols.statistics import auroc_and_augrc, nested_bootstrap, nested_bootstrap_of, summarise_splits
from scipy import stats

WORLDS, SPLITS, CLASSES = 20_000, 5, 70


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


def test_the_corrected_interval_covers_more_than_the_plain_one_if_splits_share_classes(record_property):
    """A world is a draw of classes; a model is as good as its training classes, a split as easy as its test classes."""
    generator = np.random.default_rng(0)
    tested = 4 * CLASSES // 7  # half of all classes, as the first quarter of the other half validates
    help_of, ease_of = generator.standard_normal((2, WORLDS, CLASSES)) / math.sqrt(CLASSES)
    values = np.empty((SPLITS, WORLDS))
    for split in values:
        order = generator.permutation(CLASSES)  # worlds are independent, so they may share it
        own, others = order[:tested], order[tested:]
        split[:] = ease_of[:, own].mean(1) + help_of[:, others].mean(1) + generator.normal(0, 0.005, WORLDS)
    error = np.abs(values.mean(0)) / (values.std(0, ddof=1) * stats.t.ppf(0.975, SPLITS - 1))
    coverage = [float((error <= math.sqrt(part)).mean()) for part in (1 / SPLITS, 1 / SPLITS + 4 / 3)]
    record_property("coverage", coverage)
    print(f"coverage of the plain and the corrected interval: {coverage}")
    plain, corrected = coverage
    assert plain < corrected - 0.1
    assert plain < 0.85
    assert 0.9 < corrected <= 1


def _loop(confidence, right, times):
    drawn = np.repeat(np.arange(len(right)), times)
    both = torch.from_numpy(confidence[drawn]), torch.from_numpy(right[drawn])
    return confidence_auroc(*both), augrc(both[0], 1 - both[1])


@pytest.mark.parametrize("ties", [False, True])
def test_weighted_risks_are_those_of_repeated_queries(ties):
    generator = np.random.default_rng(1)
    right = generator.choice([0.0, 0.5, 1.0], 40, p=[0.3, 0.1, 0.6])
    confidence = generator.integers(5, size=40).astype(float) if ties else generator.standard_normal(40)
    times = generator.integers(4, size=(20, 40))
    times[0] = right == 1.0  # no wrong answer
    found = np.stack(auroc_and_augrc(confidence, right, times.astype(float)), 1)
    np.testing.assert_allclose(found, [_loop(confidence, right, row) for row in times], atol=1e-12)
    assert np.isnan(found[0, 0])


def test_the_bootstrap_of_a_statistic_is_a_loop_over_its_draws():
    generator = np.random.default_rng(2)
    classes = np.repeat(np.arange(12), [3, 4] * 6)
    right = (generator.random((3, len(classes))) < 0.6).astype(float)
    confidence = generator.standard_normal(right.shape)
    seen = []

    def statistic(weights):
        seen.append(weights.copy())
        return np.stack([auroc_and_augrc(*each, weights)[0] for each in zip(confidence, right)], 1)

    found = nested_bootstrap_of(statistic, classes, widen=False, resamples=200, seed=3)
    weights = np.concatenate(seen[1:]).astype(int)
    # Whole classes are drawn, and queries within them.
    per_class = np.stack([np.bincount(classes, row, minlength=12) for row in weights])
    assert (per_class % np.bincount(classes) == 0).all()
    assert (per_class.sum(1) > 0).all()
    values = [[_loop(*each, row)[0] for each in zip(confidence, right)] for row in weights]
    spread = np.std(np.mean(values, 1))
    assert found.mean == pytest.approx(np.mean([_loop(*each, np.ones(42, int))[0] for each in zip(confidence, right)]))
    assert 2 * spread < found.ci_high - found.ci_low < 10 * spread
    assert (found.seeds, found.classes, found.queries) == (3, 12, 42)


def test_a_mean_as_a_statistic_is_the_bootstrap_of_means():
    table = np.random.default_rng(4).random((3, 30))
    classes = np.repeat(np.arange(10), 3)
    found = nested_bootstrap_of(lambda weights: weights @ table.T / weights.sum(1, keepdims=True), classes)
    assert found == nested_bootstrap(table, classes)


def test_draws_without_a_value_are_left_out():
    classes = np.repeat(np.arange(4), 2)
    right = np.array([1.0, 1, 1, 1, 1, 1, 1, 0])
    confidence = np.arange(8.0)

    def statistic(weights):
        return np.stack([auroc_and_augrc(confidence, right, weights)[0]] * 2, 1)

    found = nested_bootstrap_of(statistic, classes, resamples=300)
    assert found.mean == 0.0
    assert math.isfinite(found.ci_low)
