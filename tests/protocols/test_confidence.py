"""Confidence measures against SciPy, scikit-learn, loops and enumeration of tied orders."""

import itertools
import math

import pytest
import torch
from bench.protocols.confidence import (
    augrc,
    aurc,
    confidence_auroc,
    coverage_at_risk,
    e_aurc,
    risk_at_coverage,
    risk_rows,
)
from bench.protocols.embeddings import Embeddings
from bench.protocols.quality import kendall, label_entropy, share_above, spearman
from bench.protocols.statistics.paired import summarise
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from .views import orders_of

pytestmark = pytest.mark.filterwarnings("error")

SMALL = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30))
def test_correlations_equal_scipy_with_ties(data):
    x, y = (torch.tensor(column, dtype=torch.float64) for column in zip(*data))
    constant = len(x.unique()) == 1 or len(y.unique()) == 1
    # Spearman by definition: Pearson correlation of average ranks.
    if constant:
        assert math.isnan(spearman(x, y))
        assert math.isnan(kendall(x, y))
    else:
        ranks = (stats.rankdata(x), stats.rankdata(y))
        assert spearman(x, y) == pytest.approx(stats.pearsonr(*ranks).statistic, abs=1e-12)
        assert kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-12)


@settings(max_examples=80, deadline=None)
@given(SMALL)
def test_areas_are_the_means_over_all_orders_of_tied_confidences(data):
    confidence, risk = zip(*data)
    n = len(data)
    areas, trapezoids = [], []
    for order in orders_of(confidence, range(n)):
        curve = [0.0] + [sum(risk[i] for i in order[:k]) / n for k in range(1, n + 1)]
        areas.append(sum(curve[k] / k for k in range(1, n + 1)))
        trapezoids.append(sum((a + b) / (2 * n) for a, b in itertools.pairwise(curve)))
    for area, found in ((aurc, areas), (augrc, trapezoids)):
        value = area(torch.tensor(confidence), torch.tensor(risk))
        assert value == pytest.approx(sum(found) / len(found), abs=1e-12)


@pytest.mark.parametrize("fractional", [False, True], ids=["right or wrong", "fractions"])
@pytest.mark.parametrize("levels", [3, 10**6])
@pytest.mark.parametrize("count", [7, 400, 5000])
def test_augrc_equals_its_closed_form(count, levels, fractional):
    g = torch.Generator().manual_seed(count + levels)
    confidence = torch.randint(levels, (count,), generator=g).double()
    risk = torch.rand(count, generator=g, dtype=torch.float64)
    risk = risk if fractional else (risk < 0.3).double()
    risk[:2] = torch.tensor([0.0, 1.0])  # one of each kind at least
    wrong = risk.mean().item()
    # scikit-learn's AUROC; a fraction counts partly as right and partly as wrong.
    weights = torch.cat([1 - risk, risk]).numpy()
    auroc = roc_auc_score([1] * count + [0] * count, confidence.repeat(2).numpy(), sample_weight=weights)
    assert augrc(confidence, risk) == pytest.approx((1 - auroc) * wrong * (1 - wrong) + wrong**2 / 2, abs=1e-12)


# Confidences / 100 - 0.5 and right answers given to torch-uncertainty 0.13.0, in double precision:
#   p, t = torch.tensor(ORDER) / 100 + 0.5, torch.tensor(RIGHT)
#   for m in AUGRC(), RiskAtxCov(0.8), RiskAtxCov(0.5), CovAtxRisk(0.05), CovAtxRisk(0.2): m.update(p, t); m.compute()
# from torch_uncertainty.metrics.classification.risk_coverage; then for 1 - RIGHT.
ORDER = [7, 18, 3, 12, 20, 1, 15, 9, 5, 14, 2, 17, 11, 6, 19, 8, 13, 4, 16, 10]
RIGHT = [0, 1, 1, 1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1]
THEIRS = {
    "right": (0.05394736842105264, 0.1875, 0.0, 0.6, 0.9),
    "wrong": (0.4710526315789474, 0.8125, 1.0, math.nan, math.nan),
}


@pytest.mark.parametrize("which", ["right", "wrong"])
def test_generalised_risk_and_points_of_the_curve_agree_with_torch_uncertainty(which):
    confidence, right = torch.tensor(ORDER), torch.tensor(RIGHT)
    risk = (1 - right if which == "right" else right).double()
    area, *points = THEIRS[which]
    # Their area starts at coverage 1 / N and is scaled to a range of 1; ours has the first trapezoid, too.
    first = risk[confidence.argmax()].item()
    assert augrc(confidence, risk) == pytest.approx(area * (1 - 1 / 20) + first / (2 * 20**2), abs=1e-12)
    assert [risk_at_coverage(confidence, risk, share) for share in (0.8, 0.5)] == pytest.approx(points[:2], abs=1e-12)
    # No risk is low enough: nan there, no coverage here.
    expected = [0.0 if math.isnan(value) else value for value in points[2:]]
    assert [coverage_at_risk(confidence, risk, largest) for largest in (0.05, 0.2)] == expected


@settings(max_examples=80, deadline=None)
@given(SMALL, st.integers(1, 100), st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 1.0]))
def test_points_of_the_risk_coverage_curve_are_expectations_over_orders(data, percent, largest):
    confidence, risk = zip(*data)
    n, orders = len(data), [*orders_of(confidence, range(len(data)))]
    curve = [sum(sum(risk[i] for i in o[:k]) / k for o in orders) / len(orders) for k in range(1, n + 1)]
    given_ = torch.tensor(confidence), torch.tensor(risk)
    needed = next(k for k in range(1, n + 1) if 100 * k >= percent * n)
    assert risk_at_coverage(*given_, percent / 100) == pytest.approx(curve[needed - 1], abs=1e-12)
    low = [k for k in range(1, n + 1) if curve[k - 1] <= largest + 1e-9]
    assert coverage_at_risk(*given_, largest) == (max(low) / n if low else 0.0)


def test_points_of_the_curve_do_not_depend_on_rounding():
    risk = torch.arange(100).double()
    # 0.07 * 100 is a little more than 7 in floating point.
    assert risk_at_coverage(-risk, risk, 0.07) == 3.0
    # The mean risk of equal confidences is added up N times.
    for count in range(2, 60):
        wrong = (torch.arange(count) < 1).double()
        assert coverage_at_risk(torch.ones(count), wrong, 1 / count) == 1.0


@pytest.mark.parametrize("coverage", [0.0, -0.1, 1.1, math.nan])
def test_a_coverage_outside_of_its_range_is_refused(coverage):
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\]"):
        risk_at_coverage(torch.ones(2), torch.ones(2), coverage)


def test_rows_of_risk_are_the_values_of_the_functions():
    g = torch.Generator().manual_seed(0)
    values = {name: torch.randint(4, (30,), generator=g).double() / 3 for name in ("map_at_r", "recall_at_1")}
    for each in values.values():
        each[4] = torch.nan
    confidence = torch.randint(9, (30,), generator=g)
    got = {(r["metric"], r["variant"]): r["value"] for r in risk_rows(values, {"norm": confidence}, oracle=False)}
    kept = torch.arange(30) != 4
    x, wrong = confidence[kept], {name: 1 - each[kept] for name, each in values.items()}
    expected = {(f.__name__, name): f(x, risk) for name, risk in wrong.items() for f in (aurc, e_aurc, augrc)} | {
        ("risk_at_coverage", "recall_at_1,coverage=0.8"): risk_at_coverage(x, wrong["recall_at_1"], 0.8),
        ("coverage_at_risk", "recall_at_1,risk=0.05"): coverage_at_risk(x, wrong["recall_at_1"], 0.05),
        ("confidence_auroc", ""): confidence_auroc(x, 1 - wrong["recall_at_1"]),
    }
    assert got == expected


def test_without_a_query_that_counts_values_of_risk_are_nan():
    nothing = torch.full((3,), math.nan)
    rows = list(risk_rows({"map_at_r": nothing, "recall_at_1": nothing}, {"norm": torch.ones(3)}))
    assert len(rows) == 2 * 9
    assert all(math.isnan(r["value"]) and (r["n_queries"], r["n_lone"]) == (0, 3) for r in rows)
    none = torch.zeros(0)
    values = (augrc(none, none), risk_at_coverage(none, none, 1), coverage_at_risk(none, none, 1))
    assert all(map(math.isnan, values))


def test_a_perfect_confidence_has_no_excess_area_and_any_other_has_some():
    risk = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert e_aurc(-risk, risk) == 0.0
    assert e_aurc(risk, risk) > 0.1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.0, 0.3, 0.8, 1.0])), min_size=2, max_size=60))
def test_auroc_equals_sklearn_where_a_fraction_is_partly_right_and_partly_wrong(data):
    confidence, correct = (torch.tensor(column, dtype=torch.float64) for column in zip(*data))
    value, count = confidence_auroc(confidence, correct), len(data)
    if correct.unique().tolist() in ([0.0], [1.0]):
        assert math.isnan(value)
    else:
        weights = torch.cat([correct, 1 - correct]).numpy()
        expected = roc_auc_score([1] * count + [0] * count, confidence.repeat(2).numpy(), sample_weight=weights)
        assert value == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_label_entropy_is_scipys(votes):
    p = torch.tensor(votes, dtype=torch.float64)
    p /= p.sum(1, keepdim=True)
    expected = [stats.entropy(row) for row in votes]
    assert label_entropy(p).tolist() == pytest.approx(expected, abs=1e-12)
    # Rounded tables are normalised; an image without votes has no entropy.
    rounded = torch.cat([p * 1.0005, torch.full((1, 4), math.nan)])
    assert label_entropy(rounded)[:-1].tolist() == pytest.approx(expected, abs=1e-12)
    assert math.isnan(label_entropy(rounded)[-1])


@pytest.mark.parametrize("row", [[0.5, 0.6], [1.5, -0.5], [math.nan, 1.0]])
def test_what_is_no_distribution_has_no_entropy(row):
    with pytest.raises(ValueError, match="sum to 1"):
        label_entropy(torch.tensor([[0.5, 0.5], row]))


def test_paired_crop_by_hand():
    assert share_above(torch.tensor([3.0, 2.0, 1.0, 1.0]), torch.tensor([1.0, 3.0, 1.0, 0.0])) == 2.5 / 4


def test_summary_equals_scipy():
    values = [0.71, 0.74, 0.69, 0.75, 0.72]
    summary = summarise(values)
    low, high = stats.t.interval(0.95, 4, loc=stats.tmean(values), scale=stats.sem(values))
    assert (summary.mean, summary.sd) == pytest.approx((stats.tmean(values), stats.tstd(values)))
    assert (summary.ci_low, summary.ci_high) == pytest.approx((low, high))
    assert math.isnan(summarise([1.0]).sd)
    with pytest.raises(ValueError, match="no values"):
        summarise([])


def test_embeddings_refuse_what_no_test_can_use():
    Embeddings(labels=torch.tensor([0, 1]), ids=("a", "b"), confidences={"norm": torch.ones(2)})
    with pytest.raises(ValueError, match="repeat"):
        Embeddings(labels=torch.tensor([0, 1]), ids=("a", "a"))
    with pytest.raises(ValueError, match="not finite"):
        Embeddings(labels=torch.tensor([0, 1]), ids=("a", "b"), confidences={"norm": torch.tensor([1.0, float("inf")])})
    with pytest.raises(ValueError, match="shape"):
        Embeddings(labels=torch.tensor([0, 1]), ids=("a", "b"), confidences={"norm": torch.ones(3)})
