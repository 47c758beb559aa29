"""Bayesian triplet loss against exact quadrature, draws and a plain loop."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bench.methods.bayesian_triplet import BayesianTriplet, BayesianTripletLoss, triplet_moments
from bench.methods.distributions import IsotropicNormal
from scipy import stats

F64 = torch.float64
LABELS = torch.tensor([0, 1, 0, 2, 2, 0])


def _images(count=6, dim=4, spread=0.3, seed=0):
    gen = torch.Generator().manual_seed(seed)
    means = F.normalize(torch.randn(count, dim, dtype=F64, generator=gen), dim=-1)
    return IsotropicNormal(means, spread * (0.1 + torch.rand(count, dtype=F64, generator=gen)))


def _quadrature(images, a, p, n):
    """Mean and variance of tau by products of three Gauss-Hermite rules, exact for polynomials of degree 9."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()
    mean = variance = 0.0
    for d in range(images.dim):
        x, y, z = (
            float(images.loc[i, d]) + math.sqrt(float(images.variance[i])) * nodes.reshape(shape)
            for i, shape in ((a, (-1, 1, 1)), (p, (1, -1, 1)), (n, (1, 1, -1)))
        )
        tau = (x - y) ** 2 - (x - z) ** 2
        first, second = (np.einsum("abc,a,b,c->", tau**power, weights, weights, weights) for power in (1, 2))
        mean, variance = mean + first, variance + second - first**2
    return mean, variance


def test_the_moments_are_those_of_exact_quadrature():
    images = _images()
    for a, p in ((0, 2), (2, 0), (3, 4)):
        found = triplet_moments(images, torch.tensor([a]), torch.tensor([p]))
        for n in set(range(6)) - {a, p}:
            assert [x[0, n].item() for x in found] == pytest.approx(_quadrature(images, a, p, n), rel=1e-12)


def test_the_normal_approximation_says_how_often_the_positive_is_nearer():
    images = _images(3, 64, spread=0.05)
    mean, variance = triplet_moments(images, torch.tensor([0]), torch.tensor([1]))
    torch.manual_seed(0)
    a, p, n = images.rsample((100_000,)).unbind(1)
    nearer = ((a - p).square().sum(-1) < (a - n).square().sum(-1)).double().mean()
    assert stats.norm.cdf(-(mean / variance.sqrt())[0, 2].item()) == pytest.approx(nearer.item(), abs=0.01)


@pytest.mark.parametrize("margin", [0.0, 0.4])
def test_the_loss_is_that_of_a_plain_loop(margin):
    images, dim, weight = _images(), 4, 0.3
    losses = []
    for a, p, n in itertools.permutations(range(6), 3):
        if LABELS[a] == LABELS[p] != LABELS[n]:
            mean, variance = _quadrature(images, a, p, n)
            losses.append(-stats.norm.logcdf(-margin, mean, math.sqrt(variance)))
    prior = stats.multivariate_normal(np.zeros(dim), np.eye(dim) / dim)
    divergences = []
    for mu, v in zip(images.loc.tolist(), images.variance.tolist()):
        expected = -prior.logpdf(mu) + 0.5 * dim * dim * v  # of -log prior
        divergences.append(expected - stats.multivariate_normal(mu, v * np.eye(dim)).entropy())
    wanted = np.mean(losses) + weight * np.mean(divergences)
    assert BayesianTripletLoss(margin, weight)(images, LABELS).item() == pytest.approx(wanted, rel=1e-12)
    assert len(losses) == 6 * 3 + 2 * 4


def test_gradients_are_those_of_finite_differences():
    images, loss = _images(), BayesianTripletLoss(0.2, 0.1)
    inputs = (images.loc.requires_grad_(), images.variance.requires_grad_())
    assert torch.autograd.gradcheck(lambda mu, v: loss(IsotropicNormal(mu, v), LABELS), inputs)


def test_narrow_embeddings_pay_for_violated_triplets_only():
    angles = torch.tensor([0.0, 0.1, 3.0, 3.1], dtype=F64)
    means = torch.stack([angles.cos(), angles.sin()], 1)
    narrow = IsotropicNormal(means, torch.full((4,), 1e-8, dtype=F64))
    loss = BayesianTripletLoss(0.0, 0.0)
    assert loss(narrow, torch.tensor([0, 0, 1, 1])).item() < 1e-12
    assert loss(narrow, torch.tensor([0, 1, 0, 1])).item() > 1e4


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_a_batch_without_triplets_is_refused(labels):
    with pytest.raises(ValueError, match="batches of two classes"):
        BayesianTripletLoss(0.0, 0.0)(_images(3), torch.tensor(labels))


def test_images_start_as_wide_as_the_prior_and_are_rated_by_their_variance():
    method, raw = BayesianTriplet(), torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    spread = torch.tensor([[0.0], [1.0], [3.0], [-1.0], [-3.0]])
    found = method.distribution(raw, spread)
    torch.testing.assert_close(found.variance * 8, torch.tensor([1.0, 2.0, 4.0, 0.5, 0.25]))
    torch.testing.assert_close(found.loc.norm(dim=-1), torch.ones(5))
    assert method.confidence(found).argsort().tolist() == [2, 1, 0, 3, 4]
