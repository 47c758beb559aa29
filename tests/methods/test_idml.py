"""IDML against a plain loop, its limits and the sign of its gradients."""

import math

import pytest
import torch
from bench.methods.distributions import PointMass, RatedPoint
from bench.methods.idml import Idml, IntrospectiveProxyAnchor, introspective_similarity
from bench.methods.proxies import ProxyAnchorLoss

F64 = torch.float64
SCALE, MARGIN, BIAS, TEMPERATURE = 7.0, 0.1, 4.0, 5.0
LABELS = torch.tensor([0, 2, 2, 1, 0])


def _params(bias):
    return Idml.Params(scale=SCALE, margin=MARGIN, bias=bias, temperature=TEMPERATURE)


@pytest.fixture
def objective():
    torch.manual_seed(0)
    return IntrospectiveProxyAnchor(4, 3, _params(BIAS)).double()


@pytest.fixture
def batch():
    gen = torch.Generator().manual_seed(1)
    return torch.randn(5, 3, dtype=F64, generator=gen), torch.randn(5, 2, dtype=F64, generator=gen)


def _looped(points, levels, proxies):
    similarity = []
    for z, beta in zip(points, levels):
        row = []
        for p in proxies:
            a, b = ([v / math.hypot(*x) for v in x] for x in (z, p))
            alpha = sum((v - w) ** 2 for v, w in zip(a, b))
            row.append(1 - alpha / 2 * math.exp(-(beta + BIAS) / (TEMPERATURE * alpha)))
        similarity.append(row)
    pull = push = 0.0
    for c in range(len(proxies)):
        own = [math.exp(-SCALE * (s[c] - MARGIN)) for s, y in zip(similarity, LABELS) if y == c]
        other = [math.exp(SCALE * (s[c] + MARGIN)) for s, y in zip(similarity, LABELS) if y != c]
        pull, push = pull + math.log1p(sum(own)), push + math.log1p(sum(other))
    return pull / 3 + push / 4


def test_the_loss_is_that_of_a_plain_loop(objective, batch):
    points, u = batch
    images = Idml().distribution(points, u)
    wanted = _looped(points.tolist(), [a * a + b * b for a, b in u.tolist()], objective.weight.tolist())
    assert objective(images, LABELS).item() == pytest.approx(wanted, rel=1e-12)


def test_gradients_are_those_of_finite_differences(objective, batch):
    points, u = (x.requires_grad_() for x in batch)
    assert torch.autograd.gradcheck(lambda z, v: objective(Idml().distribution(z, v), LABELS), (points, u))


def test_without_bias_and_uncertainty_it_is_proxy_anchor(batch):
    points = batch[0]
    torch.manual_seed(0)
    plain = ProxyAnchorLoss(4, 3, SCALE, MARGIN).double()
    torch.manual_seed(0)
    introspective = IntrospectiveProxyAnchor(4, 3, _params(0.0)).double()
    found = introspective(RatedPoint(points, torch.zeros(5, dtype=F64)), LABELS)
    torch.testing.assert_close(found, plain(PointMass(points), LABELS), rtol=1e-12, atol=0)


def test_uncertainty_brings_an_image_nearer_to_all_proxies_and_weakens_their_pull():
    cosines = torch.linspace(-1.0, 0.9, 20, dtype=F64).expand(3, 20).clone().requires_grad_()
    found = introspective_similarity(cosines, torch.tensor([0.0, 1.0, 10.0], dtype=F64), 0.0, TEMPERATURE)
    assert (found.diff(dim=0) > 0).all()
    assert (found[1:] > cosines[1:]).all()
    found[2].sum().backward()
    # The slope in the cosine is (1 + beta / (t alpha)) exp(-beta / (t alpha)): always below that of the cosine, 1.
    ratio = 10.0 / (TEMPERATURE * 2 * (1 - cosines[2].detach()))
    torch.testing.assert_close(cosines.grad[2], (1 + ratio) * (-ratio).exp(), rtol=1e-10, atol=1e-12)
    same = introspective_similarity(torch.ones(1, 1, requires_grad=True), torch.ones(1), BIAS, TEMPERATURE)
    assert same.item() == 1.0


def test_images_are_rated_by_the_norm_of_their_uncertainty_embedding():
    images = Idml().distribution(torch.randn(3, 4), torch.tensor([[3.0, 4.0], [0.0, 1.0], [2.0, 0.0]]))
    assert Idml().confidence(images).tolist() == [-25.0, -1.0, -4.0]
