"""Normals and points against SciPy, closed forms and moments of their samples."""

import math
import subprocess
import sys

import pytest
import torch
from bench.methods.distributions import (
    DiagonalNormal,
    IsotropicNormal,
    PointMass,
    RatedPoint,
    VonMisesFisher,
    array_form,
    from_arrays,
    in_float64,
    on_device,
    rows_of,
    to_arrays,
)
from bench.methods.distributions.normal import kl_to_standard_normal
from bench.methods.scorers import SCORERS, DistributionScorer, pairwise_score
from bench.methods.scorers.inner_products import modes_of
from scipy import stats
from torch.distributions import kl_divergence


def _iso(n=5, d=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    loc = torch.randn(n, d, generator=g, dtype=torch.float64)
    return IsotropicNormal(loc, torch.rand(n, generator=g, dtype=torch.float64) + 0.1)


def _diag(n=5, d=4, seed=1):
    g = torch.Generator().manual_seed(seed)
    loc = torch.randn(n, d, generator=g, dtype=torch.float64)
    return DiagonalNormal(loc, torch.rand(n, d, generator=g, dtype=torch.float64) + 0.1)


def _covariances(dist):
    v = dist.variance
    if v.dim() == 1:
        v = v[:, None].expand(dist.loc.shape)
    return [torch.diag(row).numpy() for row in v]


@pytest.mark.parametrize("make", [_iso, _diag])
def test_log_prob_and_entropy_equal_scipy(make):
    dist = make()
    z = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for i, cov in enumerate(_covariances(dist)):
        oracle = stats.multivariate_normal(dist.loc[i].numpy(), cov)
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


@pytest.mark.parametrize(
    ("variance", "expected"), [(1.0, 0.5), (0.091, 95.8), (0.0197, 189), (0.0079, 247), (0.002, 333)]
)
def test_kl_to_standard_normal_golden_values_at_dim_128(variance, expected):
    # Figures of the method specification: unit mean, isotropic variance, summed over 128 dimensions.
    loc = torch.zeros(1, 128, dtype=torch.float64)
    loc[0, 0] = 1.0
    value = kl_to_standard_normal(IsotropicNormal(loc, torch.tensor([variance], dtype=torch.float64))).item()
    # The specification prints variances to two digits, which is what limits the agreement.
    assert value == pytest.approx(expected, rel=5e-3)


def test_array_forms_round_trip():
    points = (PointMass(torch.randn(3, 2)), RatedPoint(torch.randn(3, 2), torch.rand(3)))
    for dist in (_iso(), _diag(), *points, VonMisesFisher(torch.eye(3), torch.rand(3))):
        kind, arrays = to_arrays(dist)
        back = from_arrays(kind, arrays)
        assert type(back) is type(dist)
        for name, value in to_arrays(back)[1].items():
            assert torch.equal(value, arrays[name])


def test_array_form_of_a_foreign_distribution_is_refused():
    with pytest.raises(TypeError, match="no array form"):
        to_arrays(torch.distributions.Normal(torch.zeros(2), torch.ones(2)))


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
    kind, arrays = to_arrays(dist)
    assert kind == "test_laplace"
    back = from_arrays(kind, arrays)
    assert type(back) is _Laplace
    assert torch.equal(back.loc, loc)
    assert torch.equal(back.diversity, diversity)
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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
