"""Normals, points and the non-isotropic von Mises-Fisher against SciPy, integrals, closed forms and moments."""

import math
import subprocess
import sys

import pytest
import torch
from bench.methods.distributions import (
    DiagonalNormal,
    IsotropicNormal,
    NonIsotropicVonMisesFisher,
    PointMass,
    RatedPoint,
    VonMisesFisher,
    array_form,
    from_arrays,
    in_float64,
    nivmf_log_prob,
    on_device,
    rows_of,
    to_arrays,
)
from bench.methods.scorers import SCORERS, DistributionScorer, pairwise_score
from bench.methods.scorers.inner_products import modes_of
from scipy import stats
from torch.distributions import kl_divergence

from .sphere import sphere


def _iso(n=5, d=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    loc = torch.randn(n, d, generator=g, dtype=torch.float64)
    return IsotropicNormal(loc, torch.rand(n, generator=g, dtype=torch.float64) + 0.1)


def _diag(n=5, d=4, seed=1):
    g = torch.Generator().manual_seed(seed)
    loc = torch.randn(n, d, generator=g, dtype=torch.float64)
    return DiagonalNormal(loc, torch.rand(n, d, generator=g, dtype=torch.float64) + 0.1)


@pytest.mark.parametrize("make", [_iso, _diag])
def test_log_prob_and_entropy_equal_scipy(make):
    dist = make()
    z = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for i, variance in enumerate(dist.variance.numpy()):  # a number, or one for each dimension
        oracle = stats.multivariate_normal(dist.loc[i].numpy(), variance)
        assert dist.log_prob(z)[i].item() == pytest.approx(oracle.logpdf(z[i].numpy()), rel=1e-12)
        assert dist.entropy()[i].item() == pytest.approx(oracle.entropy(), rel=1e-12)


@pytest.mark.parametrize("make", [_iso, _diag])
def test_samples_have_the_right_moments(make):
    torch.manual_seed(0)
    dist = make(n=3)
    n = 200_000
    z = dist.sample((n,))
    variance = dist.variance if dist.variance.dim() == 2 else dist.variance[:, None].expand(3, 4)
    assert ((z.mean(0) - dist.loc).abs() < 5 * (variance / n).sqrt()).all()
    assert ((z.var(0) / variance - 1).abs() < 5 * math.sqrt(2 / n)).all()
    one = ((z[:, 0, 0] - dist.loc[0, 0]) / variance[0, 0].sqrt()).numpy()
    assert stats.kstest(one[:20_000], "norm").pvalue > 1e-3


@pytest.mark.parametrize("p", [_iso(), _diag()])
@pytest.mark.parametrize("q", [_iso(seed=5), _diag(seed=6)])
def test_kl_equals_torch_and_is_zero_only_at_equality(p, q):
    def torch_normal(dist):
        v = dist.variance if dist.variance.dim() == 2 else dist.variance[:, None].expand(dist.loc.shape)
        return torch.distributions.Independent(torch.distributions.Normal(dist.loc, v.sqrt()), 1)

    expected = kl_divergence(torch_normal(p), torch_normal(q))
    torch.testing.assert_close(kl_divergence(p, q), expected, rtol=1e-10, atol=1e-12)
    assert (kl_divergence(p, q) > 0).all()
    torch.testing.assert_close(kl_divergence(p, p), torch.zeros(5, dtype=torch.float64), rtol=0, atol=0)


def test_array_forms_round_trip():
    points = (PointMass(torch.randn(3, 2)), RatedPoint(torch.randn(3, 2), torch.rand(3)))
    others = (VonMisesFisher(torch.eye(3), torch.rand(3)), _Laplace(torch.randn(3, 2), torch.rand(3, 2)))
    for dist in (_iso(), _diag(), *points, *others):
        kind, arrays = to_arrays(dist)
        back = from_arrays(kind, arrays)
        assert type(back) is type(dist)
        for name, value in to_arrays(back)[1].items():
            assert torch.equal(value, arrays[name])


@array_form("test_laplace", "loc", "diversity")
class _Laplace(torch.distributions.Distribution):
    """A distribution of somebody else's, with what its docstring asks for and no more."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self, loc, diversity, validate_args=None):
        self.loc, self.diversity = loc, diversity
        super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=validate_args)

    @property
    def mean(self):
        return self.loc


def test_a_distribution_of_ones_own_has_an_array_form_and_scores():
    loc, diversity = torch.randn(5, 3), torch.rand(5, 3)
    dist = _Laplace(loc, diversity)
    assert to_arrays(dist)[0] == "test_laplace"
    rows = torch.tensor([3, 1])
    assert torch.equal(rows_of(dist, rows).diversity, diversity[rows])
    assert in_float64(dist).diversity.dtype == torch.float64
    scorer = DistributionScorer("cosine", dist)
    expected = torch.nn.functional.cosine_similarity(loc.double()[:, None], loc.double()[None], dim=-1)
    torch.testing.assert_close(scorer.matrix(torch.arange(5), torch.arange(5)), expected)


def test_array_forms_are_not_inherited_and_not_shared():
    class Wider(IsotropicNormal):
        pass

    with pytest.raises(TypeError, match=r"no array form for Wider: decorate the class with @array_form\("):
        to_arrays(Wider(torch.zeros(2, 3), torch.ones(2)))
    with pytest.raises(ValueError, match=r"'point' of Wider is already that of .*PointMass; choose another name"):
        array_form("point", "loc")(Wider)


def test_an_unknown_kind_says_what_to_add():
    with pytest.raises(TypeError, match=r"'gamma' \(known: .*von_mises_fisher\): import the module .*@array_form"):
        from_arrays("gamma", {})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["point", "rated_point", "isotropic_normal", "diagonal_normal", "von_mises_fisher"])
def test_the_kinds_of_the_package_need_no_import(kind):
    others = {"point": "loc", "rated_point": "loc uncertainty", "von_mises_fisher": "loc concentration"}
    names = others.get(kind, "loc variance").split()
    code = f"""
import torch
from bench.methods.distributions.arrays import from_arrays, to_arrays
arrays = {{"loc": torch.eye(3), "variance": torch.ones(3), "concentration": torch.ones(3)}}
arrays["uncertainty"] = torch.ones(3)
if {kind == "diagonal_normal"}:
    arrays["variance"] = torch.ones(3, 3)
assert to_arrays(from_arrays({kind!r}, arrays))[0] == {kind!r}
assert list(to_arrays(from_arrays({kind!r}, arrays))[1]) == {names!r}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_point_mass_is_its_own_sample_and_mean():
    point = PointMass(torch.randn(4, 3))
    assert point.rsample((2,)).shape == (2, 4, 3)
    assert torch.equal(point.rsample(), point.loc)
    assert torch.equal(point.mean, point.loc)
    assert torch.equal(point.log_prob(point.loc), torch.zeros(4))


def test_bad_variances_are_refused():
    with pytest.raises(ValueError, match="variance"):
        IsotropicNormal(torch.zeros(2, 3), torch.tensor([1.0, -1.0]), validate_args=True)
    with pytest.raises(ValueError, match="dimensions"):
        DiagonalNormal(torch.zeros(2, 3), torch.ones(2, 4))


def test_a_rated_point_is_a_point_to_every_scorer_and_keeps_its_number():
    gen = torch.Generator().manual_seed(3)
    loc, uncertainty = torch.randn(5, 4, generator=gen), torch.randn(5, generator=gen)
    rated, plain = RatedPoint(loc, uncertainty), PointMass(loc)
    fitting = []
    for name in SCORERS:
        try:
            wanted = pairwise_score(name, plain, plain)
        except ValueError:  # not defined for points
            continue
        fitting.append(name)
        assert torch.equal(pairwise_score(name, rated, rated), wanted), name
    assert {"cosine", "l2", "raw_l2", "expected_cosine", "match", "sampled_cosine", "sampled_match"} <= {*fitting}
    assert torch.equal(modes_of(rated).loc, modes_of(plain).loc)
    assert torch.equal(rows_of(rated, torch.tensor([3, 1])).uncertainty, uncertainty[[3, 1]])
    assert in_float64(rated).uncertainty.dtype == torch.float64
    assert type(on_device(rated, "cpu")) is RatedPoint
    wide = rated.expand(torch.Size([2, 5]))
    assert (type(wide), wide.loc.shape, wide.uncertainty.shape) == (RatedPoint, (2, 5, 4), (2, 5))


def test_a_rated_point_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"uncertainty must have the shape \[3\], not \[3, 1\]"):
        RatedPoint(torch.randn(3, 2), torch.randn(3, 1))
    with pytest.raises(ValueError, match="uncertainty"):
        RatedPoint(torch.randn(2, 2), torch.tensor([0.0, torch.nan]))


F64 = torch.float64
SPHERE, AREA = sphere(300, 600)


@pytest.mark.parametrize(("normalizer", "integral"), [("exact", 1.0), ("heuristic", 790.8), ("none", 4.94)])
def test_only_the_exact_normaliser_integrates_to_one(normalizer, integral):
    dist = NonIsotropicVonMisesFisher(torch.ones(3, dtype=F64), torch.tensor([20.0, 5.0, 50.0], dtype=F64), normalizer)
    total = (dist.log_prob(SPHERE).exp() * AREA).sum().item()
    assert total == pytest.approx(integral, rel=1e-9 if normalizer == "exact" else 1e-3)


def test_equal_concentrations_are_the_von_mises_fisher():
    loc, z = torch.randn(4, 6, dtype=F64), torch.nn.functional.normalize(torch.randn(4, 6, dtype=F64), dim=-1)
    k = torch.tensor([0.5, 3.0, 20.0, 300.0], dtype=F64)
    ours = NonIsotropicVonMisesFisher(loc, k[:, None].expand(4, 6), "exact").log_prob(z)
    torch.testing.assert_close(ours, VonMisesFisher(loc, k).log_prob(z), rtol=1e-10, atol=1e-10)


def test_draws_have_the_mean_of_the_density_and_the_matrix_form_agrees():
    torch.manual_seed(0)
    dist = NonIsotropicVonMisesFisher(torch.ones(3, dtype=F64), torch.tensor([4.0, 1.0, 9.0], dtype=F64), "exact")
    mean = (SPHERE * (dist.log_prob(SPHERE).exp() * AREA)[:, None]).sum(0)
    draws = dist.sample((40_000,))
    assert ((draws.mean(0) - mean).abs() < 5 * draws.std(0) / 200).all()
    matrix = nivmf_log_prob(draws[:5], dist.loc[None], dist.concentration[None], "exact")
    torch.testing.assert_close(matrix[:, 0], dist.log_prob(draws[:5]))
    with pytest.raises(NotImplementedError, match="exact"):
        NonIsotropicVonMisesFisher(torch.ones(3), torch.ones(3)).rsample()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1e5, 1e10, 1e18, 1e30])
def test_narrow_densities_keep_their_digits(k, dtype):
    """At the mode; equal stretches give a von Mises-Fisher, and a longer stretch of any shape a higher peak."""
    loc, eps = torch.eye(6, dtype=dtype), torch.finfo(dtype).eps
    concentration = torch.full((6,), k, dtype=dtype)
    ours = NonIsotropicVonMisesFisher(loc, concentration[:, None].expand(6, 6), "exact").log_prob(loc)
    torch.testing.assert_close(ours, VonMisesFisher(loc, concentration).log_prob(loc), rtol=10 * eps, atol=0)
    shape = 1.0 + torch.arange(6, dtype=dtype)
    for normalizer, stretched in (("none", 0), ("heuristic", 5), ("exact", 0)):
        one, eight = (NonIsotropicVonMisesFisher(loc, f * k * shape.expand(6, 6), normalizer) for f in (1.0, 8.0))
        rise = eight.log_prob(loc) - one.log_prob(loc)
        # log C(k) + k rises by (D - 1) / 2 log 8, up to 1 / k, and log D of the heuristic by (D - 1) log 8.
        expected = torch.full((6,), (2.5 + stretched) * math.log(8), dtype=dtype)
        torch.testing.assert_close(rise, expected, rtol=0, atol=10 / k + 1e4 * eps)
