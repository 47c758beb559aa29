"""Filter-out curves against re-ranking every subset from scratch, and against what must hold of any curve."""

import itertools

import pytest
import torch
from bench.protocols.query_metrics import per_query
from bench.protocols.ranking import ScoreMatrix, rank
from bench.protocols.retrieval_confidence import random_confidence
from hypothesis import given, settings
from hypothesis import strategies as st

from .views import FRACTIONS, clustered, filter_out_rows


def _data(seed, n=80, classes=12, levels=None):
    labels = torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))
    x = clustered(labels, noise=1.0, seed=seed)
    scores = x @ x.T
    if levels:  # coarse scores: many ties
        scores = (scores * levels / scores.abs().max()).round()
    return scores, labels, [f"image {i}" for i in range(n)]


def _curve(rows, metric, variant, name="c"):
    return [r for r in rows if (r["metric"], r["variant"], r["confidence"]) == (f"filter_out_{metric}", variant, name)]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([None, 3, 20]), st.sampled_from(["all", "apart", "overlap"]))
def test_both_variants_equal_re_ranking_from_scratch(seed, levels, kind):
    scores, labels, ids = _data(seed, levels=levels)
    scorer, mixed = ScoreMatrix(scores), torch.randperm(80, generator=torch.Generator().manual_seed(seed))
    queries = gallery = torch.arange(80)
    if kind != "all":
        queries, gallery = mixed[:30].sort().values, mixed[30 if kind == "apart" else 20 :].sort().values
        gallery = gallery[labels[gallery] > 3]  # some queries have no positive
    roles = {} if kind == "all" else {"queries": queries, "gallery": gallery}
    confidence = torch.randn(80, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    rows = filter_out_rows(scorer, labels, ids, {"c": confidence}, fractions=FRACTIONS, **roles)
    assert bool(_curve(rows, "map_at_r", "query_and_gallery", "oracle")) == (kind == "all")
    assert len(_curve(rows, "map_at_r", "query_only", "oracle")) == 10
    order = confidence.argsort(descending=True)
    for metric, variant in itertools.product(("map_at_r", "recall_at_1"), ("query_only", "query_and_gallery")):
        for r in _curve(rows, metric, variant):
            if variant == "query_only":
                asked, left = order[torch.isin(order, queries)], gallery
                counts = ((labels[asked, None] == labels[left]) & (asked[:, None] != left)).any(1)
                kept = asked[counts][: round((1 - r["fraction"]) * int(counts.sum()))]
                asked = torch.cat([kept, asked[~counts]])
            else:
                kept = order[: round((1 - r["fraction"]) * 80)]
                asked, left = kept[torch.isin(kept, queries)], gallery[torch.isin(gallery, kept)]
            if not len(asked) or len(left) < 2:
                continue
            values = per_query(rank(scorer, labels, depth=80, queries=asked, gallery=left))[metric]
            lone = int(values.isnan().sum())
            assert r["value"] == pytest.approx(values.nanmean().item(), abs=1e-12, nan_ok=True)
            assert (r["n_queries"], r["n_lone"]) == (len(asked) - lone, lone)


def test_a_constant_confidence_is_a_random_control_whatever_the_order():
    scores, labels, ids = _data(3)
    shuffle = torch.randperm(80, generator=torch.Generator().manual_seed(1))
    plain = list(filter_out_rows(ScoreMatrix(scores), labels, ids, {"c": torch.ones(80)}, seed=5))
    mixed = list(
        filter_out_rows(
            ScoreMatrix(scores[shuffle][:, shuffle]), labels[shuffle], [ids[i] for i in shuffle], {"c": torch.ones(80)},
            seed=5,
        )
    )  # fmt: skip
    assert plain == mixed
    # Query-only values of a constant confidence average to the whole's, over the hash seeds.
    whole = _curve(plain, "recall_at_1", "query_only")[0]["value"]
    halves = [
        _curve(list(filter_out_rows(ScoreMatrix(scores), labels, ids, {"c": torch.ones(80)}, fractions=(0.5,), seed=s)),
               "recall_at_1", "query_only")[0]["value"]
        for s in range(60)
    ]  # fmt: skip
    assert sum(halves) / 60 == pytest.approx(whole, abs=0.03)


def test_each_metric_has_the_oracle_that_bounds_it():
    scores, labels, ids = _data(7, n=200, classes=30)
    g = torch.Generator().manual_seed(0)
    confidences = {str(i): torch.randn(200, generator=g) for i in range(5)}
    rows = filter_out_rows(ScoreMatrix(scores), labels, ids, confidences)
    for metric in ("map_at_r", "recall_at_1"):
        best = [r["value"] for r in _curve(rows, metric, "query_only", "oracle")]
        assert len(best) == 10
        assert best == sorted(best)
        for i in range(5):
            for r, top in zip(_curve(rows, metric, "query_only", str(i)), best):
                assert r["value"] <= top + 1e-12


def test_random_confidence_is_uniform_and_per_identity():
    ids = [f"id{i}" for i in range(5000)]
    values = random_confidence(ids, 3)
    assert 0 <= values.min() < 0.01
    assert 0.99 < values.max() < 1
    assert values.mean().item() == pytest.approx(0.5, abs=0.02)
    assert torch.equal(random_confidence(ids[::-1], 3).flip(0), values)
    assert not torch.equal(random_confidence(ids, 4), values)


def test_bad_confidences_are_refused():
    scores, labels, ids = _data(0)
    for bad in (torch.full((80,), float("nan")), torch.ones(79)):
        with pytest.raises(ValueError, match=r"not finite|one number per image"):
            filter_out_rows(ScoreMatrix(scores), labels, ids, {"c": bad})
