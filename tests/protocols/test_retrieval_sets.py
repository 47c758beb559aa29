"""Retrieval sets: ranks against loops, k against its definition, and the guarantee by simulation."""

import math

import pytest
import torch
from bench.methods.distributions import IsotropicNormal, PointMass
from bench.methods.scorers import DistributionScorer
from bench.protocols.ranking import ScoreMatrix, rank, tolerance_of
from bench.protocols.retrieval_sets import conformal_k, first_positive_ranks, ranks_in, retrieval_sets, sets_of_classes
from hypothesis import given, settings
from hypothesis import strategies as st

from .views import rows_of, view_of

pytestmark = pytest.mark.filterwarnings("error")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.sampled_from([2, 5, 1000]), st.booleans())
def test_the_rank_of_the_first_positive_equals_a_loop(seed, count, levels, apart):
    g = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (count, count), generator=g).double()
    labels = torch.randint(3, (count,), generator=g)
    queries, gallery = (torch.arange(count // 2), torch.arange(1, count)) if apart else (torch.arange(count),) * 2
    # A tiny budget puts every query in a block of its own.
    got = first_positive_ranks(ScoreMatrix(scores), labels, queries=queries, gallery=gallery, block_bytes=1)
    for q, value in zip(queries.tolist(), got.tolist()):
        items = [i for i in gallery.tolist() if i != q]
        positives = [i for i in items if labels[i] == labels[q]]
        if not positives:
            assert math.isnan(value)
            continue
        # Tied items are in the worst order.
        order = sorted(items, key=lambda i: (-scores[q, i].item(), i in positives))
        assert value == next(place for place, i in enumerate(order, 1) if i in positives)


def test_no_queries_have_no_ranks():
    scores, none = ScoreMatrix(torch.eye(3)), torch.zeros(0, dtype=torch.long)
    for queries, gallery in ((none, torch.arange(3)), (none, none)):
        assert first_positive_ranks(scores, torch.tensor([0, 0, 1]), queries=queries, gallery=gallery).shape == (0,)


@pytest.mark.parametrize("kind", ["cosine", "l2", "mls"])
def test_images_that_are_equal_are_tied_wherever_they_are_stored(kind):
    """Products of equal vectors may round unequally; scorers say how much."""
    g = torch.Generator().manual_seed(0)
    point = torch.randint(40, (150,), generator=g)
    x, free = torch.randn(40, 8, generator=g)[point], torch.exp(torch.randn(40, generator=g))[point]
    labels = torch.randint(50, (150,), generator=g)
    scorer = DistributionScorer(kind, IsotropicNormal(x, free) if kind == "mls" else PointMass(x))
    ranks = first_positive_ranks(scorer, labels)
    scores = scorer.matrix(torch.arange(150), torch.arange(150)).double()
    for q in range(150):
        others = [i for i in range(150) if i != q]
        of_point = {p: scores[q, others][point[others] == p].max().item() for p in set(point[others].tolist())}
        order = sorted(others, key=lambda i: (-of_point[int(point[i])], bool(labels[i] == labels[q])))
        hits = [place for place, i in enumerate(order, 1) if labels[i] == labels[q]]
        assert ranks[q].item() == hits[0] if hits else math.isnan(ranks[q])


@pytest.mark.parametrize("name", ["cosine", "l2"])
@pytest.mark.parametrize("kind", ["random", "duplicates", "near ties", "one constant", "huge norms"])
def test_ranks_from_products_in_float32_are_those_of_the_float64_scores(name, kind):
    g = torch.Generator().manual_seed(1)
    x, labels = torch.randn(2600, 16, generator=g), torch.randint(700, (2600,), generator=g)
    point = torch.arange(2600) % {"duplicates": 300, "near ties": 40, "one constant": 1}.get(kind, 2600)
    x = x[point] + (1e-7 * torch.randn(2600, 16, generator=g) if kind == "near ties" else 0.0)
    x = x * torch.exp(6 * torch.randn(2600, 1, generator=g)) if kind == "huge norms" else x
    scorer, asked, gallery = DistributionScorer(name, PointMass(x)), torch.arange(0, 2600, 7), torch.arange(100, 2600)
    scores = scorer.matrix(asked, gallery)
    found = first_positive_ranks(scorer, labels, queries=asked, gallery=gallery)
    scale = tolerance_of(scorer.bound(), asked, scores, gallery.expand(scores.shape))
    for q, row, tolerance, rank_of in zip(asked.tolist(), scores, scale, found.tolist()):
        same, other = labels[gallery] == labels[q], gallery != q
        if not bool((same & other).any()):
            assert math.isnan(rank_of)
            continue
        best = row.masked_fill(~(same & other), -math.inf).argmax()
        assert rank_of == 1 + int((~same & (row >= row[best] - tolerance[best])).sum())


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 99))
def test_k_is_the_least_that_enough_of_one_query_more_would_have(ranks, percent):
    n = len(ranks)
    needed = -(-percent * (n + 1) // 100)
    k = conformal_k(torch.tensor(ranks, dtype=torch.float64), coverage=percent / 100)
    assert k == (sorted(ranks)[needed - 1] if needed <= n else math.inf)
    # Queries without a positive say nothing.
    assert conformal_k(torch.tensor([*ranks, math.nan], dtype=torch.float64), coverage=percent / 100) == k


@pytest.mark.parametrize("coverage", [0.0, 1.0, math.nan])
def test_a_coverage_that_no_finite_sample_gives_is_refused(coverage):
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\)"):
        conformal_k(torch.ones(3), coverage=coverage)


def _exchangeable(g, classes=20, images=2):
    """Ranks in a full gallery of classes that are drawn alike, but are of unlike difficulty."""
    labels = torch.arange(classes).repeat_interleave(images)
    centres = torch.randn(classes, 3, generator=g)
    spread = torch.rand(classes, generator=g).square() * 2
    x = centres[labels] + spread[labels, None] * torch.randn(len(labels), 3, generator=g)
    return first_positive_ranks(ScoreMatrix(-torch.cdist(x, x)), labels), labels


def test_sets_calibrated_on_exchangeable_classes_cover_what_they_promise():
    """1,000 fresh calibrations: not below the lower end of the 95 % binomial band of .9, and not everything."""
    g = torch.Generator().manual_seed(0)
    ids = [f"image {i:02d}" for i in range(40)]
    drawn, short, sizes = [], [], []
    for seed in range(1000):
        ranks, labels = _exchangeable(g)
        sets = sets_of_classes(ranks, labels, ids, items=39, seed=seed)
        drawn.append(sets.coverage)
        sizes.append(sets.size)
        if seed % 4 == 0:
            # The 9th of the 10 ranks, their plain quantile of .9, covers 9 of 11.
            short.append(sets_of_classes(ranks, labels, ids, items=39, seed=seed, coverage=0.8).coverage)
    half = 1.96 * math.sqrt(0.9 * 0.1 / 1000)
    assert 0.9 - half <= sum(drawn) / 1000 <= 10 / 11 + half + 0.02  # 0.02 for tied ranks
    assert sum(short) / len(short) < 0.9 - 2 * half
    assert sum(sizes) / 1000 < 38


def test_one_query_a_class_calibrates_and_the_other_classes_are_tested():
    labels = torch.tensor([0] * 2 + [1] * 3 + [2] * 4 + [3] * 5)
    ids = [f"{i:02d}" for i in range(14)]
    # Every query of a class has the class's own rank: it does not matter which one is drawn.
    ranks = labels.double() + 1
    seen = set()
    for seed in range(40):
        sets = sets_of_classes(ranks, labels, ids, items=13, seed=seed, coverage=0.6)
        k = sets.k  # the second smallest of two: ceil(.6 * 3) = 2
        assert k in (2.0, 3.0, 4.0)
        assert sets.n_queries in {5, 6, 7, 8, 9}
        assert sets.coverage in (0.0, 0.5, 1.0)  # each class counts alike
        seen.add((k, sets.coverage))
        # Neither the order of the images nor the numbers of the classes matter.
        mixed = torch.randperm(14, generator=torch.Generator().manual_seed(seed))
        names = [ids[i] for i in mixed.tolist()]
        assert sets_of_classes(ranks[mixed], 9 - labels[mixed], names, items=13, seed=seed, coverage=0.6) == sets
    assert {(2.0, 0.0), (4.0, 1.0)} <= seen


def test_the_query_that_calibrates_a_class_is_drawn():
    """Classes of ranks 1 and 5: which of a class calibrates changes with the seed."""
    labels, ids = torch.arange(20) // 10, [f"{i:02d}" for i in range(20)]
    ranks = torch.where(torch.arange(20) % 10 < 5, 1.0, 5.0)
    ks = [sets_of_classes(ranks, labels, ids, items=19, seed=seed, coverage=0.5).k for seed in range(60)]
    assert 15 < ks.count(1.0) < 45
    assert set(ks) == {1.0, 5.0}


def test_validation_queries_that_are_easier_fall_short_and_it_shows():
    easy, hard = torch.ones(99), torch.tensor([1.0] * 50 + [4.0] * 50)
    sets = retrieval_sets(conformal_k(easy), hard, items=30)
    assert (sets.k, sets.coverage, sets.size) == (1.0, 0.5, 1.0)


def test_small_galleries_and_queries_without_a_positive():
    one = ScoreMatrix(torch.eye(3))
    assert first_positive_ranks(one, torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]  # one class
    alone = first_positive_ranks(one, torch.arange(3), gallery=torch.tensor([0]))
    assert alone.isnan().all()
    nobody = first_positive_ranks(one, torch.zeros(3), gallery=torch.zeros(0, dtype=torch.long))
    assert nobody.isnan().all()
    # Equal embeddings: any positive may come last.
    assert first_positive_ranks(ScoreMatrix(torch.ones(4, 4)), torch.tensor([0, 0, 1, 1])).tolist() == [3.0] * 4
    with pytest.raises(ValueError, match="not finite"):
        first_positive_ranks(ScoreMatrix(torch.full((2, 2), math.nan)), torch.zeros(2))


def test_too_few_queries_take_the_whole_gallery():
    few = conformal_k(torch.ones(8))
    sets = retrieval_sets(few, torch.tensor([3.0, 9.0]), items=9)
    assert (sets.k, sets.coverage, sets.size) == (math.inf, 1.0, 9.0)
    # Fewer items than k: all of them.
    assert retrieval_sets(20.0, torch.tensor([3.0]), items=9).size == 9.0
    nothing = torch.full((3,), math.nan)
    lone = retrieval_sets(2.0, nothing, items=2)
    assert math.isnan(lone.coverage)
    assert (lone.n_queries, lone.n_lone) == (0, 3)
    for ranks in (nothing, torch.tensor([1.0, math.nan, math.nan])):
        sets = sets_of_classes(ranks, torch.arange(3), ["a", "b", "c"], items=2, seed=0)
        assert (sets.k, sets.size) == (math.inf, 2.0)
        assert math.isnan(sets.coverage) or sets.coverage == 1.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.sampled_from([2, 5, 1000]), st.booleans(), st.integers(1, 12))
def test_a_ranking_tells_the_ranks_as_far_as_it_reaches(seed, count, levels, apart, depth):
    g = torch.Generator().manual_seed(seed)
    scorer = ScoreMatrix(torch.randint(levels, (count, count), generator=g).double())
    labels = torch.randint(3, (count,), generator=g)
    roles = {"queries": torch.arange(count - 1), "gallery": torch.arange(1, count)} if apart and count > 2 else {}
    ranking = rank(scorer, labels, depth=depth, **roles)
    expected = first_positive_ranks(scorer, labels, **roles)
    found = ranks_in(ranking)
    assert torch.equal(found.isnan(), expected.isnan())
    known = found.isfinite()
    assert torch.equal(found[known], expected[known])
    assert bool((expected[found.isinf()] > ranking.depth).all())


def _embeddings(seed, labels, **changes):
    """Images of which some have their first positive far beyond the depth of a ranking."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(len(labels), 3, generator=g, dtype=torch.float64)
    return view_of(labels, x @ x.T, **changes), ScoreMatrix(x @ x.T)


def _values(view):
    return rows_of(view, "retrieval_sets", "metric", "variant")


@pytest.mark.parametrize("apart", [False, True], ids=["all", "queries and gallery"])
def test_rows_are_the_sets_of_validation_and_of_classes(apart):
    labels = torch.cat([torch.arange(120) // 3, torch.tensor([99])])
    roles = {"queries": torch.arange(0, 121, 3), "gallery": torch.arange(1, 121)} if apart else {}
    validation, of_validation = _embeddings(1, torch.arange(60) // 4)
    view, scorer = _embeddings(2, labels, validation=validation, **roles)
    rows = _values(view)
    ranks = first_positive_ranks(scorer, labels, **roles)
    assert ranks.nan_to_num().max() > view.ranking("cosine").depth
    queries = roles.get("queries", torch.arange(121))
    items = 120
    k = conformal_k(first_positive_ranks(of_validation, validation.labels))
    counted = [rank for rank in ranks.tolist() if not math.isnan(rank)]
    size, coverage = (rows[f"set_{what}_at_90", "calibrated_val"] for what in ("size", "coverage"))
    assert size["value"] == min(k, items)
    assert coverage["value"] == pytest.approx(sum(rank <= k for rank in counted) / len(counted))
    assert (size["n_queries"], size["n_lone"]) == (len(counted), 1)
    of_classes = sets_of_classes(
        ranks, labels[queries], [view.ids[i] for i in queries], items=items, seed=len("retrieval sets")
    )
    size, coverage = (rows[f"set_{what}_at_90", "calibrated_classes"] for what in ("size", "coverage"))
    assert (size["value"], coverage["value"]) == (of_classes.size, of_classes.coverage)
    assert size["n_queries"] == of_classes.n_queries
    assert 1 < size["value"] < items


def test_validation_classes_that_are_missing_or_were_trained_on_calibrate_nothing():
    labels = torch.arange(60) // 3
    validation, _ = _embeddings(1, labels)
    for changes in ({}, {"validation": validation, "validation_split": "train"}):
        view, _ = _embeddings(2, labels, **changes)
        assert {variant for _, variant in _values(view)} == {"calibrated_classes"}


@pytest.mark.parametrize("labels", [[0] * 4, [0, 1, 2, 3]], ids=["one class", "no positives"])
def test_rows_of_one_class_and_of_lone_queries(labels):
    validation, _ = _embeddings(1, torch.tensor(labels))
    rows = _values(_embeddings(2, torch.tensor(labels), validation=validation)[0])
    for variant in ("calibrated_val", "calibrated_classes"):
        assert rows["set_size_at_90", variant]["value"] == 3.0  # too few queries: the whole gallery
        coverage = rows["set_coverage_at_90", variant]["value"]
        assert coverage == 1.0 if len(set(labels)) == 1 else math.isnan(coverage)
