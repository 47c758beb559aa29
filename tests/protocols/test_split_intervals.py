"""Intervals over class splits: by hand and by simulation."""

import math

import numpy as np
import pytest
from bench.protocols.statistics.paired import summarise_splits
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
