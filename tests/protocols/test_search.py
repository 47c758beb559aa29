"""Search by bounds: the float64 ranking exactly, on data made to break float32, and wrong without its bounds."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from bench.methods.distributions import DiagonalNormal, IsotropicNormal, PointMass, VonMisesFisher, from_arrays, rows_of
from bench.methods.scorers import DistributionScorer
from bench.protocols import ranking, search
from bench.protocols.query_metrics import per_query
from bench.protocols.ranking import ScoreMatrix, filter_depth, rank
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.retrieval_rows import retrieval_rows

from .views import filter_out_rows, orders_of, precision_sum

N, DEPTH = 900, 5


def _vectors(kind, seed=0, n=N, d=16):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(n // 4, (n,), generator=g)
    x = torch.randn(n // 4, d, generator=g)[labels] + 0.7 * torch.randn(n, d, generator=g)
    if kind == "quantised":
        x = x[:, :3].round()
        x[(x == 0).all(1), 0] = 1.0
    elif kind == "duplicates":
        x[n // 2 :] = x[: n - n // 2]
    elif kind == "near ties":
        # Neighbours some 1e-7 apart, far below what float32 products resolve.
        x = x[torch.arange(n) // 30 * 30] + 1e-7 * torch.randn(n, d, generator=g)
    elif kind == "offset":
        x = 1e-3 * x + 50.0
    elif kind == "huge norms":
        x = x * torch.exp(6 * torch.randn(n, 1, generator=g))
    elif kind in ("one outlier", "outliers"):
        x[: 1 if kind == "one outlier" else 30] += 1e7
    elif kind == "far offset":
        x = x.double() + 1e7
    elif kind == "one constant":
        x = torch.ones(n, d)
    return x, labels


def _scorer(name, kind, seed=0, spread=1.0):
    x, labels = _vectors(kind, seed)
    free = torch.exp(spread * torch.randn(len(x), generator=torch.Generator().manual_seed(seed + 99)))
    if kind in ("one outlier", "outliers"):
        free[: 1 if kind == "one outlier" else 30] *= 1e10
    if kind in ("quantised", "duplicates"):
        free = torch.exp(torch.arange(len(x)) % 3 * 0.5)
        free[len(x) // 2 :] = free[: len(x) - len(x) // 2]
    made = {
        "cosine": lambda: DistributionScorer("cosine", PointMass(x)),
        "l2": lambda: DistributionScorer("l2", PointMass(x)),
        "expected_cosine": lambda: DistributionScorer("expected_cosine", IsotropicNormal(x, free)),
        "sampled_cosine": lambda: DistributionScorer("sampled_cosine", VonMisesFisher(x, 20 * free)),
        "expected_l2": lambda: DistributionScorer("expected_l2", IsotropicNormal(x, 0.1 * free)),
        "mls of normals": lambda: DistributionScorer("mls", IsotropicNormal(x, 0.05 * free)),
        "mls of von Mises-Fisher": lambda: DistributionScorer("mls", VonMisesFisher(x, 50 * free)),
    }
    return made[name](), labels


def _whole(monkeypatch, scorer, labels, **options):
    with monkeypatch.context() as patch:
        patch.setattr(ranking, "usable", lambda *_: False)
        return rank(scorer, labels, **options)


def _found(scorer, labels, depth=DEPTH, **options):
    """How many queries the search proves."""
    rows = torch.arange(len(labels))
    form = scorer.bound()
    tolerance = partial(ranking.tolerance_of, form)
    parts = search.search(form, rows, rows, rows, tolerance, scorer.pairs, depth=depth, block_bytes=1 << 22, **options)
    return sum(len(part.place) for part in parts)


def _equal(a, b):
    for name in ("neighbours", "group", "relevant", "beyond", "beyond_relevant", "positives"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


OWN_FORM = ["cosine", "l2", "mls of normals", "mls of von Mises-Fisher"]
SHARED_FORM = ["expected_cosine", "sampled_cosine", "expected_l2"]
NAMES = OWN_FORM + SHARED_FORM
KINDS = ["random", "quantised", "duplicates", "near ties", "offset", "huge norms", "one constant"]
KINDS += ["one outlier", "outliers", "far offset"]


@pytest.mark.parametrize("rounded", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", OWN_FORM + [pytest.param(name, marks=pytest.mark.slow) for name in SHARED_FORM])
@pytest.mark.parametrize("kind", KINDS)
def test_the_search_finds_what_the_float64_matrix_ranks(name, kind, rounded, monkeypatch):
    monkeypatch.setattr(search, "rounding_pays", lambda queries: rounded)
    scorer, labels = _scorer(name, kind)
    fast = rank(scorer, labels, depth=DEPTH, block_bytes=1 << 22)
    _equal(fast, _whole(monkeypatch, scorer, labels, depth=DEPTH))
    if kind == "random":
        assert _found(scorer, labels) > 0.95 * N


@pytest.mark.parametrize("name", NAMES)
def test_the_search_serves_queries_apart_from_the_gallery(name, monkeypatch):
    scorer, labels = _scorer(name, "random", seed=3)
    mixed = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    for gallery in (mixed[:840], mixed[60:]):
        for kin in (None, 3 * labels + mixed % 3, labels):
            options = {"depth": DEPTH, "queries": mixed[700:], "gallery": gallery, "kin": kin}
            _equal(rank(scorer, labels, **options), _whole(monkeypatch, scorer, labels, **options))


@pytest.mark.parametrize("name", OWN_FORM)
def test_values_do_not_depend_on_the_order_of_images_or_the_block(name):
    for kind in ("random", "duplicates"):
        x, labels = _scorer(name, kind)
        values = {r["metric"]: r["value"] for r in retrieval_rows(x, labels)}
        shuffle = torch.randperm(N, generator=torch.Generator().manual_seed(1))
        y = DistributionScorer(x.name, rows_of(x._distribution, shuffle))
        assert {r["metric"]: r["value"] for r in retrieval_rows(y, labels[shuffle])} == values
        blocks = [per_query(rank(x, labels, depth=30, block_bytes=b), (8,)) for b in (1 << 19, 1 << 26)]
        for metric, value in blocks[0].items():
            assert torch.equal(value.nan_to_num(-1), blocks[1][metric].nan_to_num(-1))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([3, 64, 700]), st.sampled_from([0.0, 3.0, 30.0]))
def test_float32_products_err_by_no_more_than_the_bound(seed, k, decades):
    g = torch.Generator().manual_seed(seed)
    scale = 10.0 ** (decades * (torch.rand(40, 1, generator=g, dtype=torch.float64) - 0.5))
    left = torch.randn(40, k, generator=g, dtype=torch.float64) * scale
    right = torch.randn(50, k, generator=g, dtype=torch.float64)
    right[:25] = left[:25] * (1 + 1e-3 * right[:25])  # nearly parallel: all products add up
    error = (left.float() @ right.float().T).double() - left @ right.T
    bound = search.product_error(left, right)[:, None]
    assert (error.abs() <= bound).all()
    if decades < 10:
        assert error.abs().max() > 1e-5 * bound.max()  # and it is no arbitrary large number


@pytest.mark.parametrize("name", NAMES)
def test_forms_give_the_scores_and_bounds_that_hold(name):
    scorer, _ = _scorer(name, "random", seed=5, spread=2.0)
    form = scorer.bound()
    rows, items = torch.arange(60), torch.arange(60, 260)
    inner = form.left(rows) @ form.right(items).mT
    every = items.expand(60, 200)
    matrix = scorer.matrix(rows, items)
    by_pair = form.scale(rows, matrix, every)
    assert (matrix.abs() <= by_pair * (1 + 1e-15)).all()
    assert (by_pair <= form.scale(rows, matrix) * (1 + 1e-15)).all()
    scale = by_pair.amax()  # a value from an inner product has the errors of long vectors
    assert ((form.value(inner, rows, every) - matrix).abs() <= 1e-14 * scale).all()
    assert (form.value(inner + 1e-3, rows, every) - form.value(inner, rows, every) >= -1e-15 * scale).all()
    side = torch.zeros(200, dtype=torch.float64) if form.per_image is None else form.per_image[items]
    order = side.argsort()
    for size in (1, 7, 200):
        for group in order.split(size):
            low, high = side[group[:1]], side[group[-1:]]
            best = form.upper(inner[:, group].amax(1, keepdim=True), rows, low, low if size == 1 else high)
            assert (best.squeeze(1) - matrix[:, group].amax(1) >= -1e-14 * scale).all()
            if size == 1:
                slack = (best.squeeze(1) - matrix[:, group].amax(1)).max()
                assert slack <= 1e-5 * max(scale, 4.0 * side.max())  # chords of a function of the concentrations


@pytest.mark.parametrize(
    "distribution",
    [
        lambda x: IsotropicNormal(x, torch.full((N,), 1e-30)),
        lambda x: IsotropicNormal(x, torch.where(torch.arange(N) % 7 == 0, 1e-20, 0.1)),
        lambda x: IsotropicNormal(1e12 * x, torch.full((N,), 0.1)),
        lambda x: VonMisesFisher(x, torch.where(torch.arange(N) % 7 == 0, 1e9, 10.0)),
        lambda x: VonMisesFisher(x, torch.full((N,), 1e-6)),
        lambda x: VonMisesFisher(x, torch.zeros(N)),
    ],
    ids=["no variance", "some variances", "norms", "concentrations", "flat", "uniform"],
)
def test_extreme_spreads_are_ranked_like_in_float64(distribution, monkeypatch):
    x, labels = _vectors("random")
    scorer = DistributionScorer("mls", distribution(torch.nn.functional.normalize(x, dim=1)))
    _equal(rank(scorer, labels, depth=DEPTH), _whole(monkeypatch, scorer, labels, depth=DEPTH))


@pytest.mark.parametrize("at", [3, 880])
def test_values_that_are_not_finite_are_refused(at):
    x, labels = _vectors("random")
    variance = torch.ones(N)
    for spoil in (x, variance):
        kept = spoil[at].clone()
        spoil[at] = math.nan
        arrays = {"loc": x, "variance": variance}
        with pytest.raises(ValueError, match="not finite"):
            rank(DistributionScorer("mls", from_arrays("isotropic_normal", arrays)), labels, depth=DEPTH)
        spoil[at] = kept


def test_reduced_precision_of_products_turns_the_search_off(monkeypatch):
    scorer, labels = _scorer("cosine", "random")
    called = []
    monkeypatch.setattr(ranking, "search", lambda *a, **k: called.append(1) or iter(()))
    rank(scorer, labels, depth=DEPTH)
    assert called
    called.clear()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    rank(scorer, labels, depth=DEPTH)
    assert not called


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(NAMES))
def test_every_scorer_equals_a_loop_over_all_orders_of_ties(seed, name):
    """Seven images on a coarse grid, with twins: the mean over every order that the scores allow, in plain Python."""
    g = torch.Generator().manual_seed(seed)
    scorer, _ = _scorer(name, "quantised", seed=seed % 50)
    chosen = torch.randperm(N, generator=g)[:7]
    labels = torch.randint(4, (N,), generator=g)
    ranking = rank(scorer, labels, depth=7, queries=chosen, gallery=chosen)
    values = per_query(ranking, (1, 2))
    for at, q in enumerate(chosen.tolist()):
        others = [j for j in chosen.tolist() if j != q]
        r = sum(int(labels[j] == labels[q]) for j in others)
        if r == 0:
            assert math.isnan(values["map_at_r"][at])
            continue
        score = {j: scorer.pairs(torch.tensor([q]), torch.tensor([j])).item() for j in others}
        near = sorted(others, key=lambda j: -score[j])
        groups = [[near[0]]]
        for before, j in pairwise(near):
            if score[before] - score[j] > 1e-10 * max(1.0, max(map(abs, score.values()))):
                groups.append([])
            groups[-1].append(j)
        orders = orders_of({j: -at for at, group in enumerate(groups) for j in group}, others)
        hits = [[bool(labels[j] == labels[q]) for j in order] for order in orders]
        expected = {
            "map_at_r": [precision_sum(h[:r]) / r for h in hits],
            "r_precision": [sum(h[:r]) / r for h in hits],
            "precision_at_1": [float(h[0]) for h in hits],
            "recall_at_2": [float(any(h[:2])) for h in hits],
        }
        for metric, each in expected.items():
            assert values[metric][at].item() == pytest.approx(sum(each) / len(each), abs=1e-12), metric


@pytest.mark.parametrize("name", ["cosine", "mls of normals", "mls of von Mises-Fisher"])
@pytest.mark.parametrize("kind", ["random", "duplicates"])
def test_filter_out_by_search_equals_ranking_every_subset(name, kind):
    scorer, labels = _scorer(name, kind, seed=7)
    labels[:40] = torch.arange(1000, 1040)  # singletons
    ids = [str(i) for i in range(N)]
    confidence = torch.randn(N, generator=torch.Generator().manual_seed(2))
    rows = torch.arange(N)
    scores = ScoreMatrix(scorer.matrix(rows, rows))
    fast, whole = (filter_out_rows(s, labels, ids, {"c": confidence}) for s in (scorer, scores))
    assert len(fast) == len(whole)
    for a, b in zip(fast, whole):
        assert {**a, "scorer": ""} == {**b, "scorer": ""}


def test_a_deeper_ranking_gives_the_same_retrieval():
    scorer, labels = _scorer("cosine", "quantised", seed=4)
    deep = rank(scorer, labels, depth=filter_depth(labels))
    assert list(retrieval_rows(scorer, labels, ranking=deep)) == list(retrieval_rows(scorer, labels))


def test_large_classes_are_filtered_exactly_from_a_bounded_depth():
    x, _ = _vectors("random", seed=8, n=600)
    labels = torch.arange(600) // 200
    scorer = DistributionScorer("cosine", PointMass(x + 2.0 * torch.eye(16)[labels]))
    ids = [str(i) for i in range(600)]
    # Confidence that removes two classes first: the third keeps all its images.
    confidence = labels.double() + 0.1 * torch.rand(600, generator=torch.Generator().manual_seed(0))
    assert filter_depth(labels) < 4 * 199
    rows = filter_out_rows(scorer, labels, ids, {"c": confidence}, fractions=(0.3, 0.6, 0.9))
    everyone = torch.arange(600)
    order = confidence.argsort(descending=True)
    scores = scorer.matrix(everyone, everyone)
    for r in rows:
        if (r["variant"], r["confidence"]) == ("query_and_gallery", "c"):
            keep = order[: round((1 - r["fraction"]) * 600)].sort().values
            subset = retrieval_rows(ScoreMatrix(scores[keep][:, keep]), labels[keep], ks=(1,))
            expected = next(q["value"] for q in subset if f"filter_out_{q['metric']}" == r["metric"])
            assert r["value"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", ["random", "huge norms", "offset"])
def test_rounded_factors_err_by_no_more_than_their_bound(kind, monkeypatch):
    """The bound of the bfloat16 product, seen through the largest product that a group may hold."""
    scorer, _ = _scorer("l2", kind)
    scorer._centre = None  # it is for the search to centre what is not centred before
    form, rows = scorer.bound(), torch.arange(N)
    seen = []
    product = search._product

    def spy(left, right, out):
        result = product(left, right, out)
        seen.append((left.double() @ right.double().T, result.clone()))
        return result

    monkeypatch.setattr(search, "_product", spy)
    monkeypatch.setattr(search, "rounding_pays", lambda queries: True)
    tolerance = partial(ranking.tolerance_of, form)
    list(search.search(form, rows, rows, rows, tolerance, scorer.pairs, depth=DEPTH, block_bytes=1 << 30))
    gallery = search.Gallery(form, rows, rows, search.group_size(N, DEPTH + 4 + DEPTH // 8), rounded=True)
    exact, found = (torch.cat(tiles, 1)[:, gallery.items >= 0] for tiles in zip(*seen[: gallery.tiles]))
    assert found.dtype == torch.bfloat16
    left, right = form.left(rows), form.right(gallery.items[gallery.items >= 0])
    centred = right - gallery.centre
    # The factors are what bfloat16 holds, so the product errs as one in float32, and by its own rounding,
    within = search.product_error(left, centred)[:, None]
    assert (exact <= search._upper(found, within)).all()
    assert (-exact <= search._upper(-found, within)).all()
    # and the bound used covers the rounding of the factors too, and adds what the centre has taken.
    coarse = left.bfloat16().double()
    off = (left - coarse).norm(dim=1) * gallery.longest_centred + coarse.norm(dim=1) * gallery.lost
    longest = left.new_full((1, 1), max(gallery.longest, gallery.longest_centred))
    bound = (1.02 * search.product_error(left, longest) + 1.0001 * off)[:, None]
    shift = (left @ gallery.centre)[:, None]
    above, below = search._upper(found, bound + shift), search._upper(-found, bound - shift)
    product = left @ right.T
    assert (product <= above).all()
    assert (-product <= below).all()
    if kind == "offset":  # the rounding of vectors that are not centred loses more than it does of those that are
        assert gallery.lost < 1e-3 * (right - right.bfloat16()).norm(dim=1).max()
    if kind == "random":
        assert (found.double() - product).abs().max() > 0.01 * (above + below).max()


@pytest.mark.parametrize("rounded", [False, True], ids=["float32", "bfloat16"])
def test_neighbours_whose_centred_products_are_negative_are_found(rounded, monkeypatch):
    monkeypatch.setattr(search, "rounding_pays", lambda queries: rounded)
    x = 0.01 * torch.randn(N, 8, generator=torch.Generator().manual_seed(0)) + torch.tensor([-1.0] + 7 * [0.0])
    x[::300] *= -1.0  # the mean is nearer to the many: all products with the few are negative but their own three
    scorer, labels = DistributionScorer("cosine", PointMass(x.requires_grad_())), torch.arange(N) // 3
    _equal(rank(scorer, labels, depth=DEPTH), _whole(monkeypatch, scorer, labels, depth=DEPTH))


@given(st.integers(0, 10**6), st.integers(1, 30), st.sampled_from([torch.int16, torch.float32, torch.float64]))
def test_the_largest_values_and_the_next_are_those_of_a_sort(seed, count, kind):
    g = torch.Generator().manual_seed(seed)
    values = torch.randint(-40, 40, (3, count + 1 + seed % 50), generator=g).to(kind)
    place, other = search._largest(values, count)
    ordered = values.sort(dim=1, descending=True).values
    assert torch.equal(values.gather(1, place).sort(dim=1, descending=True).values, ordered[:, :count])
    assert torch.equal(other, ordered[:, count : count + 1])
    assert all(len(set(row)) == count for row in place.tolist())


@pytest.mark.parametrize("width", [1, 2, 7, 128, 600])
@pytest.mark.parametrize("rows", [1, 2, 5, 130])
def test_products_of_bfloat16_are_summed_in_float32(rows, width):
    """Whichever routine serves the shape; a sum in bfloat16 would err by more than one rounding."""
    g = torch.Generator().manual_seed(rows * width)
    left, right = (torch.rand(n, width, generator=g).bfloat16() + 0.5 for n in (rows, 320))
    found = search._product(left, right, torch.empty(rows, 320, dtype=torch.bfloat16))
    exact = left.double() @ right.double().T
    error = search.product_error(left.double(), right.double())[:, None]
    assert (exact <= search._upper(found, error)).all()
    assert (-exact <= search._upper(-found, error)).all()


def _tied_scorer(name, device="cpu"):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (90, 4), generator=g).double()  # ties
    if name == "match":
        return DistributionScorer(name, IsotropicNormal(x, 0.1 + torch.rand(90, generator=g)), {"scale": 2.0}, device)
    return DistributionScorer(name, DiagonalNormal(x, 0.1 + torch.rand(90, 4, generator=g)), device=device)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["match", "mls", "cosine", "l2"])
@pytest.mark.parametrize("depth", [3, 89])
def test_a_gpu_ranks_as_the_cpu(name, depth):
    labels = torch.arange(90) % 7
    _equal(rank(_tied_scorer(name, "cuda"), labels, depth=depth), rank(_tied_scorer(name), labels, depth=depth))
    assert _tied_scorer(name, "cuda").matrix(torch.arange(2), torch.arange(3)).device.type == "cuda"
