"""The Laplace approximation: its Hessian, the variances that follow from it, and the loss that compares settings."""

import pytest
import torch
import torch.nn.functional as F
from bench.methods import laplace
from bench.methods.distributions import DiagonalNormal
from bench.methods.heads import MeanHead
from bench.methods.laplace import Laplace, RelativeLikelihood, WeightPosterior, fixed_hessian, variance_on_sphere
from bench.methods.pfe import MutualLikelihood


def _data(count=14, features=3, dim=4):
    g = torch.Generator().manual_seed(3)
    labels = torch.randint(4, (count,), generator=g)
    labels[0] = 9  # one image without another of its class
    x = torch.randn(count, features, generator=g, dtype=torch.float64)
    return x, torch.randn(dim, features + 1, generator=g, dtype=torch.float64), labels


def _loss(weight, x, labels, margin, held):
    """The loss by loops, with the other image of every pair taken from ``held``."""
    u = F.normalize(x @ weight[:, :-1].mT + weight[:, -1], dim=-1)
    total = x.new_zeros(())
    for i in range(len(x)):
        genuine = [j for j in range(len(x)) if labels[i] == labels[j] and i != j]
        near = [j for j in range(len(x)) if labels[i] != labels[j] and (held[i] - held[j]).norm() < margin]
        for partners, sign in ((genuine, 1.0), (near, -1.0)):
            for j in partners:
                pair = (u[i] - held[j]).square().sum() + (held[i] - u[j]).square().sum()
                total = total + sign * pair / 2 / len(partners)
    return total


@pytest.mark.parametrize("margin", [0.2, 1.0, 2.0])
def test_the_hessian_is_that_of_autograd(margin, monkeypatch):
    x, weight, labels = _data()
    raw = x @ weight[:, :-1].mT + weight[:, -1]
    held = F.normalize(raw, dim=-1)
    full = torch.autograd.functional.hessian(lambda w: _loss(w, x, labels, margin, held), weight)
    expected = full.reshape(weight.numel(), weight.numel()).diagonal().reshape(weight.shape)
    torch.testing.assert_close(fixed_hessian(raw, x, labels, margin), expected, rtol=1e-10, atol=1e-10)
    monkeypatch.setattr(laplace, "_BLOCK_ELEMENTS", 30)  # blocks of two images
    torch.testing.assert_close(fixed_hessian(raw, x, labels, margin), expected, rtol=1e-10, atol=1e-10)


def _posterior(prior):
    x, weight, labels = _data()
    head, posterior = MeanHead(3, 4).double(), WeightPosterior(3, 4, prior).double()
    head.weight.data, head.bias.data = weight[:, :-1].clone(), weight[:, -1].clone()
    posterior.hessian.copy_(fixed_hessian(head(x), x, labels, 1.0).clamp_min(0))
    return x, head, posterior


def test_the_variances_are_those_of_drawn_weights():
    x, head, posterior = _posterior(400.0)
    g = torch.Generator().manual_seed(0)
    mean = torch.cat([head.weight, head.bias[:, None]], 1).detach()
    deviation = (posterior.hessian + posterior.prior).rsqrt()
    draws = mean + deviation * torch.randn(40_000, *mean.shape, generator=g, dtype=torch.float64)
    raw = torch.einsum("bf,sdf->sbd", F.pad(x, (0, 1), value=1.0), draws)
    with torch.no_grad():
        torch.testing.assert_close(posterior(x), raw.var(0), rtol=0.04, atol=0)
        on_sphere = variance_on_sphere(head(x), posterior(x))
    # First order only: an image near the origin, or a dimension that its direction fills, needs more.
    measured = F.normalize(raw, dim=-1).var(0)
    assert ((on_sphere - measured).abs() <= 0.1 * measured.mean(-1, keepdim=True)).all()


def test_the_variances_on_the_sphere_are_those_of_the_projection():
    g = torch.Generator().manual_seed(1)
    raw = torch.randn(5, 6, generator=g, dtype=torch.float64)
    variance = torch.rand(5, 6, generator=g, dtype=torch.float64)
    for z, v, found in zip(raw, variance, variance_on_sphere(raw, variance)):
        u = z / z.norm()
        projection = torch.eye(6, dtype=torch.float64) - u.outer(u)
        torch.testing.assert_close(found, (projection @ v.diag() @ projection).diagonal() / z.norm() ** 2)


def test_an_infinitely_narrow_prior_leaves_a_point():
    x, head, posterior = _posterior(1e30)
    with torch.no_grad():
        d = Laplace().distribution(head(x), posterior(x))
    assert float(d.variance.max()) < 1e-25
    torch.testing.assert_close(d.mean, F.normalize(head(x).detach(), dim=-1))


def test_variances_that_are_not_positive_are_refused():
    with pytest.raises(ValueError, match="must be positive"):
        Laplace().distribution(torch.ones(1, 2), torch.tensor([[1.0, 0.0]]))


def test_the_loss_is_the_mutual_likelihood_at_the_best_factor(monkeypatch):
    g = torch.Generator().manual_seed(2)
    loc = F.normalize(torch.randn(40, 5, generator=g, dtype=torch.float64), dim=-1)
    variance = 0.1 + torch.rand(40, 5, generator=g, dtype=torch.float64)
    labels = torch.randint(8, (40,), generator=g)
    found = float(RelativeLikelihood()(DiagonalNormal(loc, variance), labels))

    def at(factor):
        return float(MutualLikelihood()(DiagonalNormal(loc, factor * variance), labels))

    factors = torch.logspace(-2, 2, 401).tolist()
    assert found == pytest.approx(min(map(at, factors)), abs=1e-3)
    assert all(found <= at(factor) + 1e-12 for factor in factors)
    monkeypatch.setattr(laplace, "_BLOCK_ELEMENTS", 50)
    assert float(RelativeLikelihood()(DiagonalNormal(loc, variance), labels)) == pytest.approx(found, rel=1e-12)
    with pytest.raises(ValueError, match="at least two images"):
        RelativeLikelihood()(DiagonalNormal(loc, variance), torch.arange(40))
