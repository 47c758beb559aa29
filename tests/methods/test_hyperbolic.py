"""Distances in the Poincare ball against Moebius addition in high precision, their loss against a plain loop."""

import math

import mpmath
import pytest
import torch
from bench.methods.distributions import IsotropicNormal, PointMass
from bench.methods.hyperbolic import Hyperbolic, HyperbolicCrossEntropy
from bench.methods.scorers import paired_score, pairwise_score

F64 = torch.float64
LABELS = torch.tensor([0, 1, 0, 2, 2, 0])


def _raw(count=6, dim=3, seed=0):
    return torch.randn(count, dim, dtype=F64, generator=torch.Generator().manual_seed(seed))


def _distance(v, w, c, r):
    """Distance of two raw embeddings by exponential map, Moebius addition and artanh, with 50 digits."""
    with mpmath.workdps(50):
        c = mpmath.mpf(c)
        x, y = (mpmath.matrix([mpmath.mpf(a) for a in row]) for row in (v, w))
        points = []
        for z in (x, y):
            norm = mpmath.norm(z)
            points.append(z * (mpmath.tanh(mpmath.sqrt(c) * min(norm, r)) / (mpmath.sqrt(c) * norm)))
        x, y = -points[0], points[1]
        inner, xx, yy = (x.T * y)[0], (x.T * x)[0], (y.T * y)[0]
        total = ((1 + 2 * c * inner + c * yy) * x + (1 - c * xx) * y) / (1 + 2 * c * inner + c * c * xx * yy)
        return float(2 / mpmath.sqrt(c) * mpmath.atanh(mpmath.sqrt(c) * mpmath.norm(total)))


def _method(c=0.1, t=0.2, r=2.3):
    return Hyperbolic(Hyperbolic.Params(curvature=c, temperature=t, clip=r))


@pytest.mark.parametrize(("c", "r"), [(0.1, 2.3), (1.0, 1.0), (0.5, 5.0)])
def test_scores_are_distances_in_the_ball(c, r):
    raw = _raw()
    raw[1] = raw[0] + 1e-9
    images = _method(c, r=r).distribution(raw, None)
    found = -pairwise_score("poincare", images, images) / math.sqrt(c)
    for i, v in enumerate(raw.tolist()):
        for j, w in enumerate(raw.tolist()):
            tolerance = 1e-6 if {i, j} == {0, 1} else 1e-12
            assert found[i, j].item() == pytest.approx(_distance(v, w, c, r), rel=tolerance, abs=1e-15)
    aligned = paired_score("poincare", images, PointMass(images.loc.flip(0)))
    torch.testing.assert_close(aligned, pairwise_score("poincare", images, images).flip(1).diagonal())


def test_flat_space_is_the_limit_of_small_curvature():
    raw, c = _raw(), 1e-8
    images = _method(c, r=5.0).distribution(raw, None)
    found = -pairwise_score("poincare", images, images) / math.sqrt(c)
    torch.testing.assert_close(found, 2 * torch.cdist(raw, raw), rtol=1e-6, atol=1e-6)


def test_the_loss_is_that_of_a_plain_loop():
    raw, c, t, r = _raw(), 0.1, 0.2, 2.3
    similar = [[math.exp(-_distance(v, w, c, r) / t) for w in raw.tolist()] for v in raw.tolist()]
    losses = []
    for i, own in enumerate(LABELS):
        others = sum(similar[i][k] for k in range(6) if LABELS[k] != own)
        losses += [-math.log(similar[i][j] / (similar[i][j] + others)) for j in range(6) if j != i and LABELS[j] == own]
    method = _method(c, t, r)
    found = method.objective(3, 3)(method.distribution(raw, None), LABELS)
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-12)


def test_gradients_are_those_of_finite_differences():
    method, raw = _method(r=1.5), _raw()[[0, 2, 3, 5]].requires_grad_()
    assert raw.norm(dim=1).min() < 1.5 < raw.norm(dim=1).max()
    labels = torch.tensor([0, 0, 1, 1])
    assert torch.autograd.gradcheck(lambda v: method.objective(2, 3)(method.distribution(v, None), labels), raw)


def test_the_norm_in_the_ball_has_the_order_of_the_raw_norm_up_to_the_clipping():
    length = torch.linspace(0.0, 5.0, 51, dtype=F64)
    found = _method().distribution(length[:, None] * _raw(1), None).loc.norm(dim=1)
    raw = length * _raw(1).norm()
    assert (found.diff()[raw[1:] <= 2.3] > 0).all()
    torch.testing.assert_close(found[raw > 2.3], torch.full_like(found[raw > 2.3], math.tanh(2.3 * 0.1**0.5)))


def test_what_has_no_distance_in_the_ball_is_refused():
    for x in (torch.eye(3), torch.full((2, 3), 0.6)):
        with pytest.raises(ValueError, match="norms below 1"):
            pairwise_score("poincare", PointMass(x), PointMass(x))
    normal = IsotropicNormal(torch.zeros(2, 3), torch.ones(2))
    with pytest.raises(ValueError, match="poincare needs points"):
        pairwise_score("poincare", normal, normal)
    with pytest.raises(ValueError, match="two images of some class"):
        HyperbolicCrossEntropy(0.1, 0.2)(PointMass(0.1 * torch.eye(3)), torch.arange(3))
