"""Threshold consistency over classes against loops over pairs and cases with known answers."""

import math

import numpy as np
import pytest
import torch
from bench.protocols.ranking import ScoreMatrix
from bench.protocols.threshold_consistency import calibration_range, class_rates, opis, sampled_images
from bench.protocols.verification import sample_pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from .views import rows_of, view_of

pytestmark = pytest.mark.filterwarnings("error")


def _loop(scores, labels, thresholds):
    """OPIS by its definition: unordered pairs, class by class, threshold by threshold."""
    n, utilities = len(labels), []
    for c in sorted(set(labels)):
        positive = [scores[i][j] for i in range(n) for j in range(i) if labels[i] == labels[j] == c]
        negative = [scores[i][j] for i in range(n) for j in range(i) if (labels[i] == c) != (labels[j] == c)]
        if not positive or not negative:
            continue
        row = []
        for t in thresholds:
            sensitivity = sum(s >= t for s in positive) / len(positive)
            specificity = sum(s < t for s in negative) / len(negative)
            both = sensitivity + specificity
            row.append(2 * sensitivity * specificity / both if both else 0.0)
        utilities.append(row)
    if len(utilities) < 2:
        return math.nan
    classes, steps = len(utilities), len(thresholds) - 1
    total = 0.0
    for k in range(steps):
        for each in utilities:
            ends = [(each[m] - sum(u[m] for u in utilities) / classes) ** 2 for m in (k, k + 1)]
            total += sum(ends) / 2 / steps / classes
    return total


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 3), min_size=1, max_size=14))
def test_opis_equals_a_loop_over_pairs(seed, labels):
    scores = torch.randint(12, (len(labels),) * 2, generator=torch.Generator().manual_seed(seed)).double()
    scores = scores + scores.T
    thresholds = torch.linspace(4, 18, 8, dtype=torch.float64)
    rates = class_rates(ScoreMatrix(scores), torch.tensor(labels), thresholds, block_bytes=1)
    expected = _loop(scores.tolist(), labels, thresholds.tolist())
    assert opis(*rates) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_classes_alike_are_consistent_and_others_are_not():
    labels = torch.arange(60) // 20
    corners = torch.eye(3, dtype=torch.float64)[labels]
    noise = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def score(spread):
        x = torch.nn.functional.normalize(corners + spread[labels, None] * noise, dim=1)
        similarity = x @ x.T
        low, high = calibration_range(similarity[labels[:, None] != labels[None]])
        return opis(*class_rates(ScoreMatrix(similarity), labels, torch.linspace(low, high, 101, dtype=torch.float64)))

    alike, unlike = score(torch.tensor([0.4, 0.4, 0.4])), score(torch.tensor([0.1, 0.4, 1.5]))
    assert 0 < 4 * alike < unlike < 0.25


@pytest.mark.parametrize("rates", [(0.01, 0.1), (0.1, 0.01)])
def test_the_calibration_range_accepts_as_many_negatives_as_it_says(rates):
    scores = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    low, high = calibration_range(scores, rates)
    assert (scores >= low).double().mean().item() == pytest.approx(0.1, abs=1e-4)
    assert (scores >= high).double().mean().item() == pytest.approx(0.01, abs=1e-4)


def test_half_of_the_classes_wrong_is_the_worst_there_is():
    ones, zeros = torch.ones(2, 5), torch.zeros(2, 5)
    assert opis(torch.cat([ones, zeros]), torch.ones(4, 5)) == 0.25
    assert opis(torch.cat([ones, zeros]), torch.cat([ones, zeros])) == 0.25  # both 0: no utility
    assert opis(ones[:, :1], ones[:, :1]) == 0.0  # a single threshold


def test_without_two_classes_of_pairs_there_is_no_score():
    thresholds = torch.tensor([0.0, 1.0])
    one_class = class_rates(ScoreMatrix(torch.eye(3)), torch.zeros(3), thresholds)
    assert one_class[1].isnan().all()
    assert math.isnan(opis(*one_class))
    lone = class_rates(ScoreMatrix(torch.eye(3)), torch.tensor([0, 0, 1]), thresholds)
    assert lone[0][1].isnan().all()
    assert math.isnan(opis(*lone))
    nobody = class_rates(ScoreMatrix(torch.zeros(0, 0)), torch.zeros(0, dtype=torch.long), thresholds)
    assert math.isnan(opis(*nobody))
    assert all(math.isnan(end) for end in calibration_range(torch.zeros(0)))
    # A constant score: every pair is accepted at its threshold, in every class alike.
    labels = torch.arange(6) // 2
    low, high = calibration_range(torch.ones(5))
    assert low == high == 1.0
    assert opis(*class_rates(ScoreMatrix(torch.ones(6, 6)), labels, torch.linspace(low, high, 3))) == 0.0
    with pytest.raises(ValueError, match="not finite"):
        class_rates(ScoreMatrix(torch.full((2, 2), math.inf)), torch.arange(2), thresholds)


def _view(labels):
    g = torch.Generator().manual_seed(0)
    x = torch.eye(8, dtype=torch.float64)[labels % 8] + torch.randn(len(labels), 8, generator=g, dtype=torch.float64)
    return x @ x.T, view_of(labels, x @ x.T)


def _row(view):
    (row,) = rows_of(view, "threshold_consistency").values()
    return row


def test_the_row_is_the_score_over_the_range_of_the_negative_pairs():
    labels = torch.cat([torch.arange(40) // 8, torch.tensor([7])])
    scores, view = _view(labels)
    pairs = sample_pairs(labels, view.ids, len("pairs"))
    negative = sorted(scores[a, b].item() for a, b, same in zip(pairs.left, pairs.right, pairs.same) if not same)
    thresholds = np.linspace(*np.quantile(negative, [0.9, 0.99]), 101)
    row = _row(view)
    assert row["value"] == pytest.approx(_loop(scores.tolist(), labels.tolist(), thresholds.tolist()), abs=1e-12)
    assert row["n_queries"] == 41


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [0, 0, 1]], ids=["one class", "lone", "one pair"])
def test_the_row_has_no_value_without_two_classes_of_two(labels):
    assert math.isnan(_row(_view(torch.tensor(labels))[1])["value"])


def test_of_many_images_random_classes_and_images_are_taken():
    many = torch.arange(400) // 4  # 100 classes of 4: whole classes
    ids = [f"{i:03d}" for i in range(400)]
    kept = sampled_images(many, ids, seed=0, limit=42)
    assert len(kept) == 40
    assert torch.equal(torch.unique(many[kept], return_counts=True)[1], torch.full((10,), 4))
    large = torch.tensor([0] * 300 + [1] * 80 + [2] * 20)  # 3 classes: equally many of each
    taken = sampled_images(large, ids, seed=0, limit=90)
    assert torch.bincount(large[taken]).tolist() == [30, 30, 20]
    for labels, chosen, limit in ((many, kept, 42), (large, taken, 90)):
        assert torch.equal(chosen, chosen.unique())
        assert not torch.equal(chosen, sampled_images(labels, ids, seed=1, limit=limit))
        # Neither the order of the images nor the numbers of the classes matter.
        mixed = torch.randperm(400, generator=torch.Generator().manual_seed(0))
        again = sampled_images(500 - labels[mixed], [ids[i] for i in mixed], seed=0, limit=limit)
        assert sorted(mixed[again].tolist()) == chosen.tolist()
    assert torch.equal(sampled_images(many, ids, seed=0, limit=400), torch.arange(400))


def test_rates_of_some_images_are_those_of_a_set_of_them_alone():
    labels = torch.arange(30) // 5
    scores, _ = _view(labels)
    some, thresholds = torch.tensor([1, 2, 3, 7, 8, 20, 21, 29]), torch.linspace(-2, 2, 5)
    got = class_rates(ScoreMatrix(scores), labels, thresholds, images=some)
    expected = class_rates(ScoreMatrix(scores[some][:, some]), labels[some], thresholds)
    for rates, of_set in zip(got, expected):
        assert torch.equal(rates.nan_to_num(9.0), of_set.nan_to_num(9.0))
