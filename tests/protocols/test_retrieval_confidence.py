"""Retrieval confidences against plain loops, over all orders of tied neighbours."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from bench.methods.distributions import PointMass, VonMisesFisher
from bench.methods.scorers import DistributionScorer
from bench.protocols.confidence import confidence_auroc
from bench.protocols.declare import run_battery
from bench.protocols.embeddings import Embeddings
from bench.protocols.known_tests import load_tests
from bench.protocols.query_metrics import per_query
from bench.protocols.ranking import NEAREST, ScoreMatrix, agreeing, answer_depth, rank
from bench.protocols.retrieval_confidence import (
    HALVES,
    LogisticFit,
    consistency,
    logistic_weights,
    mean_rank,
    retrieval_confidences,
    view_agreement,
)
from bench.protocols.rows import RETRIEVAL_CONFIDENCES, kind_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import normalize

from .views import clustered, orders_of, tied_data, view_of

pytestmark = pytest.mark.filterwarnings("error")


def _found(scorer, labels, k=NEAREST, depth=1, **roles):
    depth = max(depth, answer_depth(labels))
    return retrieval_confidences(scorer, rank(scorer, labels, depth=depth, answers=k, **roles))


def _by_definition(scores, labels, query, gallery, k):
    """Means over the equally likely orders of ties, straight from the definitions."""
    others = [j for j in gallery if j != query]
    orders = list(orders_of(scores, others))
    total = dict.fromkeys(("top1_score", "margin", "agreement", "spread"), 0.0)
    for order in orders:
        top = order[0]
        rivals = [scores[j] for j in order if labels[j] != labels[top]]
        near = order[:k]
        total["top1_score"] += scores[top]
        total["margin"] += scores[top] - max(rivals) if rivals else 0.0
        total["agreement"] += sum(labels[j] == labels[top] for j in near) / len(near)
        total["spread"] += scores[top] - scores[order[:NEAREST][-1]]
    return {name: value / len(orders) for name, value in total.items()}


@settings(max_examples=100, deadline=None)
@given(tied_data(), st.integers(1, 6), st.integers(1, 7), st.sampled_from([0, -160, -1060]), st.data())
def test_values_are_the_means_over_all_orders_of_ties(data, k, depth, exponent, more):
    (scores, labels), size = data, 2.0**exponent  # too small for float32, or nearly so for float64
    gallery = sorted(more.draw(st.sets(st.integers(0, len(labels) - 1), min_size=2)))
    scorer = ScoreMatrix(size * torch.tensor(scores).double())
    found = _found(scorer, torch.tensor(labels), k, depth, gallery=torch.tensor(gallery))
    for query in range(len(labels)):
        for name, value in _by_definition(scores[query], labels, query, gallery, k).items():
            actual = found[name][query].item() / (1.0 if name == "agreement" else size)
            assert actual == pytest.approx(value, abs=1e-6), (name, query)


def _clustered(count=1200, classes=60, dim=8, seed=0):
    labels = torch.arange(count) % classes
    return clustered(labels, dim, 0.8, seed), labels


@pytest.mark.parametrize("name", ["cosine", "mls"])
def test_the_search_that_skips_most_of_the_gallery_finds_the_same(name):
    x, labels = _clustered(count=2000, classes=400)
    spread = 20 * torch.exp(torch.randn(len(x), generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    scorer = DistributionScorer(name, PointMass(x) if name == "cosine" else VonMisesFisher(x, spread))
    found = _found(scorer, labels)
    everyone = torch.arange(len(labels))
    scores = scorer.matrix(everyone[:40], everyone)
    most = scores.abs().max().item()
    for query, row in enumerate(scores.tolist()):
        for key, value in _by_definition(row, labels.tolist(), query, everyone.tolist(), NEAREST).items():
            assert found[key][query].item() == pytest.approx(value, abs=1e-7 * most), key


def test_one_constant_embedding_says_nothing():
    x, labels = torch.ones(300, 4, dtype=torch.float64) / 2, torch.arange(300) % 3
    ranking = rank(scorer := DistributionScorer("cosine", PointMass(x)), labels, depth=101, answers=NEAREST)
    found = retrieval_confidences(scorer, ranking)
    assert (found["margin"] == 0).all()
    assert (found["spread"] == 0).all()
    # The nearest has a class at random, of which 99 or 98 others are left for nine more places.
    assert found["agreement"][0].item() == pytest.approx(0.1 + 0.9 * (99 * 98 + 2 * 100 * 99) / 299 / 298, abs=1e-7)
    correct = per_query(ranking)["recall_at_1"]
    for values in found.values():
        assert confidence_auroc(values, correct) == pytest.approx(0.5)


def test_the_agreement_asks_as_many_as_a_class_has():
    """The share of ten is inverted where a class has two images: a wrong answer of a crowd has nine of its own."""
    assert [agreeing(torch.arange(60) // size) for size in (1, 2, 5, 20)] == [1, 1, 4, 10]
    assert agreeing(torch.tensor([0, 0, 0, 1, 1, 2])) == 1
    x, labels = _clustered(count=80, classes=40)
    view = view_of(labels, x @ x.T)
    assert view.ranking("cosine").answers.k == 1
    assert view.retrieval_confidences("cosine")["agreement"].unique().tolist() == [1.0]


@pytest.mark.parametrize("lone", [0, 30, 50])
def test_images_without_a_class_mate_leave_the_agreement_as_it_is(lone):
    """With more lone classes than others it asked one neighbour, and was the same for all: an AUROC of .50, not .86."""
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(40, 8, generator=g, dtype=torch.float64).repeat_interleave(12, 0)
    x = centres + 1.2 * torch.rand(480, 1, generator=g) * torch.randn(480, 8, generator=g, dtype=torch.float64)
    x = normalize(torch.cat([x, torch.randn(lone, 8, generator=g, dtype=torch.float64)]), dim=-1)
    labels = torch.cat([torch.arange(40).repeat_interleave(12), torch.arange(40, 40 + lone)])
    view = view_of(labels, x @ x.T)
    found = view.retrieval_confidences("cosine")["agreement"]
    for query in range(0, len(x), 7):
        near = [j for j in (x @ x[query]).argsort(descending=True).tolist() if j != query][:10]
        share = sum(int(labels[j] == labels[near[0]]) for j in near) / 10
        assert found[query].item() == pytest.approx(share, abs=1e-7)
    right = view.query_values("cosine", (1,))["recall_at_1"]
    assert confidence_auroc(found[~right.isnan()], right[~right.isnan()]) > 0.7
    assert agreeing(labels, apart=True) == 10
    assert agreeing(torch.arange(lone + 2)) == 1


def _consistency_by_hand(x, labels, query, seed, scores=None):
    scores = x @ x.T if scores is None else scores
    scores = [float(scores[query, j]) if j != query else -math.inf for j in range(len(x))]
    order = sorted(range(len(x)), key=lambda j: -scores[j])[: len(x) - 1]
    rival = next((j for j in order if labels[j] != labels[order[0]]), None)
    asked = {*order[:NEAREST], *([] if rival is None else [rival])}
    draw = torch.rand(HALVES, x.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    count = 0
    for row in draw:
        half = sorted(range(x.shape[1]), key=lambda d: float(row[d]))[: (x.shape[1] + 1) // 2]
        cosine = {j: float(x[query, half] @ x[j, half] / x[j, half].norm().clamp_min(1e-12)) for j in asked}
        best = [j for j in asked if cosine[j] >= max(cosine.values()) - 1e-12]
        count += sum(int(labels[j] == labels[order[0]]) for j in best) / len(best)
    return count / HALVES


@pytest.mark.slow
@pytest.mark.parametrize("dim", [7, 8])
def test_the_consistency_counts_halves_of_the_dimensions(dim):
    x, labels = _clustered(count=120, classes=12, dim=dim)
    ranking = rank(ScoreMatrix(x @ x.T), labels, depth=NEAREST + 2, answers=9)
    found = consistency(x, labels, ranking, seed=5)
    for query in range(60):
        assert found[query].item() == _consistency_by_hand(x, labels, query, 5), query
    assert len(found.unique()) > 5
    assert not torch.equal(found, consistency(x, labels, ranking, seed=6))


def test_a_rival_among_the_nearest_counts_once_where_halves_tie():
    """The rival had two shares of a tie: .66 in place of .75."""
    x = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.float64)
    x = normalize(x, dim=-1)
    labels = torch.tensor([0, 0, 1])
    ranking = rank(ScoreMatrix(x @ x.T), labels, depth=3, queries=torch.tensor([0]), answers=1)
    found = torch.stack([consistency(x, labels, ranking, seed) for seed in range(60)]).mean()
    shares = []
    for half in itertools.combinations(range(4), 2):
        near, rival = (float(x[0, list(half)] @ x[j, list(half)] / max(x[j, list(half)].norm(), 1e-12)) for j in (1, 2))
        shares.append(0.5 if abs(near - rival) < 1e-12 else float(near > rival))
    assert sum(shares) / 6 == 0.75
    assert found.item() == pytest.approx(0.75, abs=0.02)
    for seed in range(3):  # of bits, most of which tie in some half, ranked by scores that do not
        g = torch.Generator().manual_seed(seed)
        bits = normalize((torch.rand(40, 9, generator=g) < 0.6).double(), dim=-1)
        scores, of = bits @ bits.T + 1e-6 * torch.rand(40, 40, generator=g), torch.arange(40) % 5
        values = consistency(bits, of, rank(ScoreMatrix(scores), of, depth=NEAREST + 2, answers=7), seed)
        for query in range(40):
            by_hand = _consistency_by_hand(bits, of, query, seed, scores)
            assert values[query].item() == pytest.approx(by_hand, abs=1e-7), query


def test_the_agreement_of_views_counts_those_whose_nearest_image_has_the_class_of_the_answer():
    draw = torch.Generator().manual_seed(3)
    labels = torch.arange(60) % 12
    x = normalize(torch.randn(60, 5, generator=draw, dtype=torch.float64), dim=1)
    views = normalize(x + 0.6 * torch.randn(4, 60, 5, generator=draw, dtype=torch.float64), dim=2)
    ranking = rank(ScoreMatrix(x @ x.T), labels, depth=NEAREST + 2, answers=4)
    found = view_agreement(x, views, labels, ranking)
    assert 0.2 < found.mean() < 0.95
    for query in range(60):
        order = [row for row in (x @ x[query]).argsort(descending=True).tolist() if row != query]
        answer = labels[order[0]]
        rival = next(row for row in order if labels[row] != answer)
        near = [*order[:NEAREST], rival]
        hits = [bool(labels[near[int((x[near] @ view[query]).argmax())]] == answer) for view in views]
        assert found[query].item() == pytest.approx(sum(hits) / 4, abs=1e-6)
    tied = torch.ones(60, 5, dtype=torch.float64) / 5**0.5
    ranking = rank(ScoreMatrix(tied @ tied.T), labels, depth=NEAREST + 2, answers=4)
    assert bool((view_agreement(tied, views, labels, ranking) == 0).all())


def test_the_consistency_does_not_depend_on_the_order_of_the_images_and_knows_ties():
    x, labels = _clustered(count=300, classes=20)
    x[40:60] = x[0:20]
    labels[50] = labels[11]
    order = torch.randperm(300, generator=torch.Generator().manual_seed(3))
    values = [
        consistency(y, of, rank(ScoreMatrix(y @ y.T), of, depth=24, answers=NEAREST), 0)
        for y, of in ((x, labels), (x[order], labels[order]))
    ]
    assert torch.equal(values[0][order], values[1])
    flat = torch.ones(40, 4, dtype=torch.float64) / 2
    tied = rank(ScoreMatrix(flat @ flat.T), torch.arange(40) % 4, depth=20, answers=NEAREST)
    assert consistency(flat, torch.arange(40) % 4, tied, 0).unique().tolist() == [0.0]


def test_a_ranking_that_is_too_shallow_is_refused():
    x, labels = _clustered(count=60, classes=3)
    with pytest.raises(ValueError, match="need a depth of at least 21, not 20"):
        rank(ScoreMatrix(x @ x.T), labels, depth=20, answers=10)
    with pytest.raises(ValueError, match="the ranking has no answers"):
        retrieval_confidences(ScoreMatrix(x @ x.T), rank(ScoreMatrix(x @ x.T), labels, depth=20))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_mean_ranks_are_scipys(pairs):
    a, b = (torch.tensor(values, dtype=torch.float64) for values in zip(*pairs))
    expected = (rankdata(a.numpy()) + rankdata(b.numpy())) / 2
    assert mean_rank(a, b).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_kinds_never_mix():
    labels = torch.tensor([0, 0, 1])
    for name in ("margin", "agreement", "norm+margin", "norm+margin+agreement", "margin+agreement"):
        with pytest.raises(ValueError, match="rename the image confidence"):
            Embeddings(labels=labels, ids=("a", "b", "c"), confidences={name: torch.ones(3)})
    kinds = {"method": "image", "given": "image", "spread": "retrieval", "method+margin": "combined"}
    assert {name: kind_of(name) for name in kinds} == kinds


def test_the_fit_is_that_of_a_plain_minimisation():
    g = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 400, generator=g, dtype=torch.float64)
    chance = torch.sigmoid(0.5 + 2.0 * first - second)
    correct = (torch.rand(400, generator=g) < chance).double()
    correct[:5], correct[5:9] = 0.5, torch.nan
    fit = LogisticFit([first, 30.0 * second], correct)
    x, y = (each[np.r_[:5, 9:400]] for each in (np.stack([first, 30.0 * second], 1), correct.numpy()))
    z = (x - x.mean(0)) / x.std(0)

    def loss(w):
        score = z @ w[:2] + w[2]
        return (np.logaddexp(0, -score) * y + np.logaddexp(0, score) * (1 - y)).sum() + 0.5 * (w[:2] ** 2).sum()

    best = minimize(loss, np.zeros(3), tol=1e-12).x
    assert fit.weights.tolist() == pytest.approx(best[:2].tolist(), abs=1e-5)
    assert fit.weights[0] > 0 > fit.weights[1]
    assert fit([first, 30.0 * second])[9:].numpy() == pytest.approx((z @ best[:2])[5:], abs=1e-4)


@pytest.mark.parametrize("kind", ["plain", "separated", "outlier"])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_logistic_weights_are_those_of_scikit_learn(kind, penalty):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1)) * np.where(np.arange(60)[:, None] == 0, 1.0 + 400 * (kind == "outlier"), 1.0)
    target = np.where(x[:, 0] > 0 if kind == "separated" else rng.random(60) < 0.3, 0.92, 0.02)
    weights, intercept = logistic_weights(x, target, penalty)
    model = LogisticRegression(C=1 / penalty if penalty else np.inf, tol=1e-10, max_iter=1000)
    model.fit(np.concatenate([x, x]), np.repeat([1, 0], 60), np.concatenate([target, 1 - target]))
    assert [*weights, intercept] == pytest.approx([*model.coef_[0], *model.intercept_], abs=1e-5)


def test_there_is_no_fit_without_wrong_answers_and_a_constant_confidence_has_no_weight():
    x = torch.arange(6.0)
    assert not LogisticFit([x, x], torch.ones(6)).found
    fit = LogisticFit([torch.ones(6), x], torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 1.0]))
    assert fit.found
    assert fit.weights[0] == 0 < fit.weights[1]


def _risk_rows(validation_right=False, names=("norm",)):
    x, labels = _clustered(count=300, classes=20)
    confidences = {name: torch.rand(300, generator=torch.Generator().manual_seed(1)) for name in (*names, "random")}
    other = torch.nn.functional.one_hot(labels).double() if validation_right else x
    validation = view_of(labels, other @ other.T, confidences=confidences, own_scorers=())
    scorers = {name: partial(ScoreMatrix, x @ x.T, name) for name in ("cosine", "l2")}
    view = view_of(labels, x, confidences=confidences, scorers=scorers, validation=validation)
    return view, run_battery(view, load_tests(["risk"]))


def test_images_are_judged_under_every_scorer_and_fits_need_validation_images():
    view, rows = _risk_rows()
    names = {scorer: {row["confidence"] for row in rows if row["scorer"] == scorer} for scorer in ("cosine", "l2")}
    free = set(RETRIEVAL_CONFIDENCES) - {"consistency", "posterior", "view_agreement"}
    assert names["l2"] == free | {"norm", "random", "oracle", "norm+margin"}
    assert names["cosine"] == names["l2"] | {"norm+margin+agreement", "margin+agreement"}
    found = [row for row in rows if row["scorer"] == "cosine"]
    value = {(row["confidence"], row["metric"], row["variant"]): row["value"] for row in found}
    right = view.query_values("cosine", (1,))["recall_at_1"]
    margin = view.retrieval_confidences("cosine")["margin"]
    assert value["margin", "confidence_auroc", ""] == confidence_auroc(margin, right)
    both = torch.from_numpy(rankdata(margin.numpy()) + rankdata(view.confidences["norm"].numpy()))
    assert value["norm+margin", "confidence_auroc", ""] == pytest.approx(confidence_auroc(both, right))
    # A random number adds nothing: the fit leaves it out, the mean of the ranks cannot.
    fitted = value["norm+margin+agreement", "confidence_auroc", ""]
    assert fitted > value["norm+margin", "confidence_auroc", ""]
    assert fitted == pytest.approx(value["margin+agreement", "confidence_auroc", ""], abs=0.01)
    names = ("norm", "margin", "agreement")
    known, now = ([_known(of)[name].double() for name in names] for of in (view.validation, view))
    of_validation = view.validation.query_values("cosine", (1,))["recall_at_1"]
    assert fitted == pytest.approx(confidence_auroc(LogisticFit(known, of_validation)(now), right), abs=1e-9)


def _known(view):
    return {**view.confidences_of_queries(), **view.retrieval_confidences("cosine")}


@pytest.mark.parametrize("some", [False, True])
def test_validation_classes_are_judged_by_a_fit_to_the_others(some):
    """A fit was chosen on the images that it was fitted to: noise that was fitted seemed to be of use."""
    view, _ = _risk_rows()
    queries = torch.arange(0, 300, 2) if some else None
    noise = torch.randn(300, generator=torch.Generator().manual_seed(3))
    validation = replace(
        view.validation, confidences={"norm": noise}, held_out=True, own_scorers=("cosine",), queries=queries
    )
    blurred = replace(validation, clean=False, validation=validation)
    for judged in (validation, blurred):
        rows = run_battery(judged, load_tests(["risk"]))
        right = judged.query_values("cosine", (1,))["recall_at_1"]
        known = _known(judged)
        classes = view.labels if queries is None else view.labels[queries]
        for names in (("margin", "agreement"), ("norm", "margin", "agreement")):
            of = [known[name].double() for name in names]
            found = torch.zeros(len(right), dtype=torch.float64)
            for part in range(5):
                own = torch.tensor([int(c) % 5 == part for c in classes])
                found[own] = LogisticFit([v[~own] for v in of], right[~own])([v[own] for v in of])
            key = ("+".join(names), "confidence_auroc")
            (value,) = (row["value"] for row in rows if (row["confidence"], row["metric"]) == key)
            assert value == pytest.approx(confidence_auroc(found, right), abs=1e-9)
            assert value < confidence_auroc(LogisticFit(of, right)(of), right)


def test_a_fit_without_wrong_answers_is_a_gap_in_the_place_of_its_rows():
    """The rows of several models are averaged one by one, and another model may have a fit."""
    (_, rows), (_, others) = (_risk_rows(right, ("norm", "max_cosine")) for right in (True, False))
    keys = ([(row["confidence"], row["metric"], row["variant"]) for row in each] for each in (rows, others))
    assert next(keys) == next(keys)
    fitted = [row for row in rows if row["confidence"] in ("norm+margin+agreement", "margin+agreement")]
    assert {row["metric"] for row in fitted} > {"aurc", "e_aurc", "augrc", "confidence_auroc"}
    assert all(row["value"] != row["value"] for row in fitted)


def test_filter_out_curves_of_the_margin_remove_queries_alone():
    view, _ = _risk_rows()
    rows = [r for r in run_battery(view, load_tests(["filter_out"])) if r["confidence"] == "margin"]
    assert {row["variant"] for row in rows} == {"query_only"}
    curve = {row["fraction"]: row["value"] for row in rows if row["metric"] == "filter_out_recall_at_1"}
    right = view.query_values("cosine", (1,))["recall_at_1"]
    margin = view.retrieval_confidences("cosine")["margin"]
    for fraction, value in curve.items():
        kept = margin.argsort(descending=True)[: round((1 - fraction) * 300)]
        assert value == pytest.approx(right[kept].mean().item())
