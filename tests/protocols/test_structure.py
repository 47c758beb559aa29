"""Clustering and structure against loops, scikit-learn and limit cases."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from bench.protocols import structure
from bench.protocols.clustering import ami, clustering_rows, k_means, nmi, pair_f1, spread_points
from bench.protocols.embeddings import Options, seed_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from .views import rows_of, view_of


def _unit(seed, n=60, d=5, classes=9):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    x = torch.randn(n, d, generator=g).double() + 2 * torch.randn(classes, d, generator=g).double()[labels]
    return torch.nn.functional.normalize(x, dim=-1), labels


@pytest.mark.parametrize("seed", range(20))
def test_class_means_that_coincide_have_no_density(seed):
    """Rounding made values from -3e15 to 9e15 of a distance of zero."""
    pair = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)).double()
    pair = torch.nn.functional.normalize(pair, dim=-1)
    unit, labels = pair[[0, 1, 0, 1]], torch.tensor([0, 0, 1, 1])
    assert structure.class_distances(unit, labels)[1] == 0
    assert math.isnan(structure.density(unit, labels))
    assert structure.class_concentration(unit, labels).isnan().all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_structure_equals_loops(seed):
    x, labels = _unit(seed)
    groups = [x[labels == c] for c in torch.unique(labels)]
    several = [g for g in groups if len(g) > 1]
    intra = np.mean([np.mean([1 - float(a @ b) for a, b in itertools.combinations(g, 2)]) for g in several])
    means = [g.mean(0) / g.mean(0).norm() for g in groups]
    inter = np.mean([1 - float(a @ b) for a, b in itertools.combinations(means, 2)])
    assert structure.class_distances(x, labels) == pytest.approx((intra, inter), abs=1e-12)
    assert structure.density(x, labels) == pytest.approx(intra / inter, abs=1e-12)
    r = [np.mean([1 - float(a @ (g.mean(0) / g.mean(0).norm())) for a in g]) / inter for g in several]
    assert structure.class_concentration(x, labels).tolist() == pytest.approx(r, abs=1e-12)
    distances = [[1 - float(a @ b) for a, b in itertools.combinations(g, 2)] for g in several]
    within = np.mean([np.var(each, ddof=1) for each in distances if len(each) > 1])
    between = np.var([np.mean(each) for each in distances], ddof=1)
    assert structure.cluster_diversity(x, labels) == pytest.approx((within, between), rel=1e-9)
    pairs = [math.exp(-2 * float((a - b).square().sum())) for a, b in itertools.combinations(x, 2)]
    assert structure.uniformity(x) == pytest.approx(np.mean(pairs), abs=1e-12)
    s = np.linalg.svd(x.numpy(), compute_uv=False)
    for drop in (0, 1):
        kept = s[drop:] / s[drop:].sum()
        assert structure.spectral_decay(x, drop) == pytest.approx(
            entropy(np.full(len(kept), 1 / len(kept)), kept), abs=1e-10
        )


def test_limits_of_structure():
    eye = torch.eye(6).double().repeat(3, 1)
    labels = torch.arange(6).repeat(3)
    assert structure.spectral_decay(eye, drop=0) == pytest.approx(0, abs=1e-12)
    assert structure.density(eye, labels) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="two classes"):
        structure.class_distances(eye, torch.zeros(18, dtype=torch.long))
    with pytest.raises(ValueError, match="two classes"):
        structure.class_distances(eye[:4], torch.arange(4))
    names = [(r["metric"], r["variant"]) for r in structure.structure_rows(*_unit(0))]
    assert len(set(names)) == len(names) == 8


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_pair_f1_equals_counting_pairs(seed):
    g = torch.Generator().manual_seed(seed)
    labels, found = torch.randint(5, (30,), generator=g), torch.randint(7, (30,), generator=g)
    tp = fp = fn = 0
    for i, j in itertools.combinations(range(30), 2):
        same, together = bool(labels[i] == labels[j]), bool(found[i] == found[j])
        tp, fp, fn = tp + (same and together), fp + (together and not same), fn + (same and not together)
    assert pair_f1(labels, found) == pytest.approx(2 * tp / (2 * tp + fp + fn))


def _cost(x, assigned):
    return sum(float((x[assigned == c] - x[assigned == c].mean(0)).square().sum()) for c in torch.unique(assigned))


def test_k_means_is_lloyds_from_its_start_and_as_good_as_scikit_learns():
    x, labels = _unit(2, n=300, classes=12)
    found = k_means(x, 12, seed=3)
    assert torch.equal(found, k_means(x, 12, seed=3))
    means = x[spread_points((x - x.mean(0)).float(), 12, seed=3)].double()
    for _ in range(21):
        nearest = torch.cdist(x.double(), means).argmin(1)
        means = torch.stack([x[nearest == c].double().mean(0) for c in range(12)])
    assert torch.equal(found, nearest)
    assert _cost(x, found) < 1.05 * KMeans(12, n_init=10, random_state=0).fit(x.numpy()).inertia_
    rows = {r["metric"]: r["value"] for r in clustering_rows(labels, [found])}
    assert rows["nmi"] == pytest.approx(normalized_mutual_info_score(labels, found))
    assert rows["ami"] == pytest.approx(adjusted_mutual_info_score(labels, found))
    for factor in (2.0**-200, 2.0**600):
        assert torch.equal(found, k_means(x.double() * factor, 12, seed=3))
    with pytest.raises(ValueError, match="cannot form"):
        k_means(x, 301)
    with pytest.raises(ValueError, match="not finite"):
        k_means(torch.cat([x, x[:1] * math.nan]), 12)


@settings(max_examples=60)
@given(st.data(), st.integers(1, 40))
def test_ami_is_scikit_learns(data, count):
    of = [data.draw(st.lists(st.integers(0, most), min_size=count, max_size=count)) for most in (3, count)]
    labels, found = map(torch.tensor, of)
    for other in (found, labels, torch.arange(count)):
        assert ami(labels, other) == pytest.approx(adjusted_mutual_info_score(labels, other), abs=1e-9)
    assert ami(torch.arange(count), torch.arange(count)) == 1.0


@pytest.mark.parametrize(("classes", "noise", "offset"), [(5, 0.0, 0), (5, 0.02, 0), (300, 0.01, 0), (5, 1e-3, 1e3)])
def test_classes_that_lie_apart_are_found_from_every_start(classes, noise, offset):
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(4)
    x = torch.nn.functional.normalize(torch.randn(classes, 64, generator=g, dtype=torch.float64), dim=1)[labels]
    x = x + noise * torch.randn(x.shape, generator=g) + offset
    for seed in range(10):
        assert {r["value"] for r in clustering_rows(labels, [k_means(x, classes, seed=seed)])} == {1.0}


def test_a_start_is_drawn_by_the_eighth_power_of_the_distance_and_has_no_point_twice():
    x = torch.tensor([[0.0], [1.0], [1.3]])
    pairs = Counter(tuple(spread_points(x, 2, seed).tolist()) for seed in range(3000))
    for first, second in itertools.permutations(range(3), 2):
        weights = (x[:, 0] - x[first, 0]).abs() ** 8
        share = float(weights[second] / weights.sum()) / 3
        assert pairs[first, second] / 3000 == pytest.approx(share, abs=4 * (share / 3000) ** 0.5)
    assert spread_points(torch.ones(9, 2), 7).unique().numel() == 7  # equal points, too


def test_agreement_with_the_classes_has_a_spread_if_several_starts_are_asked_for():
    x, labels = _unit(2, n=300, classes=12)
    for count in (1, 3):
        view = view_of(labels, x @ x.T, directions=lambda: x, seed=seed_of, options=Options(starts=count))
        found = {key: row["value"] for key, row in rows_of(view, "clustering", "metric", "variant").items()}
        starts = [k_means(x, 12, seed=seed_of(f"k-means {start}") % (2**31 - 1)) for start in range(count)]
        for metric, measure in (("nmi", nmi), ("ami", ami), ("pair_f1", pair_f1)):
            values = [measure(labels, clusters) for clusters in starts]
            assert found[metric, ""] == pytest.approx(np.mean(values))
            assert count == 1 or found[metric, "sd"] == pytest.approx(np.std(values, ddof=1)) != 0
        assert len(found) == 3 * min(count, 2)


def test_collapsed_and_one_dimensional_embeddings_have_no_ratio_and_no_decay():
    labels = torch.arange(12) % 3
    found = {
        r["metric"]: r["value"] for r in structure.structure_rows(torch.ones(12, 4, dtype=torch.float64) / 2, labels)
    }
    assert math.isnan(found["density"])
    found = {r["metric"]: r["value"] for r in structure.structure_rows(torch.ones(12, 1, dtype=torch.float64), labels)}
    assert math.isnan(found["spectral_decay"])
