"""The von Mises-Fisher distribution against golden values, mpmath, SciPy, quadrature and its own moments."""

import csv
import itertools
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from bench.methods.distributions import (
    VonMisesFisher,
    vmf_log_normalizer,
    vmf_log_normalizer_ratio,
    vmf_log_uniform,
    vmf_mean_resultant_length,
)
from bench.methods.distributions.von_mises_fisher import PROPOSALS, _proposals, sample_cosine
from scipy import integrate, stats
from torch.distributions import kl_divergence

from .sphere import sphere

F64 = torch.float64
GOLDEN = list(csv.DictReader((Path(__file__).parents[1] / "golden" / "vmf.csv").open()))


def _rel(value, truth):
    return abs(float(value) - truth) / max(1.0, abs(truth))


@pytest.mark.parametrize("row", GOLDEN, ids=lambda r: f"d{r['dim']}-k{r['kappa']}")
def test_golden_values_and_their_gradients(row):
    dim = int(row["dim"])
    truth = {key: float(value) for key, value in row.items()}
    k = torch.tensor(truth["kappa"], dtype=F64, requires_grad=True)
    log, mean = vmf_log_normalizer(k, dim), vmf_mean_resultant_length(k, dim)
    (slope,) = torch.autograd.grad(log, k, create_graph=True)
    (curve,) = torch.autograd.grad(slope, k)
    (mean_slope,) = torch.autograd.grad(mean, k)
    assert _rel(log.detach(), truth["log_normalizer"]) < 1e-10
    assert abs(mean.item() - truth["mean_resultant_length"]) < 1e-8
    assert abs(slope.item() + truth["mean_resultant_length"]) < 1e-8
    assert abs(mean_slope.item() - truth["mean_resultant_length_derivative"]) < 1e-8
    assert abs(curve.item() + truth["mean_resultant_length_derivative"]) < 1e-8
    assert _rel(VonMisesFisher(torch.eye(dim, dtype=F64)[0], k).entropy().detach(), truth["entropy"]) < 1e-9
    single = k.detach().float()
    assert _rel(vmf_log_normalizer(single, dim), truth["log_normalizer"]) < 2e-6
    assert abs(vmf_mean_resultant_length(single, dim).item() / truth["mean_resultant_length"] - 1) < 2e-6


@pytest.mark.parametrize("dim", [2, 3, 5, 7, 33, 256, 2048, 4096])
def test_against_mpmath_from_zero_to_a_million(dim):
    nu = mpmath.mpf(dim) / 2 - 1
    with mpmath.workdps(40):
        uniform = mpmath.loggamma(nu + 1) - mpmath.log(2) - (nu + 1) * mpmath.log(mpmath.pi)
        for kappa in (1e-8, 1e-3, 0.5, 7.0, 90.0, 3000.0, 1e6, 3e8):
            bessel = mpmath.besseli(nu, kappa)
            log = nu * mpmath.log(kappa) - (nu + 1) * mpmath.log(2 * mpmath.pi) - mpmath.log(bessel)
            mean = mpmath.besseli(nu + 1, kappa) / bessel
            k = torch.tensor(kappa, dtype=F64, requires_grad=True)
            found = vmf_mean_resultant_length(k, dim)
            (slope,) = torch.autograd.grad(found, k)
            assert _rel(vmf_log_normalizer(k.detach(), dim), float(log)) < 1e-12
            assert abs(found.item() / float(mean) - 1) < 1e-12
            assert abs(slope.item() / float(1 - mean**2 - (dim - 1) * mean / kappa) - 1) < 1e-7
            # What mutual likelihood scores live on: relative to itself, not to log C(0).
            assert abs(vmf_log_normalizer_ratio(k, dim).item() / float(log - uniform) - 1) < 1e-11
            ratio32 = vmf_log_normalizer_ratio(k.float(), dim).item()
            assert abs(ratio32 / float(log - uniform) - 1) < 2e-6
        assert vmf_log_uniform(dim) == pytest.approx(float(uniform), rel=1e-14)
    zero = torch.zeros((), dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(vmf_mean_resultant_length(zero, dim), zero)
    assert vmf_log_normalizer_ratio(zero, dim).item() == 0.0
    assert vmf_mean_resultant_length(zero, dim).item() == 0.0
    assert slope.item() == pytest.approx(1 / dim, rel=1e-12)


def test_extreme_concentrations_stay_finite_and_dtype_is_kept():
    for dtype in (torch.float16, torch.float32, F64):
        k = torch.tensor([0.0, 1e-8, 6e4] + ([] if dtype == torch.float16 else [1e8, 1e30]), dtype=dtype)
        mean = vmf_mean_resultant_length(k, 64)
        assert mean.dtype == dtype
        assert ((mean >= 0) & (mean <= 1)).all()
        assert vmf_log_normalizer(k, 64).dtype == dtype
    k = torch.tensor([0.0, 1e8], requires_grad=True)
    dist = VonMisesFisher(torch.randn(2, 64), k)
    (dist.log_prob(dist.loc.detach()).sum() + dist.entropy().sum() + dist.mean.sum()).backward()
    assert torch.isfinite(k.grad).all()


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("kappa", [0.0, 0.7, 30.0])
def test_density_integrates_to_one_and_entropy_and_kl_are_integrals(dim, kappa):
    mu, other = torch.tensor([0.6, 0.8, 0.0][:dim], dtype=F64), torch.tensor([0.0, 1.0, 0.0][:dim], dtype=F64)
    p = VonMisesFisher(mu, torch.tensor(kappa, dtype=F64))
    q = VonMisesFisher(other, torch.tensor(4.0, dtype=F64))

    # Exact to rounding: equal steps for periodic functions, Gauss-Legendre for the height on the sphere.
    angles = torch.arange(120, dtype=F64) * (2 * np.pi / 120)
    circle = torch.stack([angles.cos(), angles.sin()], -1)
    z, area = (circle, 2 * np.pi / 120) if dim == 2 else sphere(60, 120)

    def integral(f):
        return float((f(z) * area).sum())

    assert integral(lambda z: p.log_prob(z).exp()) == pytest.approx(1.0, abs=1e-9)
    assert p.entropy().item() == pytest.approx(integral(lambda z: -p.log_prob(z) * p.log_prob(z).exp()), abs=1e-8)
    kl = integral(lambda z: (p.log_prob(z) - q.log_prob(z)) * p.log_prob(z).exp())
    assert kl_divergence(p, q).item() == pytest.approx(kl, abs=1e-8)
    uniform = integral(lambda z: (p.log_prob(z) - vmf_log_uniform(dim)) * p.log_prob(z).exp())
    assert p.kl_to_uniform().item() == pytest.approx(uniform, abs=1e-8)


def test_kl_is_zero_at_itself_positive_elsewhere_and_agrees_with_scipy_samples():
    mu = torch.nn.functional.normalize(torch.randn(5, 16, generator=torch.Generator().manual_seed(0)), dim=-1)
    p = VonMisesFisher(mu, torch.tensor([0.0, 1.0, 50.0, 2e4, 1e6]))
    assert kl_divergence(p, p).abs().max() < 1e-6
    q = VonMisesFisher(mu.roll(1, 0), torch.tensor([3.0, 1.0, 80.0, 2e4, 10.0]))
    assert (kl_divergence(p, q) > 0).all()
    a, b = map(VonMisesFisher, mu[:2].double(), torch.tensor([20.0, 9.0], dtype=F64))
    z = torch.from_numpy(stats.vonmises_fisher(a.loc.numpy(), 20.0, seed=1).rvs(40_000))
    draws = a.log_prob(z) - b.log_prob(z)
    assert kl_divergence(a, b).item() == pytest.approx(draws.mean().item(), abs=4 * draws.std().item() / 200)
    truth = stats.vonmises_fisher(a.loc.numpy(), 20.0).logpdf(z[:50].numpy())
    assert a.log_prob(z[:50]).numpy() == pytest.approx(truth, abs=1e-9)


def _cosine_cdf(w, dim, kappa):
    """CDF of the cosine to the mode, by quadrature in the angle around the bulk."""
    grid = np.linspace(0, np.pi, 100_001)
    log = (dim - 2) * np.log(np.maximum(np.sin(grid), 1e-300)) + kappa * np.cos(grid)
    density = np.exp(log - log.max())
    total = integrate.cumulative_simpson(density, x=grid, initial=0)
    return 1 - np.interp(np.arccos(np.clip(w, -1, 1)), grid, total / total[-1])


@pytest.mark.parametrize(
    ("dim", "kappa", "device"),
    [
        *itertools.product([2, 3, 8, 32, 128, 512, 2048], [0.1, 5.0, 11.0, 50.0, 128.0, 512.0, 2000.0, 1e5], ["cpu"]),
        *itertools.product([2, 3, 128], [0.1, 50.0, 1e5], ["cuda"]),
    ],
)
def test_sampler_has_the_right_moments_and_distribution(dim, kappa, device, monkeypatch):
    if device == "cuda":  # as many proposals at once as there
        monkeypatch.delitem(PROPOSALS, "cpu")
    torch.manual_seed(dim + int(kappa))
    n = 20_000
    w, sine = sample_cosine(torch.full((n,), kappa, dtype=F64), dim)
    k = torch.tensor(kappa, dtype=F64, requires_grad=True)
    mean = vmf_mean_resultant_length(k, dim)
    (variance,) = torch.autograd.grad(mean, k)
    assert abs(w.mean() - mean.detach()) < 4 * (variance / n).sqrt()
    second = w.square()
    expected = (variance + mean.detach() ** 2).item()
    assert abs(second.mean() - expected) < 4 * second.std() / math.sqrt(n)
    assert stats.kstest(w[:4000].numpy(), lambda x: _cosine_cdf(x, dim, kappa)).pvalue > 1e-4
    assert (w.square() + sine.square() - 1).abs().max() < 1e-12


def test_a_million_draws_are_unit_vectors_without_nan():
    torch.manual_seed(0)
    k = torch.logspace(-3, 6, 1000)
    for dim in (2, 3, 64):
        dist = VonMisesFisher(torch.randn(1000, dim), k)
        for _ in range(4 if dim < 64 else 2):
            z = dist.rsample((100,))
            assert torch.isfinite(z).all()
            assert (z.norm(dim=-1) - 1).abs().max() < 3e-6


def test_draws_are_uniform_around_the_mode():
    torch.manual_seed(1)
    mu = torch.nn.functional.normalize(torch.randn(6, dtype=F64), dim=0)
    z = VonMisesFisher(mu, torch.tensor(7.0, dtype=F64)).sample((50_000,))
    mean, covariance = z.mean(0), torch.cov(z.T)
    k = torch.tensor(7.0, dtype=F64, requires_grad=True)
    a = vmf_mean_resultant_length(k, 6)
    (along,) = torch.autograd.grad(a, k)
    across = (a / k).detach()
    truth = across * torch.eye(6, dtype=F64) + (along - across) * torch.outer(mu, mu)
    assert (mean - a.detach() * mu).abs().max() < 5 * (across / 50_000).sqrt()
    assert (covariance - truth).abs().max() < 0.003


@pytest.mark.parametrize(
    ("dim", "kappa"), [(2, 3.0), (3, 2.0), (5, 40.0), (8, 10.0), (32, 10.0), (64, 1.0), (512, 100.0)]
)
def test_the_gradient_of_draws_has_the_mean_of_the_truth(dim, kappa):
    torch.manual_seed(0)
    n = 20_000
    k = torch.tensor(kappa, dtype=F64, requires_grad=True)
    (truth,) = torch.autograd.grad(vmf_mean_resultant_length(k, dim), k)

    def mean_slope(gradient):
        many = torch.full((n,), kappa, dtype=F64, requires_grad=True)
        z = VonMisesFisher(torch.eye(dim, dtype=F64)[0], many, gradient=gradient).rsample()
        (slope,) = torch.autograd.grad(z[:, 0].sum(), many)
        return slope.mean().item(), slope.std().item() / math.sqrt(n)

    for gradient in ("implicit", "auto"):
        mean, error = mean_slope(gradient)
        tolerance = 4 * error + (0.006 * truth.item() if gradient == "auto" and dim >= 64 else 0)
        assert abs(mean - truth.item()) < tolerance
    if dim == 3:  # why small dimensions do not use the pathwise gradient: it is a third too small here
        mean, error = mean_slope("pathwise")
        assert mean / truth.item() == pytest.approx(0.69, abs=0.03)


def test_the_implicit_gradient_is_that_of_the_inverse_cdf():
    # On S^2 the inverse CDF is known: w = 1 + log(u + (1-u) e^{-2k})/k at fixed u.
    kappa = torch.tensor([0.5, 4.0, 60.0], dtype=F64)
    torch.manual_seed(0)
    k = kappa.repeat_interleave(200).requires_grad_()
    w, _ = sample_cosine(k, 3, implicit=True)
    (slope,) = torch.autograd.grad(w.sum(), k)
    kk = k.detach().requires_grad_()
    u = ((kk * (w.detach() - 1)).exp() - (-2 * kk).exp()) / (1 - (-2 * kk).exp())
    again = 1 + torch.log(u.detach() + (1 - u.detach()) * (-2 * kk).exp()) / kk
    (truth,) = torch.autograd.grad(again.sum(), kk)
    assert slope.numpy() == pytest.approx(truth.numpy(), rel=1e-6, abs=1e-9)


def test_batches_broadcast_expand_and_differentiate_in_loc():
    loc = torch.randn(4, 1, 5, dtype=F64, requires_grad=True)
    dist = VonMisesFisher(loc, torch.tensor([1.0, 20.0, 300.0], dtype=F64))
    assert dist.batch_shape == (4, 3)
    assert dist.rsample((7,)).shape == (7, 4, 3, 5)
    assert dist.expand((2, 4, 3)).log_prob(dist.sample()).shape == (2, 4, 3)
    dist.rsample().square().sum(-1).sum().backward()  # constant: unit vectors
    assert loc.grad.abs().max() < 1e-9
    assert dist.loc.norm(dim=-1).sub(1).abs().max() < 1e-12


def test_bad_parameters_say_so():
    with pytest.raises(ValueError, match="zero vector"):
        VonMisesFisher(torch.zeros(3), torch.tensor(1.0), validate_args=True)
    with pytest.raises(ValueError, match="concentration"):
        VonMisesFisher(torch.ones(3), torch.tensor(-1.0), validate_args=True)
    with pytest.raises(ValueError, match="at least 2"):
        VonMisesFisher(torch.ones(1), torch.tensor(1.0))
    with pytest.raises(ValueError, match="finite"):
        VonMisesFisher(torch.ones(3), torch.tensor(float("nan")), validate_args=False).sample()
    with pytest.raises(ValueError, match="dim"):
        vmf_log_normalizer(torch.tensor(1.0), 1)
    with pytest.raises(ValueError, match="gradient"):
        VonMisesFisher(torch.ones(3), torch.tensor(1.0), gradient="none")


def test_proposals_at_once_are_as_many_and_none_is_left_without():
    k = torch.tensor([0.0, 3.0, 1e6], dtype=F64).repeat(2000)
    torch.manual_seed(0)
    for dim in (2, 128):
        e, accept = _proposals(k, dim, 32)
        assert e.shape == accept.shape == (32, 6000)
        assert accept.any(0).all()
        assert accept.double().mean() > 0.65


def _log_i(order, k):
    """Log of the modified Bessel function: mpmath's, and its expansion for large arguments (DLMF 10.40.1)."""
    if k < 2e4:
        return mpmath.log(mpmath.besseli(order, k))
    term = total = mpmath.mpf(1)
    for j in range(1, 30):
        term *= -(4 * order**2 - (2 * j - 1) ** 2) / (8 * j * k)
        total += term
    return k - mpmath.log(2 * mpmath.pi * k) / 2 + mpmath.log(total)


def _exact_density(k, dim, away):
    """Log density at 1 - cos = ``away``, entropy, divergence from the uniform distribution, slope of the density."""
    order = mpmath.mpf(dim) / 2 - 1
    log_c = order * mpmath.log(k) - (order + 1) * mpmath.log(2 * mpmath.pi) - _log_i(order, k)
    length = mpmath.exp(_log_i(order + 1, k) - _log_i(order, k))
    uniform = mpmath.loggamma(order + 1) - mpmath.log(2) - (order + 1) * mpmath.log(mpmath.pi)
    entropy = -log_c - k * length
    return log_c + k * (1 - away), entropy, -uniform - entropy, 1 - away - length


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 3, 128])
@pytest.mark.parametrize("k", [9e3, 1.1e4, 1e7, 1e10, 1e15, 1e18, 1e20, 1e30])
def test_narrow_densities_keep_their_digits(k, dim, dtype):
    """At the mode and 1 - cos = 2 / k from it; k cos and log C(k) cancel to a part in 1e30 of each."""
    kappa = torch.tensor(k, dtype=dtype, requires_grad=True)
    step = torch.tensor(2.0, dtype=torch.float64).sqrt() / kappa.detach().double().sqrt()
    mode = torch.eye(dim, dtype=dtype)[0]
    off = torch.nn.functional.normalize(mode.double() + step * torch.eye(dim, dtype=torch.float64)[1], dim=0).to(dtype)
    away = sum((mpmath.mpf(a) - mpmath.mpf(b)) ** 2 for a, b in zip(off.tolist(), mode.tolist())) / 2
    dist = VonMisesFisher(mode, kappa)
    with mpmath.workdps(100):
        exact = mpmath.mpf(kappa.item())
        for point, gap in ((mode, mpmath.mpf(0)), (off, away)):
            density, entropy, divergence, slope = _exact_density(exact, dim, gap)
            eps = torch.finfo(dtype).eps * (1 if k > 1e4 else k)
            found = dist.log_prob(point)
            assert abs(found.item() - density) <= 200 * eps * (abs(density) + 1)
            assert abs(dist.entropy().item() - entropy) <= 200 * eps * (abs(entropy) + 1)
            assert abs(dist.kl_to_uniform().item() - divergence) <= 200 * eps * divergence
            (grad,) = torch.autograd.grad(found, kappa)
            assert abs(grad.item() - slope) <= 200 * eps * (dim / k) + 1e-37


def test_divergence_of_narrow_distributions():
    for kp, kq in ((1e12, 3e12), (1e30, 2e30), (1e3, 1e20), (1e20, 50.0)):
        p, q = (VonMisesFisher(torch.eye(3, dtype=F64)[0], torch.tensor(k, dtype=F64)) for k in (kp, kq))
        with mpmath.workdps(120):
            a, b = mpmath.mpf(kp), mpmath.mpf(kq)
            length = mpmath.coth(a) - 1 / a
            log_c = [mpmath.log(k / (2 * mpmath.pi)) - k - mpmath.log1p(-mpmath.exp(-2 * k)) for k in (a, b)]
            exact = (a - b) * length + log_c[0] - log_c[1]
        assert torch.distributions.kl_divergence(p, q).item() == pytest.approx(float(exact), rel=1e-13)
