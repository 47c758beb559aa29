"""Verification against scikit-learn and plain loops; pairs by identity."""

import math

import numpy as np
import pytest
import torch
from bench.protocols.embeddings import Options
from bench.protocols.verification import (
    accuracy_at,
    auc,
    best_threshold,
    equal_error_rate,
    sample_pairs,
    tpr_at_fpr,
    verification_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve


@st.composite
def scored_pairs(draw):
    n = draw(st.integers(2, 40))
    same = draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda v: any(v) and not all(v)))
    values = draw(st.lists(st.integers(-6, 6), min_size=n, max_size=n))  # integers: many ties
    return torch.tensor(values, dtype=torch.float64) / 3, torch.tensor(same)


@settings(max_examples=150, deadline=None)
@given(scored_pairs())
def test_auc_and_accuracy_equal_sklearn_and_a_loop(data):
    scores, same = data
    assert auc(scores, same) == pytest.approx(roc_auc_score(same.numpy(), scores.numpy()), abs=1e-12)
    threshold, accuracy = best_threshold(scores, same)
    candidates = [-np.inf, *(scores.unique() + 1e-9).tolist(), *(scores.unique() - 1e-9).tolist()]
    assert accuracy == pytest.approx(max(accuracy_at(t, scores, same) for t in candidates))
    assert accuracy_at(threshold, scores, same) == pytest.approx(accuracy)


@settings(max_examples=100, deadline=None)
@given(scored_pairs(), st.sampled_from([0.0, 0.05, 0.3]))
def test_operating_points_equal_a_scan_of_sklearns_curve(data, rate):
    scores, same = data
    fpr, tpr, _ = roc_curve(same.numpy(), scores.numpy(), drop_intermediate=False)
    assert tpr_at_fpr(scores, same, rate) == pytest.approx(tpr[fpr <= rate].max())
    # The crossing of the interpolated curve with fpr = 1 - tpr, found by bisection on a parameter of the polyline.
    low, high = 0.0, len(fpr) - 1.0
    for _ in range(80):
        mid = (low + high) / 2
        i = min(int(mid), len(fpr) - 2)
        f = fpr[i] + (mid - i) * (fpr[i + 1] - fpr[i])
        t = tpr[i] + (mid - i) * (tpr[i + 1] - tpr[i])
        low, high = (mid, high) if f < 1 - t else (low, mid)
    assert equal_error_rate(scores, same) == pytest.approx(f, abs=1e-6)
    assert equal_error_rate(torch.zeros_like(scores), same) == pytest.approx(0.5)


def _labels():
    return torch.tensor([i // 4 for i in range(80)] + [50, 51]), [f"p{i:03d}" for i in range(82)]


def test_pairs_are_one_positive_and_one_negative_per_image():
    labels, ids = _labels()
    pairs = sample_pairs(labels, ids, seed=1)
    left_same, right_same = pairs.left[pairs.same], pairs.right[pairs.same]
    assert sorted(left_same.tolist()) == list(range(80))  # the two lone images have no positive
    assert sorted(right_same.tolist()) == list(range(80))  # a permutation
    assert (left_same != right_same).all()
    assert (labels[left_same] == labels[right_same]).all()
    assert sorted(pairs.left[~pairs.same].tolist()) == list(range(82))
    assert (labels[pairs.left[~pairs.same]] != labels[pairs.right[~pairs.same]]).all()


@pytest.mark.parametrize("kin", [None, torch.arange(82) // 2])
def test_queries_are_paired_with_the_gallery_alone(kin):
    labels, ids = _labels()
    queries, gallery = roles = torch.rand(2, 82, generator=torch.Generator().manual_seed(0)) < 0.5
    pairs = sample_pairs(labels, ids, 1, kin, roles)
    number = torch.arange(82) if kin is None else kin
    met = gallery & (labels[:, None] == labels) & (number[:, None] != number)
    assert pairs.left[pairs.same].tolist() == (queries & met.any(1)).nonzero().squeeze(1).tolist()
    assert met[pairs.left[pairs.same], pairs.right[pairs.same]].all()
    assert pairs.left[~pairs.same].tolist() == queries.nonzero().squeeze(1).tolist()
    assert gallery[pairs.right].all()
    assert (labels[pairs.left[~pairs.same]] != labels[pairs.right[~pairs.same]]).all()


def test_pairs_depend_on_identities_only():
    labels, ids = _labels()
    shuffle = torch.randperm(82, generator=torch.Generator().manual_seed(0))

    def names(pairs, names_of):
        rows = zip(pairs.left.tolist(), pairs.right.tolist(), pairs.same.tolist())
        return {(names_of[a], names_of[b], s) for a, b, s in rows}

    mixed = [ids[i] for i in shuffle]
    renumbered = (97 - labels)[shuffle]
    assert names(sample_pairs(labels, ids, 1), ids) == names(sample_pairs(renumbered, mixed, 1), mixed)
    assert names(sample_pairs(labels, ids, 1), ids) != names(sample_pairs(labels, ids, 2), ids)


def test_negatives_are_uniform_over_the_images_of_other_classes():
    labels = torch.tensor([0] * 2 + [1] * 2 + [2] * 6)
    ids = [str(i) for i in range(10)]
    counts = torch.zeros(10)
    for seed in range(4000):
        pairs = sample_pairs(labels, ids, seed)
        counts[pairs.right[(~pairs.same) & (pairs.left == 0)]] += 1
    assert counts[:2].sum() == 0
    expected = 4000 / 8
    chi2 = ((counts[2:] - expected) ** 2 / expected).sum().item()
    assert chi2 < 24.3  # 99.9 % of chi-square with 7 degrees of freedom


def test_the_threshold_comes_from_validation_and_one_from_classes_that_have_trained_says_so():
    val = torch.tensor([0.0, 1.0]), torch.tensor([False, True])
    test = torch.tensor([2.0, 3.0]), torch.tensor([False, True])
    rows = {(r["metric"], r["variant"]): r["value"] for r in verification_rows(*test, val, Options())}
    assert rows["verification_accuracy", "threshold_val"] == 0.5
    assert rows["verification_accuracy", "threshold_test"] == 1.0
    variants = {r["variant"] for r in verification_rows(*test, val, Options(), "train")}
    assert variants & {"threshold_train", "threshold_val"} == {"threshold_train"}


def test_scores_that_are_not_finite_are_errors_not_dropped():
    same = torch.tensor([True, False])
    with pytest.raises(ValueError, match="1 of 2 pair scores"):
        auc(torch.tensor([float("nan"), 1.0]), same)
    with pytest.raises(ValueError, match="both kinds"):
        auc(torch.tensor([0.0, 1.0]), torch.tensor([True, True]))
    with pytest.raises(ValueError, match="two classes"):
        sample_pairs(torch.zeros(4, dtype=torch.long), list("abcd"), 0)
    with pytest.raises(ValueError, match="at least two images"):
        sample_pairs(torch.arange(4), list("abcd"), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", ["tiny", 1.0, "max"])
def test_adjacent_floats_are_separated(dtype, size):
    low = torch.tensor(getattr(torch.finfo(dtype), str(size), 1.0) * 0.75, dtype=dtype)
    scores = torch.stack([low, torch.nextafter(low, torch.tensor(math.inf, dtype=dtype))])
    same = torch.tensor([False, True])
    threshold, accuracy = best_threshold(scores, same)
    assert accuracy == accuracy_at(threshold, scores, same) == 1.0
