"""Flow on the sphere: its divergence by autograd, densities in closed form and by integration, and what it learns."""

import math

import pytest
import torch
import torch.nn.functional as F
from bench.methods.distributions import PointMass, RatedPoint, VonMisesFisher
from bench.methods.repvlm import Repvlm, SphereFlow

from .sphere import sphere

F64 = torch.float64


def _unit(*shape, seed=0):
    return F.normalize(torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)), dim=-1)


def _flow(dim, steps=16, width=32, size=1.0):
    torch.manual_seed(0)
    flow = SphereFlow(dim, width, steps).double()
    with torch.no_grad():
        flow.out.weight.mul_(size)
    return flow


def test_the_field_is_tangent_and_its_divergence_that_of_autograd():
    flow, z, t = _flow(5), _unit(6, 5), torch.rand(6, 1, dtype=F64)
    field, divergence = flow.velocity(z, t)
    torch.testing.assert_close((field * z).sum(1), torch.zeros(6, dtype=F64), rtol=0, atol=1e-13)
    for i in range(6):

        def extended(x, time=t[i : i + 1]):
            """The field of all space that is constant along rays, whose divergence is that on the sphere."""
            return flow.velocity(F.normalize(x, dim=-1)[None], time)[0][0]

        jacobian = torch.autograd.functional.jacobian(extended, z[i])
        assert divergence[i].item() == pytest.approx(jacobian.trace().item(), rel=1e-10)


@pytest.mark.parametrize("dim", [2, 3, 16])
def test_without_a_field_the_density_is_uniform_and_under_a_constant_drift_it_is_known(dim):
    """Under v = d - (z.d) z, z.d/|d| is tanh(|d| t + const), and angles shrink by the ratio of the sines."""
    flow, z = _flow(dim, steps=64, size=0.0), _unit(7, dim)
    area = 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)
    with torch.no_grad():
        flow.out.bias.zero_()
        torch.testing.assert_close(flow.log_prob(z), torch.full((7,), -math.log(area), dtype=F64))
        flow.out.bias.copy_(1.5 * _unit(dim, seed=1))
        after = z @ _unit(dim, seed=1)
        before = (after.atanh() - 1.5).tanh()
        wanted = -math.log(area) + (dim - 1) / 2 * ((1 - before.square()) / (1 - after.square())).log()
        torch.testing.assert_close(flow.log_prob(z), wanted, rtol=1e-6, atol=1e-6)


def test_densities_integrate_to_one():
    nodes, weights = sphere(60, 120)
    with torch.no_grad():
        found = _flow(3).log_prob(nodes)
    assert found.max() - found.min() > 4
    assert (found.exp() @ weights).item() == pytest.approx(1.0, abs=1e-5)


def test_the_wanted_velocity_is_that_of_the_great_circle(monkeypatch):
    """A field of zero has the squared velocity as its error: the squared angle between start and end, at any time."""
    flow, z = _flow(4, size=0.0), _unit(50, 4)
    with torch.no_grad():
        flow.out.bias.zero_()
        seen = []
        field = flow.velocity
        monkeypatch.setattr(flow, "velocity", lambda point, t: (seen.append((point, t)), field(point, t))[1])
        torch.manual_seed(1)
        found = flow.matching(z)
    torch.manual_seed(1)
    start = F.normalize(torch.randn_like(z), dim=-1)
    angle = (start * z).sum(1).acos()
    torch.testing.assert_close(found, angle.square(), rtol=1e-9, atol=0)
    point, t = seen[0]
    torch.testing.assert_close((point * start).sum(1).acos(), t[:, 0] * angle, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close((point * z).sum(1).acos(), (1 - t[:, 0]) * angle, rtol=1e-6, atol=1e-7)


def test_it_learns_the_density_of_the_embeddings():
    images = VonMisesFisher(_unit(1, 3), torch.tensor([4.0], dtype=F64))
    torch.manual_seed(0)
    flow = SphereFlow(3, 64, 16).double()
    optimiser = torch.optim.Adam(flow.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 600)
    for _ in range(600):
        optimiser.zero_grad()
        flow(PointMass(images.sample((512,))[:, 0]), torch.zeros(512)).backward()
        optimiser.step()
        schedule.step()
    flow.eval()
    test = images.sample((2000,))[:, 0]
    with torch.no_grad():
        found, wanted = flow.log_prob(test), images.log_prob(test)
        assert flow(PointMass(3 * test), torch.zeros(2000)).item() == pytest.approx(-found.mean().item(), rel=1e-12)
    assert (wanted - found).mean().abs() < 0.02  # the divergence from the truth
    assert torch.corrcoef(torch.stack([found, wanted]))[0, 1] > 0.99


def test_the_validation_loss_is_the_same_from_densities_that_the_heads_have():
    flow, z = _flow(4).eval(), 3 * _unit(7, 4)
    with torch.no_grad():
        rated = RatedPoint(z, -flow.log_prob(F.normalize(z, dim=-1)))
        assert flow(rated, None) == flow(PointMass(z), None)


def test_images_are_rated_by_their_log_density():
    points, method = torch.randn(3, 4), Repvlm()
    rated = method.distribution(points, torch.tensor([[3.0], [-1.0], [0.0]]))
    assert isinstance(rated, RatedPoint)
    assert method.confidence(rated).tolist() == [3.0, -1.0, 0.0]
    assert method.confidence(method.distribution(points, None)) is None
