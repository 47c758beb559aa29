"""The non-isotropic von Mises-Fisher against integrals over the sphere and its isotropic limit."""

import math

import numpy as np
import pytest
import torch
from bench.methods.distributions import NonIsotropicVonMisesFisher, VonMisesFisher, nivmf_log_prob

F64 = torch.float64
NODES, WEIGHTS = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(300))
PHI = torch.arange(600, dtype=F64) * (2 * math.pi / 600)
SINE = (1 - NODES**2).sqrt()
SPHERE = torch.stack([SINE[:, None] * PHI.cos(), SINE[:, None] * PHI.sin(), NODES[:, None].expand(300, 600)], -1)
AREA = (WEIGHTS[:, None] * (2 * math.pi / 600)).expand(300, 600)


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
    mean = (SPHERE * (dist.log_prob(SPHERE).exp() * AREA)[..., None]).sum((0, 1))
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
