"""Scorers against golden values, numerical integration, Monte Carlo and plain loops."""

import importlib
import math

import numpy as np
import pytest
import torch
from bench.methods.distributions import DiagonalNormal, IsotropicNormal, PointMass, VonMisesFisher
from bench.methods.heads import positive_from_raw
from bench.methods.scorers import SCORERS, DistributionScorer, get_scorer, paired_score, pairwise_score, scorer_module
from bench.methods.scorers.inner_products import DistanceBound
from bench.protocols.ranking import ScoreMatrix, rank
from scipy import special, stats

from .sphere import sphere


def _unit(n, d, seed=0):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def test_embeddings_that_differ_beside_a_large_number_have_different_keys():
    rows = torch.tensor([[1e20, 0.1], [1e20, 0.2], [1e20, 0.1]], dtype=torch.float64)
    first, other, same = DistanceBound(lambda index: PointMass(rows[index]), 3).keys
    assert first == same != other


@pytest.mark.parametrize("name", ["cosine", "l2", "mls", "expected_l2"])
@pytest.mark.parametrize("kind", ["iso", "diag"])
def test_matrix_equals_loop_and_pairs(name, kind):
    dist = _of(kind, 9, 5, 4)
    loc, matrix = dist.loc, pairwise_score(name, dist, dist)
    variance = dist.variance if kind == "diag" else dist.variance[:, None].expand(9, 5)
    for i in range(9):
        for j in range(9):
            x, y = loc[i], loc[j]
            expected = {
                "cosine": (x @ y / (x.norm() * y.norm())).item(),
                "l2": -((x - y) ** 2).sum().item(),
                "expected_l2": -((x - y) ** 2).sum().item() - (variance[i] + variance[j]).sum().item(),
                "mls": stats.norm(0, (variance[i] + variance[j]).sqrt()).logpdf(x - y).sum(),
            }[name]
            assert matrix[i, j].item() == pytest.approx(expected, rel=1e-10, abs=1e-10)
    torch.testing.assert_close(paired_score(name, dist, dist), matrix.diagonal(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(matrix, matrix.mT, rtol=1e-12, atol=1e-12)


def test_a_diagonal_of_equal_variances_is_the_isotropic_case():
    loc, v = _unit(6, 8), torch.rand(6, dtype=torch.float64) + 0.1
    iso, diag = IsotropicNormal(loc, v), DiagonalNormal(loc, v[:, None].expand(6, 8))
    torch.testing.assert_close(pairwise_score("mls", iso, diag), pairwise_score("mls", iso, iso))


def test_the_raw_distance_is_that_of_the_embeddings_before_they_are_normalised():
    """EL-nivMF, Supplement J: of points as they are, and of vMFs whose concentration is proportional to the norm."""
    raw = 3 * torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = [[-sum((a - b) ** 2 for a, b in zip(x, y)) for y in raw.tolist()] for x in raw.tolist()]
    squared = torch.tensor(expected, dtype=torch.float64)
    points, images = PointMass(raw), VonMisesFisher(raw, 4 * raw.norm(dim=1))
    for scale, dist in ((1.0, points), (4.0**2, images)):
        torch.testing.assert_close(pairwise_score("raw_l2", dist, dist), scale * squared)
    # Neither the cosine nor the distance of the means has the order of the raw distance.
    order = pairwise_score("raw_l2", images, images).argsort(1)
    assert not torch.equal(order, pairwise_score("cosine", images, images).argsort(1))
    assert not torch.equal(order, pairwise_score("l2", images, images).argsort(1))
    with pytest.raises(ValueError, match="IsotropicNormal does not keep the raw embedding"):
        pairwise_score("raw_l2", _of("iso", 2, 3), _of("iso", 2, 3))


def test_wrong_uses_are_refused():
    points = PointMass(_unit(3, 4))
    with pytest.raises(ValueError, match="PointMass does not fit"):
        pairwise_score("mls", points, points)


def _of(kind, n, d, seed=0):
    g = torch.Generator().manual_seed(seed)
    loc = torch.randn(n, d, generator=g, dtype=torch.float64)
    if kind == "diag":
        return DiagonalNormal(loc, torch.rand(n, d, generator=g, dtype=torch.float64) + 0.05)
    spread = torch.rand(n, generator=g, dtype=torch.float64)
    return IsotropicNormal(loc, spread + 0.05) if kind == "iso" else VonMisesFisher(loc, 30 * spread)


@pytest.mark.parametrize("kind", ["iso", "diag", "vmf"])
@pytest.mark.parametrize("d", [2, 3, 8])
def test_expected_scores_equal_the_mean_over_draws(kind, d):
    torch.manual_seed(0)
    a, b = _of(kind, 3, d, 1), _of(kind, 3, d, 2)
    x, y = a.sample((200_000,)), b.sample((200_000,))
    cosine = torch.nn.functional.cosine_similarity(x, y, dim=-1)
    squared = (x - y).square().sum(-1)
    for draws, value in (
        (cosine, paired_score("expected_cosine", a, b)),
        (squared, -paired_score("expected_l2", a, b)),
    ):
        error = draws.std(0) / math.sqrt(len(draws))
        assert ((draws.mean(0) - value).abs() < 4.5 * error).all()


@pytest.mark.parametrize("d", [1, 2, 3, 64, 1024])
@pytest.mark.parametrize("ratio", [1e-3, 0.5, 3.0, 40.0, 2000.0])
def test_the_shrinkage_of_a_projected_normal_is_kummers_function(d, ratio):
    from mpmath import gamma, hyp1f1, mp

    mp.dps = 30
    dist = IsotropicNormal(torch.eye(d, dtype=torch.float64)[:1], torch.tensor([ratio**-2], dtype=torch.float64))
    value = SCORERS["expected_cosine"].prepare(dist).mean[0, 0].item()
    truth = ratio * gamma((d + 1) / 2) / gamma(d / 2 + 1) / math.sqrt(2) * hyp1f1(0.5, d / 2 + 1, -(ratio**2) / 2)
    assert value == pytest.approx(float(truth), rel=1e-10)


def test_sampling_approaches_the_closed_form_and_leaves_the_random_state_alone():
    from bench.methods.scorers.expectation import expected_direction, sampled_direction

    dist = _of("vmf", 20, 16)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    many = sampled_direction(dist, 20_000)
    assert torch.equal(before, torch.get_rng_state())
    assert (many - expected_direction(dist)).abs().max() < 0.02
    assert torch.equal(sampled_direction(dist), sampled_direction(dist))
    # Draws of two batches must not be the same draws: a pair of equal images would score too high.
    same = paired_score("sampled_cosine", dist, dist)
    assert (same - paired_score("expected_cosine", dist, dist)).mean().abs() < 0.05


@pytest.mark.parametrize("d", [2, 3])
def test_mls_of_the_von_mises_fisher_is_the_log_of_the_overlap_integral(d):
    a, b = _of("vmf", 2, d, 5), _of("vmf", 2, d, 6)
    if d == 2:
        theta = torch.arange(20_000, dtype=torch.float64) * (2 * math.pi / 20_000)
        z, area = torch.stack([theta.cos(), theta.sin()], -1), torch.full((20_000,), 2 * math.pi / 20_000)
    else:
        z, area = sphere(80, 160)
    for i in range(2):
        p, q = (VonMisesFisher(x.loc[i], x.concentration[i]) for x in (a, b))
        total = ((p.log_prob(z) + q.log_prob(z)).exp() * area).sum().log()
        assert paired_score("mls", a, b)[i].item() == pytest.approx(total.item(), abs=1e-7)


@pytest.mark.parametrize(
    ("kind", "spread"),
    [
        *((IsotropicNormal, variance) for variance in (1e-3, 0.03, 1.0, 10.0)),
        *((VonMisesFisher, kappa) for kappa in (0.5, 5.0, 100.0, 1e4)),
    ],
)
def test_equal_spreads_rank_exactly_like_cosine(kind, spread):
    dist = kind(_unit(300, 64), torch.full((300,), spread, dtype=torch.float64))
    mls, cosine = pairwise_score("mls", dist, dist), pairwise_score("cosine", dist, dist)
    assert torch.equal(mls.argsort(dim=1), cosine.argsort(dim=1))


def test_a_collapsed_concentration_head_still_ranks_by_cosine():
    # Nothing bounds SCF's k away from zero: D / phi(r) is 6e-5 at r = 1e6.
    k = 64 / positive_from_raw(torch.full((2000,), 1e6, dtype=torch.float64))
    assert 0 < k[0] < 1e-4
    angle = torch.linspace(0.0, math.pi, 2000, dtype=torch.float64)
    mode, other = torch.zeros(2, 2000, 64, dtype=torch.float64)
    mode[:, 0], other[:, 0], other[:, 1] = 1.0, angle.cos(), angle.sin()
    score = paired_score("mls", VonMisesFisher(mode, k), VonMisesFisher(other, k))
    apart = (angle.cos()[:-2] - angle.cos()[2:]) > 1e-3
    assert (score[:-2] > score[2:])[apart].all()


@pytest.mark.parametrize("d", [2, 3, 64])
def test_the_match_probability_is_the_mean_over_draws(d):
    torch.manual_seed(0)
    a, b = _of("iso", 4, d, 1), _of("iso", 4, d, 2)
    distance = (a.sample((100_000,)) - b.sample((100_000,))).norm(dim=-1)
    draws = torch.sigmoid(1.5 - 0.7 * distance)
    value = paired_score("match", a, b, scale=0.7, bias=1.5)
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - value).abs() < 4.5 * error + 2e-4).all()


def _match_by_the_noncentral_chi(dim, delta, variance, scale, bias):
    """Integral over the density of the distance, by a fine trapezoid rule."""
    away, steep = max(delta / variance**0.5, 1e-9), scale * variance**0.5
    rho = np.linspace(max(1e-9, away - 12 - steep), away + 12 + dim**0.5, 100_001)
    order = dim / 2 - 1
    log_f = np.log(rho) + order * np.log(rho / away) - (rho - away) ** 2 / 2
    density = np.exp(log_f) * special.ive(order, rho * away)
    return np.trapezoid(density * special.expit(bias - steep * rho), rho)


@pytest.mark.parametrize("dim", [2, 3, 8, 15])
def test_in_few_dimensions_the_match_probability_is_exact(dim):
    # Close pairs and steep sigmoids, where the two-dimensional rule had .0098 for .0140 at D = 3.
    cases = [(0.1, 2.0, 3.0, 0.0), (1e-6, 1.0, 5.0, 4.0), (6.0, 0.05, 5.0, -3.0), (1.0, 9.0, 20.0, 0.0)]
    for delta, variance, scale, bias in cases:
        loc = torch.zeros(1, dim, dtype=torch.float64)
        spread = torch.full((1,), variance / 2, dtype=torch.float64)
        a, b = IsotropicNormal(loc, spread), IsotropicNormal(loc + delta * torch.eye(dim)[0], spread)
        truth = _match_by_the_noncentral_chi(dim, delta, variance, scale, bias)
        assert paired_score("match", a, b, scale=scale, bias=bias).item() == pytest.approx(truth, rel=3e-5)


def test_the_sampled_match_estimates_the_match_probability():
    a, b = _of("iso", 40, 16, 1), _of("iso", 40, 16, 2)
    exact = pairwise_score("match", a, b, scale=0.7, bias=3.0)
    noisy = pairwise_score("sampled_match", a, b, scale=0.7, bias=3.0)
    assert 0 < (noisy - exact).std() < 0.05
    assert (noisy - exact).mean().abs() < 0.01


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("variance", [1e-14, 1e-3, 10.0])
@pytest.mark.parametrize(("scale", "bias"), [(1.0, 0.0), (20.0, 5.0), (300.0, -20.0)])
def test_the_sampled_match_is_that_of_all_pairs_of_draws_and_ranks_alike(scale, bias, variance, offset):
    count = 150
    x = _unit(count, 16) + offset
    x[1], x[2:6] = x[0], x[0] + 1e-3 * _unit(4, 16, 1)
    scorer = DistributionScorer(
        "sampled_match", IsotropicNormal(x, torch.full((count,), variance)), {"scale": scale, "bias": bias}
    )
    rows = torch.arange(count)
    draws = scorer._distribution.mean.unflatten(1, (8, -1))
    squared = torch.stack([(one[None, :, None] - draws[:, None]).square().sum(-1) for one in draws])
    truth = torch.sigmoid(bias - scale * squared.sqrt()).mean((2, 3))
    assert torch.allclose(scorer.matrix(rows, rows), truth, rtol=1e-11, atol=0)
    assert torch.allclose(scorer.pairs(rows, rows.flip(0)), truth[rows, rows.flip(0)], rtol=1e-13, atol=0)
    rough, error = scorer.rough(rows, rows)
    assert bool(((rough - truth).abs() <= error).all())
    labels = rows // 5
    found, plain = rank(scorer, labels, depth=6), rank(ScoreMatrix(truth), labels, depth=6)
    assert torch.equal(found.neighbours, plain.neighbours)
    assert torch.equal(found.group, plain.group)
    assert torch.equal(found.beyond, plain.beyond)


def test_points_have_the_match_probability_of_their_distance():
    x, y = PointMass(torch.zeros(1, 3)), PointMass(torch.tensor([[3.0, 4.0, 0.0]]))
    assert paired_score("match", x, y, scale=2.0, bias=9.0).item() == pytest.approx(1 / (1 + math.e), rel=1e-5)
    with pytest.raises(ValueError, match="isotropic"):
        pairwise_score("match", _of("diag", 2, 3), _of("diag", 2, 3))


def test_antipodal_certain_embeddings_have_a_finite_score_and_gradient():
    mu = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    kappa = torch.tensor([1e6, 1e6, 0.0], requires_grad=True)
    dist = VonMisesFisher(mu, kappa)
    matrix = pairwise_score("mls", dist, dist)
    matrix.sum().backward()
    assert torch.isfinite(matrix).all()
    assert torch.isfinite(kappa.grad).all()


def test_every_scorer_is_in_the_table_under_the_module_that_defines_it():
    of_distributions = ["mls", "expected_cosine", "sampled_cosine", "expected_l2", "match", "sampled_match"]
    assert list(SCORERS) == ["cosine", "l2", "raw_l2", "poincare", *of_distributions]
    assert [spec.name for spec in SCORERS.values()] == list(SCORERS)
    for module in {scorer_module(name) for name in SCORERS}:
        named = {name for name in SCORERS if scorer_module(name) == module}
        assert {spec.name for spec in importlib.import_module(module).SPECS} == named
    assert scorer_module("mls") == "bench.methods.scorers.likelihood"
    assert "cosin" not in SCORERS
    for ask in (get_scorer, scorer_module):
        with pytest.raises(ValueError, match="unknown scorer 'cosin'; did you mean 'cosine'"):
            ask("cosin")
