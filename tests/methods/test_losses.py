"""Margin losses against pytorch-metric-learning and closed-form gradients; behaviour at the ends of the cosine."""

import math

import pytest
import torch
from bench.methods.distributions import IsotropicNormal, PointMass
from bench.methods.losses import ArcFaceLoss, CosFaceLoss, arcface_cosines
from pytorch_metric_learning import losses as pml


def _data(n=12, c=7, d=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    return x, torch.randint(c, (n,), generator=g)


def _with_reference_weights(ours, reference):
    with torch.no_grad():
        ours.weight.copy_(reference.W.T)
    return ours


@pytest.mark.parametrize("margin", [0.0, 0.2, 0.5, 1.0])
def test_arcface_equals_pytorch_metric_learning(margin):
    x, y = _data()
    reference = pml.ArcFaceLoss(7, 5, margin=math.degrees(margin), scale=16).double()
    ours = _with_reference_weights(ArcFaceLoss(7, 5, 16.0, margin).double(), reference)
    assert ours(PointMass(x), y).item() == pytest.approx(reference(x, y).item(), rel=1e-6)


@pytest.mark.parametrize("margin", [0.0, 0.2, 0.7])
def test_cosface_equals_pytorch_metric_learning(margin):
    x, y = _data()
    reference = pml.CosFaceLoss(7, 5, margin=margin, scale=16).double()
    ours = _with_reference_weights(CosFaceLoss(7, 5, 16.0, margin).double(), reference)
    assert ours(PointMass(x), y).item() == pytest.approx(reference(x, y).item(), rel=1e-10)


@pytest.mark.parametrize("margin", [0.1, 0.5, 1.3])
def test_arcface_target_and_its_slope_are_the_closed_form(margin):
    angle = torch.linspace(0.05, math.pi - 0.05, 200, dtype=torch.float64)
    cosine = angle.cos().requires_grad_()
    value = arcface_cosines(cosine, margin)
    value.sum().backward()
    inside = angle + margin < math.pi
    expected = torch.where(inside, (angle + margin).cos(), angle.cos() - margin * math.sin(margin))
    slope = torch.where(inside, (angle + margin).sin() / angle.sin(), 1.0)
    torch.testing.assert_close(value.detach(), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(cosine.grad, slope, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [ArcFaceLoss, CosFaceLoss])
def test_cosines_of_one_and_minus_one_give_finite_gradients(loss, dtype):
    torch.manual_seed(0)
    module = loss(3, 4, 64.0, 0.5).to(dtype)
    x = torch.cat([module.weight.detach()[:1], -module.weight.detach()[:1], torch.zeros(1, 4, dtype=dtype)])
    x.requires_grad_()
    module(PointMass(x), torch.tensor([0, 0, 1])).backward()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(module.weight.grad).all()


def test_a_vanishing_variance_gives_the_deterministic_loss():
    x, y = _data()
    unit = x / x.norm(dim=1, keepdim=True)
    torch.manual_seed(0)
    loss = CosFaceLoss(7, 5, 16.0, 0.2).double()
    sampled = loss(IsotropicNormal(unit, torch.full((12,), 1e-16, dtype=torch.float64)), y)
    assert sampled.item() == pytest.approx(loss(PointMass(unit), y).item(), abs=1e-5)
