"""Confidence measures against SciPy, scikit-learn, loops and enumeration of tied orders."""

import itertools
import math

import pytest
import torch
from bench.protocols.confidence import aurc, confidence_auroc, e_aurc
from bench.protocols.embeddings import Embeddings
from bench.protocols.quality import kendall, share_above, spearman
from bench.protocols.soft_labels import label_entropy
from bench.protocols.statistics import paired_difference, summarise
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

SMALL = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30))
def test_correlations_equal_scipy_with_ties(data):
    x, y = (torch.tensor(column, dtype=torch.float64) for column in zip(*data))
    constant = len(x.unique()) == 1 or len(y.unique()) == 1
    # Spearman by definition: Pearson correlation of average ranks.
    if constant:
        assert math.isnan(spearman(x, y))
        assert math.isnan(kendall(x, y))
    else:
        ranks = (stats.rankdata(x), stats.rankdata(y))
        assert spearman(x, y) == pytest.approx(stats.pearsonr(*ranks).statistic, abs=1e-12)
        assert kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-12)


@settings(max_examples=80, deadline=None)
@given(SMALL)
def test_aurc_is_the_mean_over_all_orders_of_tied_confidences(data):
    confidence, risk = zip(*data)
    n = len(data)
    orders = [
        o
        for o in itertools.permutations(range(n))
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(o))
    ]
    areas = [sum(sum(risk[i] for i in order[:k]) / k for k in range(1, n + 1)) / n for order in orders]
    value = aurc(torch.tensor(confidence), torch.tensor(risk))
    assert value == pytest.approx(sum(areas) / len(areas), abs=1e-12)


def test_a_constant_confidence_is_worth_chance_everywhere():
    risk = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    constant = torch.ones(50)
    assert aurc(constant, risk) == pytest.approx(risk.mean().item())
    assert confidence_auroc(constant, (risk < 0.5).double()) == 0.5
    assert share_above(constant, constant) == 0.5


def test_a_perfect_confidence_has_no_excess_area_and_any_other_has_some():
    risk = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert e_aurc(-risk, risk) == 0.0
    assert e_aurc(risk, risk) > 0.1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auroc_of_certain_outcomes_equals_sklearn(data):
    confidence, correct = (torch.tensor(column, dtype=torch.float64) for column in zip(*data))
    value = confidence_auroc(confidence, correct)
    if len(correct.unique()) == 1:
        assert math.isnan(value)
    else:
        assert value == pytest.approx(roc_auc_score(correct.numpy(), confidence.numpy()), abs=1e-12)


def test_auroc_of_fractional_outcomes_equals_sklearn_with_weights():
    g = torch.Generator().manual_seed(0)
    confidence = torch.randint(8, (60,), generator=g).double()
    correct = torch.rand(60, generator=g, dtype=torch.float64)
    target = [1] * 60 + [0] * 60
    weights = [*correct.tolist(), *(1 - correct).tolist()]
    expected = roc_auc_score(target, confidence.repeat(2).numpy(), sample_weight=weights)
    assert confidence_auroc(confidence, correct) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_label_entropy_is_scipys(votes):
    p = torch.tensor(votes, dtype=torch.float64)
    p /= p.sum(1, keepdim=True)
    expected = [stats.entropy(row) for row in votes]
    assert label_entropy(p).tolist() == pytest.approx(expected, abs=1e-12)
    # Rounded tables are normalised; an image without votes has no entropy.
    rounded = torch.cat([p * 1.0005, torch.full((1, 4), math.nan)])
    assert label_entropy(rounded)[:-1].tolist() == pytest.approx(expected, abs=1e-12)
    assert math.isnan(label_entropy(rounded)[-1])


@pytest.mark.parametrize("row", [[0.5, 0.6], [1.5, -0.5], [math.nan, 1.0]])
def test_what_is_no_distribution_has_no_entropy(row):
    with pytest.raises(ValueError, match="sum to 1"):
        label_entropy(torch.tensor([[0.5, 0.5], row]))


def test_paired_crop_by_hand():
    assert share_above(torch.tensor([3.0, 2.0, 1.0, 1.0]), torch.tensor([1.0, 3.0, 1.0, 0.0])) == 2.5 / 4


def test_summary_equals_scipy():
    values = [0.71, 0.74, 0.69, 0.75, 0.72]
    summary = summarise(values)
    low, high = stats.t.interval(0.95, 4, loc=stats.tmean(values), scale=stats.sem(values))
    assert (summary.mean, summary.sd) == pytest.approx((stats.tmean(values), stats.tstd(values)))
    assert (summary.ci_low, summary.ci_high) == pytest.approx((low, high))
    assert math.isnan(summarise([1.0]).sd)
    with pytest.raises(ValueError, match="no values"):
        summarise([])


def test_paired_difference_uses_common_seeds_only():
    summary = paired_difference({0: 3.0, 1: 5.0, 2: 9.0}, {1: 4.0, 0: 1.0, 7: 0.0})
    assert (summary.mean, summary.n) == (1.5, 2)


def test_embeddings_refuse_what_no_test_can_use():
    Embeddings(labels=torch.tensor([0, 1]), ids=("a", "b"), confidences={"norm": torch.ones(2)})
    with pytest.raises(ValueError, match="repeat"):
        Embeddings(labels=torch.tensor([0, 1]), ids=("a", "a"))
    with pytest.raises(ValueError, match="not finite"):
        Embeddings(labels=torch.tensor([0, 1]), ids=("a", "b"), confidences={"norm": torch.tensor([1.0, float("inf")])})
    with pytest.raises(ValueError, match="shape"):
        Embeddings(labels=torch.tensor([0, 1]), ids=("a", "b"), confidences={"norm": torch.ones(3)})
