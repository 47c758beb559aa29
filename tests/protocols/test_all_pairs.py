"""True positive rates over all pairs against scikit-learn; intervals against a loop over draws."""

import math

import numpy as np
import pytest
import torch
from bench.methods.distributions import PointMass
from bench.methods.scorers import DistributionScorer
from bench.protocols import all_pairs, verification
from bench.protocols.all_pairs import all_pairs_tpr, class_draws
from bench.protocols.embeddings import Options
from bench.protocols.ranking import ScoreMatrix
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from .views import clustered, rows_of, view_of

pytestmark = pytest.mark.filterwarnings("error")


def _pairs(scores, labels):
    i, j = torch.triu_indices(len(labels), len(labels), 1)
    return scores[i, j].numpy(), (labels[i] == labels[j]).numpy(), labels[i].numpy(), labels[j].numpy()


def _by_sklearn(scores, labels, weights, rate):
    """Largest true positive rate on the full ROC curve of weighted pairs."""
    values, same, a, b = _pairs(scores, labels)
    w = np.where(same, weights[a], weights[a] * weights[b])
    if not w[same].sum() or not w[~same].sum():
        return math.nan
    # Its rates come from cumulative sums of weights; counted ones are exact.
    fpr, tpr, _ = roc_curve(same[w > 0], values[w > 0], sample_weight=w[w > 0].astype(float), drop_intermediate=False)
    return tpr[fpr <= rate + 1e-12].max()


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(4, 18), st.sampled_from([2, 6, 10**6]), st.sampled_from([0.0, 0.05, 0.3, 1.0])
)
def test_rates_are_those_of_scikit_learn(seed, count, levels, rate):
    """Also where too few negative pairs were kept at first, and where tiles have a few images."""
    scores = torch.randint(levels, (count, count), generator=torch.Generator().manual_seed(seed)).double()
    scores = scores.triu() + scores.triu(1).T
    labels = torch.cat([torch.arange(4), torch.randint(4, (count - 4,), generator=torch.Generator().manual_seed(seed))])
    weights = torch.cat([torch.ones(1, 4, dtype=torch.long), class_draws(4, seed, 6)])
    got = all_pairs_tpr(ScoreMatrix(scores), labels, weights, rate, kept=1, side=3).tolist()
    assert got == pytest.approx(all_pairs_tpr(ScoreMatrix(scores), labels, weights, rate).tolist(), abs=0, nan_ok=True)
    for value, w in zip(got, weights.numpy()):
        assert value == pytest.approx(_by_sklearn(scores, labels, w, rate), nan_ok=True)


def _values(labels, x):
    view = view_of(labels, DistributionScorer("cosine", PointMass(x)), options=Options(false_positive_rate=0.01))
    rows = rows_of(view, "verification", "variant")
    return {variant: row for (variant,), row in rows.items() if variant.startswith("all_pairs")}


def _embedded():
    labels = torch.randint(30, (300,), generator=torch.Generator().manual_seed(0))
    return labels, clustered(labels)


def test_rows_are_the_rate_over_all_pairs_and_the_interval_of_the_drawn_classes():
    labels, x = _embedded()
    rows = _values(labels, x)
    assert {row["n_queries"] for row in rows.values()} == {300 * 299 // 2}
    expected = _by_sklearn(x @ x.T, labels, np.ones(30, dtype=int), 0.01)
    assert rows["all_pairs,fpr=0.01"]["value"] == pytest.approx(expected)
    seed = len("class bootstrap")
    order = verification.classes_in_random_order(labels, [f"image {i:03d}" for i in range(300)], seed)
    drawn = []
    for draw in np.random.default_rng(seed).integers(30, size=(200, 30)):
        weights = np.zeros(30, dtype=int)
        for place in draw:
            weights[order[place]] += 1
        drawn.append(_by_sklearn(x @ x.T, labels, weights, 0.01))
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert rows["all_pairs,fpr=0.01,ci95_low"]["value"] == pytest.approx(low)
    assert rows["all_pairs,fpr=0.01,ci95_high"]["value"] == pytest.approx(high)
    assert low < expected < high


@pytest.mark.parametrize("kind", ["cosine", "l2"])
def test_of_a_collapsed_embedding_no_pair_is_accepted(kind):
    """All pairs are tied, up to the rounding of products."""
    labels, x = _embedded()
    scorer = DistributionScorer(kind, PointMass(x[:1].expand(300, -1).clone()))
    weights = torch.cat([torch.ones(1, 30, dtype=torch.long), class_draws(30, 0)])
    assert set(all_pairs_tpr(scorer, labels, weights, 0.01, kept=10).tolist()) == {0.0}


def test_few_classes():
    labels = torch.tensor([0, 0, 1, 1])
    x = torch.nn.functional.normalize(torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1]]).double(), dim=1)
    # Draws of one class alone have no negative pair and are left out.
    assert [row["value"] for row in _values(labels, x).values()] == [1.0, 1.0, 1.0]
    ones = torch.ones(1, 1, dtype=torch.long)
    assert all_pairs_tpr(ScoreMatrix(x @ x.T), torch.zeros(4, dtype=torch.long), ones, 0.1).isnan().all()
    lone = all_pairs_tpr(ScoreMatrix(x @ x.T), torch.arange(4), torch.ones(1, 4, dtype=torch.long), 0.1)
    assert lone.isnan().all()
    with pytest.raises(ValueError, match="two classes"):
        _values(torch.zeros(4, dtype=torch.long), x)
    with pytest.raises(ValueError, match="not finite"):
        all_pairs_tpr(ScoreMatrix(torch.full((2, 2), math.nan)), torch.arange(2), torch.ones(1, 2).long(), 0.1)


def test_many_images_have_sampled_pairs_only(monkeypatch):
    labels, x = _embedded()
    monkeypatch.setattr(verification, "LIMIT", 299)
    assert not _values(labels, x)


def test_what_is_kept_is_bounded(monkeypatch):
    """The largest number of scores that are held at a time is twice those kept and a tile."""
    held = []
    real = torch.cat

    def counting(tensors, *args, **options):
        held.append(sum(len(t) for t in tensors))
        return real(tensors, *args, **options)

    labels, x = _embedded()
    monkeypatch.setattr(all_pairs.torch, "cat", counting)
    all_pairs_tpr(ScoreMatrix(x @ x.T), labels, torch.ones(1, 30, dtype=torch.long), 0.001, kept=500, side=20)
    assert max(held) <= 2 * 500 + 20 * 20
