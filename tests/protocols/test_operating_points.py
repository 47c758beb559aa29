"""Operating points and what they give in runs: against loops, in planted worlds whose truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from bench.methods.distributions.normal import PointMass
from bench.methods.scorers.spec import DistributionScorer
from bench.protocols.operating_points import Cases, Choice, choose, fit_map, measure, reliability
from scipy import stats

from .views import rows_of, view_of

WISHES = [("risk", 0.1), ("risk", 0.3), ("far", 0.1), ("far", 0.4), ("coverage", 0.5), ("coverage", 0.9)]


def _world(rng, n, classes=40, ties=None):
    """Cases whose probability of being right is known: a logistic of the confidence."""
    groups = rng.integers(classes, size=n)
    x = rng.normal(size=n)
    x = x if ties is None else np.round(x * ties) / ties
    chance = 1 / (1 + np.exp(-(2 * x + 1.2)))
    return Cases(x, (rng.random(n) < chance).astype(float), groups)


def _share(cases, wish, threshold):
    """What a wish is about, by a loop: bad cases, and all of them."""
    bad = total = 0.0
    for x, right in zip(cases.confidence, cases.right):
        accepted, wrong = x >= threshold, 1 - right
        bad += {"risk": accepted * wrong, "far": accepted * wrong, "coverage": 1 - accepted}[wish]
        total += {"risk": accepted, "far": wrong, "coverage": 1}[wish]
    return bad, total


@pytest.mark.parametrize("ties", [None, 3])
@pytest.mark.parametrize(("wish", "value"), WISHES)
def test_thresholds_are_those_of_a_loop(wish, value, ties):
    cases = _world(np.random.default_rng(3), 150, ties=ties)
    limit = 1 - value if wish == "coverage" else value
    allowed = []
    for threshold in sorted(set(cases.confidence)):
        bad, total = _share(cases, wish, threshold)
        if bad <= limit * total + 1e-9:
            allowed.append(threshold)
    expected = (max if wish == "coverage" else min)(allowed)
    assert choose(cases, wish, value) == Choice(expected)


@pytest.mark.parametrize(("wish", "value"), [("far", 0.1), ("coverage", 0.8)])
def test_guaranteed_thresholds_of_one_sequence_are_those_of_a_loop(wish, value):
    cases = _world(np.random.default_rng(4), 400, ties=20)
    limit, found = 1 - value if wish == "coverage" else value, None
    for threshold in sorted(set(cases.confidence), reverse=wish == "far"):
        bad, total = _share(cases, wish, threshold)
        if stats.binomtest(round(bad), round(total), limit, alternative="less").pvalue > 0.1:
            break
        found = threshold
    assert choose(cases, wish, value, missing=0.1).threshold == found


def test_the_guaranteed_risk_is_refuted_by_an_exact_test_and_stricter_than_the_plain_one():
    cases = _world(np.random.default_rng(5), 2000)
    plain, sure = (choose(cases, "risk", 0.1, missing).threshold for missing in (None, 0.1))
    bad, total = _share(cases, "risk", sure)
    assert stats.binomtest(round(bad), round(total), 0.1, alternative="less").pvalue <= 0.1
    assert plain < sure


def _breaks(draw, true_value, wish, value, missing, draws):
    """Share of draws that had a threshold, and the number whose threshold breaks the wish in truth."""
    found = [choose(draw(), wish, value, missing).threshold for _ in range(draws)]
    known = [each for each in found if each is not None]
    return len(known) / draws, sum(not true_value(each) for each in known)


@pytest.mark.parametrize(("wish", "value"), [("risk", 0.1), ("far", 0.05), ("coverage", 0.7)])
def test_a_guarantee_holds_in_nine_of_ten_draws_and_a_plain_choice_does_not(wish, value):
    rng = np.random.default_rng(6)
    many = _world(rng, 400_000)
    order = np.argsort(-many.confidence)
    x, wrong = many.confidence[order], 1 - many.right[order]
    counts = np.arange(1, len(x) + 1)
    bad = {"risk": wrong.cumsum() / counts, "far": wrong.cumsum() / wrong.sum(), "coverage": 1 - counts / len(x)}[wish]
    limit = 1 - value if wish == "coverage" else value

    def kept(threshold):
        return bad[max(np.searchsorted(-x, -threshold, side="right") - 1, 0)] <= limit

    draws = 1000
    answered, broken = _breaks(lambda: _world(rng, 600), kept, wish, value, 0.1, draws)
    assert answered > 0.9
    assert broken <= stats.binom.ppf(0.999, draws, 0.1)
    assert broken > 0  # a choice that never fails accepts far too little
    plain = _breaks(lambda: _world(rng, 600), kept, wish, value, None, 200)[1]
    assert plain > stats.binom.ppf(0.999, 200, 0.1)


@pytest.mark.parametrize(
    ("right", "wish", "value", "missing", "reason"),
    [
        (np.zeros(3000), "far", 1e-4, 0.1, "a far of 0.0001 needs 23,025 cases to reject, there are 3,000"),
        (np.zeros(3000), "far", 1e-4, None, "a far of 0.0001 needs 10,000 cases to reject, there are 3,000"),
        (np.ones(30), "far", 0.1, None, "a far of 0.1 needs 10 cases to reject, there are 0"),
        (np.zeros(30), "risk", 0.1, None, "no threshold grants it: a risk of 0.1"),
        (np.tile([0.0, 1.0], 50), "risk", 0.1, 0.1, "no threshold grants it: a risk of 0.1 cannot be guaranteed"),
        (np.ones(40), "risk", 0.05, 0.1, "a risk of 0.05 needs 45 cases, there are 40"),
        (np.ones(0), "risk", 0.05, None, "there are no cases"),
    ],
)
def test_a_wish_that_cannot_be_granted_has_a_reason_and_no_threshold(right, wish, value, missing, reason):
    n = len(right)
    assert choose(Cases(np.arange(n) / 7, right, np.arange(n)), wish, value, missing) == Choice(None, reason)


def test_a_constant_confidence_accepts_all_or_nothing():
    cases = Cases(np.full(100, 2.0), np.tile([1.0, 1.0, 1.0, 0.0], 25), np.arange(100))
    assert choose(cases, "risk", 0.3).threshold == 2.0
    assert choose(cases, "risk", 0.2) == Choice(None, "the confidence is constant: a risk of 0.2")


def test_without_an_error_all_are_accepted_and_that_is_said():
    cases = Cases(np.arange(100.0), np.ones(100), np.arange(100))
    assert choose(cases, "risk", 0.05) == Choice(0.0, "no wrong case was seen, so all are accepted")


@pytest.mark.parametrize("values", [("risk", 0.0), ("coverage", 1.0), ("recall", 0.5), ("far", math.nan)])
def test_wishes_are_shares(values):
    with pytest.raises(ValueError, match="wish for risk, coverage or far in"):
        choose(_world(np.random.default_rng(0), 9), *values)


@pytest.mark.parametrize("cases", [([1.0, 2.0], [1.0], [0]), ([math.nan], [1.0], [0]), ([1.0], [2.0], [0])])
def test_cases_are_finite_and_right_by_a_share(cases):
    with pytest.raises(ValueError, match=r"one length|must be finite"):
        Cases(*map(np.array, cases))


def test_what_is_measured_is_what_a_loop_finds_and_intervals_widen_with_class_effects():
    cases = _world(np.random.default_rng(8), 500)
    found = measure(cases, [0.0, 99.0])
    accepted, right = cases.confidence >= 0.0, cases.right > 0
    expected = [accepted.mean(), 1 - right[accepted].mean(), accepted[~right].mean(), accepted[right].mean()]
    names = ("coverage", "risk", "far", "tar")
    assert [found[0][name] for name in names] == pytest.approx(expected)
    assert all(found[0][f"{name}_low"] <= found[0][name] <= found[0][f"{name}_high"] for name in names)
    assert found[1]["coverage"] == 0
    assert math.isnan(found[1]["risk"] + found[1]["risk_low"])  # nothing accepted has no risk


@pytest.mark.parametrize("paired", [False, True])
def test_intervals_cover_what_other_classes_give(paired):
    # Classes (of pairs: both of them) shift the confidence; the truth is over classes without end.
    rng, hits, draws = np.random.default_rng(9), 0, 150
    truth = stats.norm.sf(0.5 / math.sqrt(1 + (2 if paired else 1) * 0.09))
    for seed in range(draws):
        effect, groups = 0.3 * rng.normal(size=100), np.arange(1000) % 100
        others = (groups + rng.integers(1, 100, size=1000)) % 100
        x = rng.normal(size=1000) + effect[groups] + (effect[others] if paired else 0)
        cases = Cases(x, np.zeros(1000), groups, others if paired else None)
        found = measure(cases, [0.5], resamples=200, seed=seed)[0]
        hits += found["far_low"] <= truth <= found["far_high"]
    assert hits >= stats.binom.ppf(0.001, draws, 0.92)


def test_the_map_is_the_one_of_the_lower_error_on_other_classes():
    rng = np.random.default_rng(10)
    assert fit_map(_world(rng, 1000)).kind == "logistic"
    x = rng.normal(size=4000)
    right = rng.random(4000) < np.where(np.abs(x) < 1, 0.5, (x > 0) * 0.98 + 0.01)
    steps = fit_map(Cases(x, right.astype(float), rng.integers(50, size=4000)))
    assert steps.kind == "isotonic"
    assert steps(np.array([-9.0, -2.0, 0.0, 2.0, 9.0])) == pytest.approx([0.01, 0.01, 0.5, 0.99, 0.99], abs=0.06)
    assert [steps.x, steps.y] == [tuple(sorted(steps.x)), tuple(sorted(steps.y))]


def test_a_map_of_one_class_or_a_constant_confidence_is_finite():
    one = fit_map(Cases(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 1.0]), np.zeros(3, int)))
    assert one.kind == "logistic"
    assert np.isfinite(one(np.array([-1e9, 0.0, 1e9]))).all()
    assert fit_map(Cases(np.ones(4), np.ones(4), np.arange(4)))(np.array([7.0])) == pytest.approx([5 / 6])


def test_reliability_is_what_a_loop_finds_and_true_probabilities_show_the_expected_error():
    rng = np.random.default_rng(11)
    p = rng.random(300)
    errors, expected = [], []
    for _ in range(60):
        y = (rng.random(300) < p).astype(float)
        found = reliability(p, y)
        errors.append(found["ece"])
        expected.append(found["ece_if_true"])
    assert np.mean(errors) == pytest.approx(np.mean(expected), rel=0.1)
    assert found["brier"] == pytest.approx(np.mean([(a - b) ** 2 for a, b in zip(p, y)]))
    ece = 0.0
    for low in np.arange(10) / 10:
        inside = (p > low) & (p <= low + 0.1) if low else p <= 0.1
        ece += abs(p[inside].sum() - y[inside].sum()) / 300
        assert any(b["cases"] == inside.sum() and b["right"] == pytest.approx(y[inside].mean()) for b in found["bins"])
    assert found["ece"] == pytest.approx(ece)


def test_what_was_never_seen_has_the_exact_bound_of_its_cases():
    cases = Cases(np.arange(12.0), np.tile([1.0, 1.0, 0.0], 4), np.repeat(np.arange(4), 3))
    none, every = measure(cases, [99.0, -1.0])
    assert (none["coverage"], none["coverage_high"]) == (0.0, pytest.approx(1 - 0.025 ** (1 / 12)))
    assert (every["far"], every["far_low"]) == (1.0, pytest.approx(0.025 ** (1 / 4)))


def _view(seed, noise, classes=30, each=8, dim=6, **more):
    draw = np.random.default_rng(seed)
    labels = np.arange(classes).repeat(each)
    points = draw.normal(size=(classes, dim))[labels] + noise * draw.normal(size=(len(labels), dim))
    unit = torch.from_numpy(points / np.linalg.norm(points, axis=1, keepdims=True))
    scorer = DistributionScorer("cosine", PointMass(unit))
    confidences = {"norm": torch.from_numpy(draw.normal(size=len(labels)))}
    return view_of(torch.from_numpy(labels), scorer, confidences=confidences, directions=lambda: unit, **more)


def _rows(view):
    return rows_of(view, "operating", "metric", "variant")


def _looked_up(view, gallery=None):
    """Margin, agreement of the seven nearest and right answer of each query, by a loop over the images."""
    unit, labels = view.unit_vectors.numpy(), view.labels.numpy()
    gallery = np.arange(len(labels)) if gallery is None else gallery.numpy()
    found = []
    for query in range(len(labels)):
        others = gallery[gallery != query]
        cosines, classes = unit[others] @ unit[query], labels[others]
        answer = classes[cosines.argmax()]
        near = classes[np.argsort(-cosines)[:7]]
        margin = cosines.max() - cosines[classes != answer].max()
        found.append((margin, (near == answer).mean(), answer == labels[query]))
    return (np.array(column) for column in zip(*found))


def test_thresholds_of_validation_are_applied_to_test_images_as_by_a_loop():
    validation = _view(0, 0.4)
    view = _view(1, 0.4, validation=validation)
    found = _rows(view)
    form = validation._cache["operating points cosine"]["answer"][0]
    assert set(form) <= {"margin", "agreement"}

    def sums(*gallery):
        margin, agreement, right = _looked_up(*gallery)
        return form.get("margin", 0.0) * margin + form.get("agreement", 0.0) * agreement, right

    known, right = sums(validation)
    order = np.argsort(-known)
    risk = (~right[order]).cumsum() / np.arange(1, len(order) + 1)
    threshold = known[order][np.flatnonzero(risk <= 0.05)[-1]] - 1e-6
    least = np.sort(known)[::-1][int(np.ceil(0.8 * len(known))) - 1] - 1e-6
    values, right = sums(view)
    row = found["operating_risk", "risk=0.05"]
    assert (row["confidence"], row["n_queries"]) == ("chosen", len(view))
    assert row["value"] == pytest.approx((~right)[values >= threshold].mean())
    assert found["operating_coverage", "risk=0.05"]["value"] == pytest.approx((values >= threshold).mean())
    assert found["operating_coverage", "coverage=0.8"]["value"] == pytest.approx((values >= least).mean())
    smaller = view._cache["smaller gallery cosine"]
    kept = torch.isin(view.labels, view.labels[smaller.gallery]).numpy()
    values, right = sums(view, smaller.gallery)
    half = found["operating_risk", "risk=0.05,gallery=half"]
    assert (half["n_queries"], half["n_lone"]) == (kept.sum(), (~kept).sum())
    assert half["value"] == pytest.approx((~right)[kept & (values >= threshold)].mean())


def test_pairs_and_unknown_queries_go_by_thresholds_of_their_own():
    found = {key: row["value"] for key, row in _rows(_view(1, 0.3, validation=_view(0, 0.3))).items()}
    for which in ("pair", "known"):
        variant = f"{which},far=0.01"
        assert 2 * found["operating_far", variant] < found["operating_tar", variant]


def test_more_noise_breaks_the_promise_and_what_was_trained_on_makes_none():
    validation = _view(0, 0.3)
    alike, worse = (_rows(_view(1, noise, validation=validation)) for noise in (0.3, 0.6))
    key = ("operating_risk", "risk=0.05")
    assert alike[key]["value"] < 0.15 < 0.25 < worse[key]["value"]
    assert _rows(_view(2, 0.5)) == {}
    assert _rows(replace(_view(2, 0.5, validation=validation), validation_split="train")) == {}
