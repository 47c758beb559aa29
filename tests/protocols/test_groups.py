"""Images of the query's class and group leave its gallery: against a public evaluator, and plain loops."""

import math

import bench
import numpy as np
import pytest
import torch
from bench.methods.distributions import IsotropicNormal, PointMass
from bench.methods.scorers import DistributionScorer
from bench.protocols.all_pairs import all_pairs_tpr
from bench.protocols.declare import run_battery
from bench.protocols.known_tests import load_tests
from bench.protocols.ranking import agreeing
from bench.protocols.retrieval_sets import first_positive_ranks
from bench.protocols.threshold_consistency import class_rates
from bench.protocols.verification import sample_pairs

from .views import filter_out_rows, view_of

pytestmark = pytest.mark.filterwarnings("error")


def _persons(seed):
    g = np.random.RandomState(seed)
    count, people, cameras = 300, 60, 1 + seed
    labels, groups = g.randint(people, size=count), g.randint(cameras, size=count)
    x = g.randn(people, 8)[labels] + 0.7 * g.randn(cameras, 8)[groups] + 0.6 * g.randn(count, 8)
    return x / np.linalg.norm(x, axis=1, keepdims=True), labels, groups, np.arange(count) < 80


# mAP, CMC at ranks 1 and 5 of `evaluate_rank(.., use_cython=False)` of torchreid 0.2.5 (Market-1501's protocol), and
# the queries that it skips. Without cameras, Recall@1 is 52.5, 55.0 and 42.3 %.
TORCHREID = {
    1: (0.1923342934089966, 0.1000000015, 0.3571428657, 10),
    2: (0.22395452002554622, 0.2077922076, 0.3766233624, 3),
    3: (0.26615913544417086, 0.2432432473, 0.5135135055, 6),
}


@pytest.mark.parametrize("seed", TORCHREID)
def test_values_are_those_of_a_public_evaluator_of_reidentification(seed):
    x, labels, cameras, query = _persons(seed)
    table = bench.score(
        x, labels, groups=cameras, is_query=query, is_gallery=~query, metrics=["recall_at_5", "recall", "map_at_1000"]
    ).table
    rows = table[table["confidence"] == ""].set_index(["metric", "variant"])
    keys = [("map_at_1000", "denominator=min(k,n-1)"), ("recall_at_1", ""), ("recall_at_5", "")]
    found = [rows["value"][key] for key in keys]
    assert found[0] == pytest.approx(TORCHREID[seed][0], abs=1e-12)
    assert found[1:] == pytest.approx(TORCHREID[seed][1:3], abs=1e-7)  # it sums in float32
    assert set(rows["n_lone"]) == {TORCHREID[seed][3]}


G = torch.Generator().manual_seed(5)
LABELS, GROUPS = torch.randint(12, (90,), generator=G), torch.randint(3, (90,), generator=G)
X = torch.randn(12, 6, generator=G)[LABELS] + torch.randn(3, 6, generator=G)[GROUPS] + torch.randn(90, 6, generator=G)
X = torch.nn.functional.normalize(X.double(), dim=1)
LABELS[-1], GROUPS[:2] = 12, 3
QUERIES, GALLERY = torch.arange(0, 90, 2), torch.arange(20, 90)
SCORERS = {
    "cosine": DistributionScorer("cosine", PointMass(X)),
    "mls": DistributionScorer("mls", IsotropicNormal(X, 0.1 + torch.rand(90, generator=G).double())),
}


def _view(scorer, **changes):
    given = {"groups": GROUPS, "queries": QUERIES, "gallery": GALLERY}
    return view_of(LABELS, SCORERS[scorer], scorer, **(given | changes))


def _order(scorer, query, gallery=GALLERY):
    """Gallery of a query, best first."""
    left = [j for j in gallery.tolist() if j != query and (LABELS[query] != LABELS[j] or GROUPS[query] != GROUPS[j])]
    scores = SCORERS[scorer].matrix(torch.tensor([query]), torch.tensor(left))[0].tolist()
    return [(j, score) for score, j in sorted(zip(scores, left), reverse=True)]


@pytest.mark.parametrize("scorer", SCORERS)
def test_rankings_and_their_confidences_are_those_of_a_loop(scorer):
    view = _view(scorer)
    values = view.query_values(scorer, (1, 4)) | view.retrieval_confidences(scorer)
    values["rank"] = first_positive_ranks(
        SCORERS[scorer], LABELS, queries=QUERIES, gallery=GALLERY, kin=view.kin, block_bytes=1 << 12
    )
    k, lone = agreeing(LABELS[GALLERY]), 0
    for place, query in enumerate(QUERIES.tolist()):
        order = _order(scorer, query)
        classes = [int(LABELS[j]) for j, _ in order]
        hits = [label == int(LABELS[query]) for label in classes]
        total = sum(hits)
        rival = next(score for (_, score), label in zip(order, classes) if label != classes[0])
        top = order[0][1]
        expected = {"top1_score": top, "margin": top - rival, "spread": top - order[9][1]}
        expected["agreement"] = classes[:k].count(classes[0]) / k
        lone += total == 0
        if total:
            precision = [sum(hits[: i + 1]) / (i + 1) * hit for i, hit in enumerate(hits)]
            expected |= {"recall_at_1": float(hits[0]), "recall_at_4": float(any(hits[:4]))}
            expected |= {"map_at_r": sum(precision[:total]) / total, "r_precision": sum(hits[:total]) / total}
            expected["rank"] = hits.index(True) + 1
        assert {name: values[name][place].item() for name in expected} == pytest.approx(expected, abs=1e-5), query
        assert total or values["map_at_r"][place].isnan()
    assert lone > 1


@pytest.mark.parametrize("scorer", SCORERS)
def test_images_that_are_filtered_out_take_their_groups_along(scorer):
    confidence, share = torch.rand(90, generator=torch.Generator().manual_seed(1)), 0.4
    roles = {"queries": QUERIES, "gallery": GALLERY, "groups": GROUPS}
    ids = [str(i) for i in range(90)]
    rows = filter_out_rows(SCORERS[scorer], LABELS, ids, {"method": confidence}, fractions=(share,), **roles)
    found = {row["variant"]: row["value"] for row in rows if row["metric"] == "filter_out_recall_at_1"}
    keep = confidence >= confidence.sort().values[round(share * 90)]
    left, right = GALLERY[keep[GALLERY]], []
    for query in QUERIES[keep[QUERIES]].tolist():
        order = _order(scorer, query, left)
        if any(LABELS[j] == LABELS[query] for j, _ in order):
            right.append(bool(LABELS[order[0][0]] == LABELS[query]))
    assert found["query_and_gallery"] == pytest.approx(np.mean(right))


def test_pairs_of_one_class_and_group_are_none():
    view = _view("cosine", queries=None, gallery=None)
    pairs = sample_pairs(LABELS, view.ids, 0, view.kin)
    mates = list(zip(pairs.left[pairs.same].tolist(), pairs.right[pairs.same].tolist()))
    assert all(LABELS[i] == LABELS[j] and GROUPS[i] != GROUPS[j] for i, j in mates)
    able = {i for i in range(90) for j in range(90) if LABELS[i] == LABELS[j] and GROUPS[i] != GROUPS[j]}
    assert sorted(i for i, _ in mates) == sorted(able)
    assert int((~pairs.same).sum()) == 90
    scores = SCORERS["cosine"].matrix(torch.arange(90), torch.arange(90))
    i, j = torch.triu_indices(90, 90, 1)
    same = LABELS[i] == LABELS[j]
    positive, negative = scores[i, j][same & (GROUPS[i] != GROUPS[j])], scores[i, j][~same]
    cut = negative.sort(descending=True).values[math.floor(0.1 * len(negative))]
    found = all_pairs_tpr(SCORERS["cosine"], LABELS, torch.ones(1, 13, dtype=torch.long), 0.1, kin=view.kin, side=32)
    assert found.item() == pytest.approx(float((positive > cut).double().mean()))
    sensitivity, _ = class_rates(SCORERS["cosine"], LABELS, cut[None], kin=view.kin)
    for label in range(13):
        own = (scores >= cut)[(LABELS[:, None] == label) & (LABELS[:, None] == LABELS) & (GROUPS[:, None] != GROUPS)]
        assert sensitivity[label].item() == pytest.approx(float(own.double().mean()), nan_ok=True)


def test_groups_of_single_images_change_no_value():
    def rows(**changes):
        view = _view("cosine", confidences={"norm": X[:, 0]}, directions=lambda: X, **changes)
        tests = load_tests(["retrieval", "verification", "filter_out", "risk", "open_set", "retrieval_sets", "discard"])
        return [{**row, "value": str(row["value"])} for row in run_battery(view, tests)]

    assert rows(groups=torch.arange(90)) == rows(groups=None)
