"""Error versus discard characteristics against the authors' code and against loops."""

import itertools
import math

import numpy as np
import pytest
import torch
from bench.protocols.discard import (
    FRACTIONS,
    DiscardCurve,
    discard_area,
    discard_threshold_fixed,
    discard_threshold_refit,
    fnmr_at,
    pair_quality,
)
from bench.protocols.embeddings import Options
from bench.protocols.verification import Pairs, sample_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from .views import rows_of, view_of

pytestmark = pytest.mark.filterwarnings("error")

# Given to the public code of Schlett et al. (dasec/quality-assessment-evaluation, edc.py at 2a66097):
#   edc = compute_edc(EdcErrorType.FNMR, pairs, starting_error=start)
#   compute_edc_pauc(edc, limit) - compute_edc_area_under_theoretical_best(edc, limit)
SCORES = [0.1, 0.9, 0.3, 0.5, 0.7, 0.2, 0.8, 0.6, 0.4, 1.0, 0.15, 0.95, 0.35, 0.55, 0.75, 0.25, 0.85, 0.65, 0.45, 0.05]
LEFT = [2, 9, 1, 4, 7, 1, 8, 6, 3, 9, 5, 9, 2, 5, 8, 1, 3, 7, 4, 6]  # qualities
RIGHT = [3, 8, 4, 6, 9, 2, 9, 9, 5, 7, 1, 6, 7, 8, 8, 3, 9, 5, 6, 2]
THEIRS = {
    0.05: ([0.05, 0.0625, 0, 0, 0, 0, 0, 0, 0], {0.2: 0.00875, 0.1: 0.0037500000000000007, 1.0: 0.018125}),
    0.2: ([0.2, 0.125, 0, 0, 0, 0, 0, 0, 0], {0.2: 0.020000000000000004, 0.1: 0.005000000000000001, 1.0: 0.03875}),
    0.45: (
        [0.45, 0.3125, 0.15384615384615385, 0.09090909090909091, 0, 0, 0, 0, 0],
        {0.2: 0.020000000000000004, 0.1: 0.0049999999999999906, 1.0: 0.06010052447552447},
    ),
}


@pytest.mark.parametrize("start", THEIRS)
def test_a_fixed_threshold_gives_the_values_of_the_authors_code(start):
    fnmr, areas = THEIRS[start]
    quality = pair_quality(torch.arange(10.0), torch.tensor(LEFT), torch.tensor(RIGHT))
    curve = discard_threshold_fixed(torch.tensor(SCORES, dtype=torch.float64), quality, start=start)
    assert curve.discarded.tolist() == pytest.approx([0.0, 0.2, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 1.0], abs=1e-15)
    assert curve.fnmr.tolist() == pytest.approx(fnmr, abs=1e-15)
    for limit, area in areas.items():
        assert discard_area(curve, limit) == pytest.approx(area, abs=1e-15)


def _area(at, n, limit):
    """Partial area of a curve with steps at multiples of 1 / n, less that of its ideal."""
    ends = [0.0, *(k / n for k in range(1, n) if k / n < limit), limit]
    area = sum((b - a) * at((a + b) / 2) for a, b in itertools.pairwise(ends))
    return area - integrate.quad(lambda x: max(0.0, at(0.0) - x), 0, limit, points=[min(at(0.0), limit)])[0]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=30),
    st.sampled_from([0.05, 0.3, 0.7]),
    st.sampled_from([0.2, 0.5]),
)
def test_a_fixed_threshold_equals_a_loop(data, start, limit):
    n, threshold = len(data), np.quantile([score for score, _ in data], start)

    def at(x):
        """Rate once the worst are gone, as long as whole groups of equal quality fit into the share."""
        kept = list(data)
        while kept:
            worst = min(quality for _, quality in kept)
            rest = [pair for pair in kept if pair[1] > worst]
            if (n - len(rest)) / n > x:
                break
            kept = rest
        return sum(score < threshold for score, _ in kept) / len(kept) if kept else 0.0

    scores, quality = (torch.tensor(column, dtype=torch.float64) for column in zip(*data))
    curve = discard_threshold_fixed(scores, quality, start=start)
    for x, rate in zip(curve.discarded.tolist(), curve.fnmr.tolist()):
        assert rate == pytest.approx(at(x + 1e-9), abs=1e-12)
    assert discard_area(curve, limit) == pytest.approx(_area(at, n, limit), abs=1e-9)
    assert discard_area(curve, limit) >= -1e-12


def _images(seed, levels):
    """Pairs of 60 images, and qualities that say how far a score can be trusted."""
    g = torch.Generator().manual_seed(seed)
    quality = torch.randint(levels, (60,), generator=g).double()
    left, right = torch.randint(60, (2, 400), generator=g)
    same = torch.rand(400, generator=g) < 0.5
    noise = torch.randn(400, generator=g, dtype=torch.float64) * (1.5 - pair_quality(quality, left, right) / levels)
    return (same + 0.5 * noise).mul(20).round(), same, left, right, quality


@pytest.mark.parametrize("levels", [5, 1000])
@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.05])
def test_a_threshold_chosen_anew_equals_a_loop(levels, rate):
    scores, same, left, right, quality = _images(levels, levels)
    fractions = (0.0, 0.05, 0.1, 0.2, 0.5)
    curve = discard_threshold_refit(
        scores, Pairs(left, right, same), quality, fractions=fractions, false_match_rate=rate
    )
    for fraction, value in zip(fractions, curve.fnmr.tolist()):
        gone = set()
        for level in sorted(set(quality.tolist())):
            group = {i for i in range(60) if quality[i] == level}
            if len(gone | group) > fraction * 60 + 1e-9:
                break
            gone |= group
        pairs = [
            (score, kind)
            for score, kind, a, b in zip(scores.tolist(), same.tolist(), left.tolist(), right.tolist())
            if a not in gone and b not in gone
        ]
        mated, other = ([s for s, kind in pairs if kind is wanted] for wanted in (True, False))
        rates = [
            sum(s < t for s in mated) / len(mated)
            for t in [*sorted({s for s, _ in pairs}), math.inf]
            if sum(s >= t for s in other) / len(other) <= rate
        ]
        assert value == pytest.approx(min(rates), abs=1e-12)
    assert curve.discarded.tolist() == list(fractions)
    assert len(set(curve.fnmr.tolist())) > 2


def test_what_leaves_no_pairs_has_no_value():
    none = torch.zeros(0)
    empty = discard_threshold_fixed(none, none)
    assert len(empty.discarded) == 0
    assert math.isnan(discard_area(empty))
    rows = torch.zeros(0, dtype=torch.long)
    nothing = discard_threshold_refit(none, Pairs(rows, rows, none.bool()), torch.ones(3), fractions=(0.0, 0.1))
    assert np.isnan(nothing.fnmr).all()
    assert math.isnan(discard_area(nothing))
    # All pairs of one class, as in a gallery of one class: no threshold can be chosen.
    pairs = Pairs(torch.tensor([0, 1]), torch.tensor([1, 2]), torch.ones(2).bool())
    assert np.isnan(discard_threshold_refit(torch.ones(2), pairs, torch.arange(3.0)).fnmr).all()


def test_values_that_are_not_finite_and_limits_out_of_range_are_refused():
    with pytest.raises(ValueError, match="finite"):
        discard_threshold_fixed(torch.tensor([1.0, math.nan]), torch.ones(2))
    curve = DiscardCurve(np.array([0.0]), np.array([0.1]))
    for limit in (0.0, 1.5):
        with pytest.raises(ValueError, match=r"limit must be in \(0, 1\]"):
            discard_area(curve, limit)


def _view(labels, confidences, **changes):
    g = torch.Generator().manual_seed(3)
    x = torch.eye(6, dtype=torch.float64)[labels] + torch.randn(len(labels), 6, generator=g, dtype=torch.float64)
    return view_of(labels, x @ x.T, confidences=confidences, **changes), x @ x.T


def _rows(view):
    rows = rows_of(view, "discard", "metric", "confidence", "variant", "fraction")
    return {key: row["value"] for key, row in rows.items()}


def test_rows_are_those_of_the_pairs_of_verification():
    labels, g = torch.arange(60) // 10, torch.Generator().manual_seed(1)
    own = torch.randint(8, (60,), generator=g).double()
    view, scores = _view(labels, {"method": own, "random": torch.ones(60)}, options=Options(false_positive_rate=0.05))
    rows = _rows(view)
    assert len(rows) == 2 * 2 * 4
    pairs = sample_pairs(labels, view.ids, len("pairs"))
    every = [*zip(scores[pairs.left, pairs.right].tolist(), pairs.left.tolist(), pairs.right.tolist())]
    mated = [(score, min(own[a].item(), own[b].item())) for score, a, b in every[:60]]
    assert pairs.same.tolist() == [True] * 60 + [False] * 60
    quality = torch.tensor([quality for _, quality in mated])
    fixed = discard_threshold_fixed(torch.tensor([score for score, _ in mated]), quality, start=0.05)
    refit = discard_threshold_refit(torch.tensor([score for score, *_ in every]), pairs, own, false_match_rate=0.05)
    for variant, curve in (("threshold_fixed", fixed), ("threshold_refit", refit)):
        assert rows["edc_pauc", "method", variant, None] == pytest.approx(discard_area(curve), abs=1e-12)
        for fraction in (0.0, 0.1, 0.2):
            found = rows["edc_fnmr", "method", variant, fraction]
            assert found == pytest.approx(fnmr_at(curve, fraction), abs=1e-12)
        # A constant confidence discards nothing.
        assert len({rows["edc_fnmr", "random", variant, fraction] for fraction in (0.0, 0.1, 0.2)}) == 1


def test_rates_are_read_off_the_curve():
    curve = DiscardCurve(np.array(FRACTIONS), np.arange(21.0))
    assert [fnmr_at(curve, x) for x in (0.0, 0.07, 0.075, 0.2, 0.9)] == [0.0, 7.0, 7.0, 20.0, 20.0]
    assert math.isnan(fnmr_at(DiscardCurve(np.zeros(0), np.zeros(0)), 0.1))


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]], ids=["one class", "no class of two"])
def test_images_without_pairs_of_both_kinds_have_no_rates(labels):
    view, _ = _view(torch.tensor(labels), {"norm": torch.ones(3)})
    rows = _rows(view)
    assert len(rows) == 8
    assert all(math.isnan(value) for value in rows.values())
