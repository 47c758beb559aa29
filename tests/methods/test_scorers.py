"""Scorers against golden values, numerical integration, Monte Carlo and plain loops."""

import math

import pytest
import torch
from bench.methods.distributions import DiagonalNormal, IsotropicNormal, PointMass
from bench.methods.scorers import SCORERS, paired_score, pairwise_score
from scipy import integrate, stats


def _unit(n, d, seed=0):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("s1", "s2", "cosine", "expected"),
    [
        (0.01, 0.02, 0.5, 90.12890651),
        (1.0, 1.0, 0.5, -162.23555181),
        (0.005, 0.005, 0.5, 127.10675965),
        (0.005, 0.005, 0.9, 167.10675965),
    ],
)
def test_mls_golden_values(s1, s2, cosine, expected):
    a = torch.zeros(1, 128, dtype=torch.float64)
    b = torch.zeros(1, 128, dtype=torch.float64)
    a[0, 0] = 1.0
    b[0, 0], b[0, 1] = cosine, math.sqrt(1 - cosine**2)
    x = IsotropicNormal(a, torch.tensor([s1], dtype=torch.float64))
    y = IsotropicNormal(b, torch.tensor([s2], dtype=torch.float64))
    for value in (pairwise_score("mls", x, y)[0, 0], paired_score("mls", x, y)[0]):
        assert value.item() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("diagonal", [False, True])
def test_mls_is_the_log_of_the_overlap_integral(diagonal):
    g = torch.Generator().manual_seed(2)
    loc = torch.randn(2, 2, generator=g, dtype=torch.float64)
    if diagonal:
        v = torch.rand(2, 2, generator=g, dtype=torch.float64) + 0.2
        dist = DiagonalNormal(loc, v)
    else:
        v = (torch.rand(2, generator=g, dtype=torch.float64) + 0.2)[:, None].expand(2, 2)
        dist = IsotropicNormal(loc, v[:, 0])
    p, q = (stats.multivariate_normal(loc[i].numpy(), torch.diag(v[i]).numpy()) for i in (0, 1))
    total, _ = integrate.dblquad(lambda y, x: p.pdf([x, y]) * q.pdf([x, y]), -9, 9, -9, 9, epsabs=1e-12)
    assert pairwise_score("mls", dist, dist)[0, 1].item() == pytest.approx(math.log(total), abs=1e-7)


def test_mls_equals_a_monte_carlo_overlap():
    torch.manual_seed(0)
    dist = IsotropicNormal(_unit(2, 3), torch.tensor([0.4, 0.7], dtype=torch.float64))
    z = dist.sample((400_000,))[:, 0]
    other = IsotropicNormal(dist.loc[1], dist.variance[1])
    draws = other.log_prob(z).exp()
    standard_error = (draws.std() / math.sqrt(len(draws)) / draws.mean()).item()
    assert pairwise_score("mls", dist, dist)[0, 1].item() == pytest.approx(
        draws.mean().log().item(), abs=4 * standard_error
    )


@pytest.mark.parametrize("name", sorted(SCORERS))
@pytest.mark.parametrize("kind", ["iso", "diag"])
def test_matrix_equals_loop_and_pairs(name, kind):
    g = torch.Generator().manual_seed(4)
    loc = torch.randn(9, 5, generator=g, dtype=torch.float64)
    if kind == "iso":
        dist = IsotropicNormal(loc, torch.rand(9, generator=g, dtype=torch.float64) + 0.05)
    else:
        dist = DiagonalNormal(loc, torch.rand(9, 5, generator=g, dtype=torch.float64) + 0.05)
    matrix = pairwise_score(name, dist, dist)
    variance = dist.variance if kind == "diag" else dist.variance[:, None].expand(9, 5)
    for i in range(9):
        for j in range(9):
            x, y = loc[i], loc[j]
            expected = {
                "cosine": (x @ y / (x.norm() * y.norm())).item(),
                "l2": -((x - y) ** 2).sum().item(),
                "mls": sum(
                    stats.norm(0, math.sqrt(variance[i, k] + variance[j, k])).logpdf(x[k] - y[k]) for k in range(5)
                ),
            }[name]
            assert matrix[i, j].item() == pytest.approx(expected, rel=1e-10, abs=1e-10)
    torch.testing.assert_close(paired_score(name, dist, dist), matrix.diagonal(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(matrix, matrix.mT, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variance", [1e-3, 0.03, 1.0, 10.0])
def test_equal_variances_rank_exactly_like_cosine(variance):
    loc = _unit(300, 64)
    dist = IsotropicNormal(loc, torch.full((300,), variance, dtype=torch.float64))
    mls, cosine = pairwise_score("mls", dist, dist), pairwise_score("cosine", dist, dist)
    assert torch.equal(mls.argsort(dim=1), cosine.argsort(dim=1))


def test_a_diagonal_of_equal_variances_is_the_isotropic_case():
    loc, v = _unit(6, 8), torch.rand(6, dtype=torch.float64) + 0.1
    iso, diag = IsotropicNormal(loc, v), DiagonalNormal(loc, v[:, None].expand(6, 8))
    torch.testing.assert_close(pairwise_score("mls", iso, diag), pairwise_score("mls", iso, iso))


def test_wrong_uses_are_refused():
    points = PointMass(_unit(3, 4))
    with pytest.raises(ValueError, match="needs a variance"):
        pairwise_score("mls", points, points)
    with pytest.raises(ValueError, match="did you mean 'cosine'"):
        pairwise_score("cosin", points, points)
