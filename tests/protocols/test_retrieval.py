"""Retrieval against pytorch-metric-learning, plain loops and enumeration of all orders of tied items."""

import math

import pytest
import torch
from bench.protocols.query_metrics import per_query
from bench.protocols.ranking import ScoreMatrix, full_depth, rank
from bench.protocols.retrieval import map_at_k
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from tests.retrieval_rows import retrieval_rows

from .views import clustered, orders_of, precision_sum, tied_data, view_of

KS = (1, 2, 4, 8)


def _values(scores, labels, **options):
    return {r["metric"]: r["value"] for r in retrieval_rows(ScoreMatrix(scores, **options), labels, ks=KS)}


def _brute_force(scores, labels):
    """Means over queries and over all tie orders, straight from the definitions."""
    n = len(labels)
    names = ["map_at_r", "r_precision", "precision_at_1", *(f"recall_at_{k}" for k in KS)]
    sums, counted = dict.fromkeys(names, 0.0), 0
    for q in range(n):
        others = [j for j in range(n) if j != q]
        positives = sum(labels[j] == labels[q] for j in others)
        if positives == 0:
            continue
        counted += 1
        orders = list(orders_of(scores[q], others))
        for order in orders:
            hits = [labels[j] == labels[q] for j in order]
            sums["map_at_r"] += precision_sum(hits[:positives]) / positives / len(orders)
            sums["r_precision"] += sum(hits[:positives]) / positives / len(orders)
            sums["precision_at_1"] += hits[0] / len(orders)
            for k in KS:
                sums[f"recall_at_{k}"] += any(hits[:k]) / len(orders)
    return {name: total / counted for name, total in sums.items()} if counted else None


@settings(max_examples=150, deadline=None)
@given(tied_data())
def test_expectations_equal_the_mean_over_all_orders_of_ties(data):
    scores, labels = data
    ours = _values(torch.tensor(scores), torch.tensor(labels))
    brute = _brute_force(scores, labels)
    for name, value in ours.items():
        if brute is None:
            assert math.isnan(value)
        else:
            assert value == pytest.approx(brute[name], abs=1e-12), name


@settings(max_examples=60, deadline=None)
@given(tied_data(), st.integers(1, 3), st.integers(0, 2**31))
def test_a_shallow_ranking_is_still_exact_under_ties(data, depth, seed):
    scores, labels = torch.tensor(data[0]), torch.tensor(data[1])
    depth = max(depth, full_depth(labels))
    deep = per_query(rank(ScoreMatrix(scores), labels, depth=len(labels)))
    shallow = per_query(rank(ScoreMatrix(scores), labels, depth=depth))
    for name, value in deep.items():
        torch.testing.assert_close(shallow[name], value, equal_nan=True, rtol=0, atol=1e-12)


def _embeddings(kind, seed=0):
    labels = torch.randint(12, (90,), generator=torch.Generator().manual_seed(seed))
    x = clustered(labels, 8, 1.0, seed)
    if kind == "singletons":
        labels[:15] = torch.arange(100, 115)
    if kind == "duplicates":
        x[60:] = x[:30]
    return x, labels


@pytest.mark.parametrize("kind", ["random", "singletons"])
def test_agrees_with_pytorch_metric_learning(kind):
    x, labels = _embeddings(kind)
    calculator = AccuracyCalculator(
        include=("mean_average_precision_at_r", "precision_at_1", "r_precision"), k="max_bin_count",
        device=torch.device("cpu"),
    )  # fmt: skip
    reference = calculator.get_accuracy(x.float(), labels)
    ours = _values(x @ x.T, labels)
    assert ours["map_at_r"] == pytest.approx(reference["mean_average_precision_at_r"], abs=1e-6)
    assert ours["r_precision"] == pytest.approx(reference["r_precision"], abs=1e-6)
    assert ours["precision_at_1"] == pytest.approx(reference["precision_at_1"], abs=1e-6)


@pytest.mark.parametrize("kind", ["random", "duplicates", "singletons"])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_images_changes_nothing_to_the_last_digit(kind, seed):
    x, labels = _embeddings(kind)
    shuffle = torch.randperm(90, generator=torch.Generator().manual_seed(seed))
    y = x[shuffle]
    assert _values(x @ x.T, labels) == _values(y @ y.T, labels[shuffle])


def test_the_block_size_changes_nothing():
    x, labels = _embeddings("duplicates")
    scorer = ScoreMatrix(x @ x.T)
    whole, pieces = (per_query(rank(scorer, labels, depth=20, block_bytes=b), KS) for b in (1 << 30, 1))
    for name, value in whole.items():
        assert torch.equal(value.nan_to_num(-1), pieces[name].nan_to_num(-1))


def test_rounding_noise_between_duplicates_is_a_tie():
    noise = 1e-16 * torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(2).repeat_interleave(4)
    assert _values(torch.ones(8, 8) + noise, labels)["recall_at_1"] == pytest.approx(3 / 7)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        _values(torch.full((3, 3), float("nan")), torch.tensor([0, 0, 1]))
    with pytest.raises(ValueError, match="at least two items"):
        rank(ScoreMatrix(torch.ones(1, 1)), torch.tensor([0]), depth=1)
    x, labels = _embeddings("random")
    with pytest.raises(ValueError, match="metrics need"):
        per_query(rank(ScoreMatrix(x @ x.T), labels, depth=1))


@settings(max_examples=100, deadline=None)
@given(tied_data(), st.sampled_from([1, 3, 1000]))
def test_map_at_k_is_the_mean_over_all_orders_of_ties(data, k):
    scores, labels = data
    means = []
    for q in range(len(labels)):
        others = [j for j in range(len(labels)) if j != q]
        positives = sum(labels[j] == labels[q] for j in others)
        if positives:
            orders = list(orders_of(scores[q], others))
            total = sum(precision_sum([labels[j] == labels[q] for j in order[:k]]) for order in orders) / len(orders)
            means.append((total / (positives + 1), total / min(k, positives)))
    rows = map_at_k(view_of(torch.tensor(labels), torch.tensor(scores)), "cosine", k)
    found = {r["variant"]: r["value"] for r in rows}
    expected = [sum(each) / len(means) for each in zip(*means)] or [math.nan, math.nan]
    assert [found["denominator=n"], found["denominator=min(k,n-1)"]] == pytest.approx(expected, nan_ok=True)


def test_a_perfect_ranking_misses_one_by_the_papers_count():
    labels = torch.arange(20) // 5
    perfect = ScoreMatrix((labels[:, None] == labels[None, :]).double())
    assert [r["value"] for r in map_at_k(view_of(labels, perfect), "cosine")] == pytest.approx([0.8, 1.0])
