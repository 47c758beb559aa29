"""Open-set queries against scikit-learn and plain loops, and rank correlations of confidences against SciPy."""

import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from bench.protocols.open_set import detection, true_accept_rate
from bench.protocols.query_metrics import per_query
from bench.protocols.ranking import rank
from bench.protocols.rows import RETRIEVAL_CONFIDENCES
from bench.protocols.verification import class_halves
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import auc, roc_auc_score

from .views import rows_of, view_of

pytestmark = pytest.mark.filterwarnings("error")

_levels = st.lists(st.integers(-4, 4), min_size=1, max_size=15)  # integers: many ties


@settings(max_examples=100, deadline=None)
@given(_levels, _levels, st.integers(0, 10**6), st.sampled_from([0.0, 0.01, 0.1, 0.29, 0.5, 1.0]))
def test_rates_equal_scikit_learn_and_a_loop_over_thresholds(known, unknown, seed, rate):
    correct = torch.randint(5, (len(known),), generator=torch.Generator().manual_seed(seed)) / 4
    x, y = torch.tensor(known).double(), torch.tensor(unknown).double()
    points = []
    for threshold in (math.inf, *sorted({*known, *unknown}, reverse=True)):
        accepted = sum(u >= threshold for u in unknown) / len(unknown)
        right = sum(c for k, c in zip(known, correct.tolist()) if k >= threshold) / len(known)
        points.append((accepted, right))
    truth = [1] * len(known) + [0] * len(unknown)
    assert detection(x, y) == pytest.approx(roc_auc_score(truth, known + unknown))
    assert detection(x, y, correct) == pytest.approx(auc(*zip(*points)))
    expected = max(right for accepted, right in points if accepted <= rate + 1e-12)
    assert true_accept_rate(x, y, correct, rate) == pytest.approx(expected)


def test_all_answers_right_or_wrong():
    x, y = torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0])
    assert detection(x, y, torch.ones(2)) == detection(x, y) == 0.75
    assert detection(x, y, torch.zeros(2)) == true_accept_rate(x, y, torch.zeros(2), 1.0) == 0.0
    for known, unknown in ((x, y[:0]), (x[:0], y)):
        assert math.isnan(detection(known, unknown))
        assert math.isnan(true_accept_rate(known, unknown, torch.ones(len(known)), 0.5))


def _view(labels, **changes):
    count = len(labels)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(int(labels.max()) + 1, 4, generator=g)[labels] + 0.2 * torch.randn(count, 4, generator=g)
    x = torch.nn.functional.normalize(x.double(), dim=1)
    confidences = {name: torch.rand(count, generator=g) for name in ("norm", "method", "random")}
    given = {"confidences": confidences, "directions": lambda: x, "concentration": lambda: (9.0, 5.0)}
    return view_of(labels, **({"scores": x @ x.T} | given | changes))


LABELS = torch.cat([torch.arange(60) // 5, torch.tensor([12])])


def _rows(view, group="open_set"):
    return rows_of(view, group, "metric", "confidence", "variant")


@pytest.mark.parametrize("apart", [False, True], ids=["all", "queries and gallery"])
def test_half_of_the_classes_leave_the_gallery(apart):
    roles = {"queries": torch.arange(0, 61, 2), "gallery": torch.arange(1, 61)} if apart else {}
    view = _view(LABELS, **roles)
    rows = _rows(view)
    gone, stay = class_halves(LABELS, view.ids, len("open set"))
    queries, gallery = roles.get("queries", torch.arange(61)), roles.get("gallery", torch.arange(61))
    left = gallery[torch.isin(gallery, stay)]
    ranking = rank(view.scorer("cosine"), LABELS, depth=len(left), queries=queries, gallery=left)
    correct = per_query(ranking)["recall_at_1"]
    unknown = torch.isin(queries, gone)
    known = ~unknown & ~correct.isnan()
    scores = view.scorer("cosine").matrix(queries, left)
    top = scores.masked_fill(queries[:, None] == left[None], -math.inf).amax(1)
    for name, confidence in (("norm", view.confidences["norm"][queries]), ("top1_score", top)):
        first, other = confidence[known], confidence[unknown]
        assert rows["open_set_auroc", name, ""]["value"] == pytest.approx(detection(first, other))
        assert rows["open_set_oscr", name, ""]["value"] == pytest.approx(detection(first, other, correct[known]))
        for rate in (0.01, 0.1):
            value = rows["open_set_tar", name, f"far={rate}"]["value"]
            assert value == pytest.approx(true_accept_rate(first, other, correct[known], rate))
    of_ranking = {*RETRIEVAL_CONFIDENCES} - {"view_agreement"}
    names = {"norm", "method", "random", *of_ranking, "norm+margin", "method+margin"}
    assert {key[1] for key in rows} >= names
    lone = int((~unknown & ~known).sum())
    assert {(row["n_queries"], row["n_lone"]) for row in rows.values()} == {(len(queries) - lone, lone)}
    # What a ranking says about the answer tells unknown classes from known ones; chance does not.
    assert rows["open_set_auroc", "top1_score", ""]["value"] > 0.75 > rows["open_set_auroc", "random", ""]["value"]


def test_queries_of_classes_that_the_gallery_lacks_are_the_unknown_ones():
    """All of the gallery stays; images 16 and 60, the gallery's only ones of their classes, are lone queries."""
    queries = torch.arange(0, 61, 2)
    gallery = ((LABELS > 3) | (torch.arange(61) % 5 == 1) & (LABELS > 1)).nonzero().squeeze(1)
    view = _view(LABELS, queries=queries, gallery=gallery)
    unknown = torch.tensor([int(label) < 2 for label in LABELS[queries]])
    assert torch.equal(view.unknown, unknown)
    assert not _view(LABELS).unknown.any()  # a lone class of leave-one-out is none
    rows = _rows(view)
    scores = view.scorer("cosine").matrix(queries, gallery).masked_fill(queries[:, None] == gallery, -math.inf)
    top, answer = scores.max(1)
    right = LABELS[gallery][answer] == LABELS[queries]
    inside = ~unknown & torch.tensor([sum(LABELS[gallery] == LABELS[q]) > int(q in gallery) for q in queries])
    for name, confidence in (("norm", view.confidences["norm"][queries]), ("top1_score", top)):
        known, other = confidence[inside].double(), confidence[unknown].double()
        found = {key[::2]: row["value"] for key, row in rows.items() if key[1] == name}
        expected = {
            ("open_set_auroc", "unknown_queries"): detection(known, other),
            ("open_set_oscr", "unknown_queries"): detection(known, other, right[inside]),
        }
        for rate in (0.01, 0.1):
            value = true_accept_rate(known, other, right[inside], rate)
            expected["open_set_tar", f"unknown_queries,far={rate}"] = value
        assert found == pytest.approx(expected)
    assert {(row["n_queries"], row["n_lone"]) for row in rows.values()} == {(len(queries) - 2, 2)}


def test_one_class_left_and_no_unknown_query_have_no_value():
    for view in (
        _view(torch.arange(10) // 5),  # one of two classes stays
        _view(torch.zeros(4, dtype=torch.long)),
        _view(torch.arange(8)),  # nobody has a positive
        _view(LABELS, queries=class_halves(LABELS, _view(LABELS).ids, len("open set"))[0]),
        _view(LABELS, queries=class_halves(LABELS, _view(LABELS).ids, len("open set"))[1]),
    ):
        rows = _rows(view)
        assert {key[1] for key in rows} >= {"norm", "random", "margin", "norm+margin"}
        assert all(math.isnan(row["value"]) for row in rows.values())


def test_a_collapsed_embedding_detects_nothing():
    rows = _rows(_view(LABELS, scores=torch.ones(61, 61)))
    for name in ("top1_score", "margin", "spread"):
        assert rows["open_set_auroc", name, ""]["value"] == 0.5
        assert rows["open_set_tar", name, "far=0.1"]["value"] == 0.0
        assert 0 < rows["open_set_oscr", name, ""]["value"] < 0.2


def test_a_fit_without_meaning_leaves_a_gap():
    """All answers on the validation classes are right."""
    labels = torch.arange(20) // 5
    validation = _view(labels, scores=(labels[:, None] == labels[None]).double())
    rows = _rows(_view(LABELS, validation=validation))
    assert math.isnan(rows["open_set_auroc", "norm+margin+agreement", ""]["value"])
    assert not math.isnan(rows["open_set_auroc", "norm+margin", ""]["value"])


def test_confidences_are_correlated_with_one_another():
    queries = torch.arange(0, 61, 2)
    view = _view(LABELS, queries=queries)
    view = replace(view, confidences={**view.confidences, "flat": torch.ones(61)})
    rows = _rows(view, "confidence_correlation")
    values = {name: view.confidences[name][queries] for name in ("norm", "method", "flat")}
    values |= view.retrieval_confidences("cosine")
    assert set(rows) == {("spearman_confidences", first, other) for first, other in combinations(values, 2)}
    for (_, first, other), row in rows.items():
        if "flat" in (first, other):
            assert math.isnan(row["value"])
        else:
            assert row["value"] == pytest.approx(spearmanr(values[first], values[other]).statistic)
        assert row["n_queries"] == len(queries)
