"""MCInfoNCE against a plain loop, integrals over circles and the limit of points."""

import math

import pytest
import torch
import torch.nn.functional as F
from bench.methods.distributions import VonMisesFisher
from bench.methods.mc_infonce import McInfoNCE, MonteCarloInfoNCE

F64 = torch.float64
KAPPA = 5.0
LABELS = torch.tensor([0, 1, 0, 2, 2, 0])


def _unit(*shape, seed=0):
    return F.normalize(torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)), dim=-1)


def _looped(draws, labels):
    """Losses of the ordered pairs as the paper writes them, without its 1/M: no logarithm before the mean."""
    losses = []
    for i, first in enumerate(labels):
        for j, second in enumerate(labels):
            if i == j or first != second:
                continue
            ratios = []
            for z in draws:
                positive = math.exp(KAPPA * float(z[i] @ z[j]))
                negative = sum(math.exp(KAPPA * float(z[i] @ z[m])) for m, c in enumerate(labels) if c != first)
                ratios.append(positive / (positive + negative))
            losses.append(-math.log(sum(ratios) / len(ratios)))
    return losses


def test_the_losses_of_all_pairs_are_those_of_a_plain_loop():
    draws = _unit(7, 6, 3)
    found = MonteCarloInfoNCE(KAPPA, 7).pair_losses(draws, LABELS)
    assert found.tolist() == pytest.approx(_looped(draws, LABELS.tolist()), rel=1e-12)
    assert len(found) == 3 * 2 + 2 * 1


def test_gradients_of_the_draws_are_those_of_finite_differences():
    loss, draws = MonteCarloInfoNCE(KAPPA, 3), _unit(2, 4, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss.pair_losses(z, LABELS[:4]), draws)


def test_concentrated_embeddings_give_infonce_of_their_modes():
    modes = _unit(6, 8)
    found = MonteCarloInfoNCE(KAPPA, 4)(VonMisesFisher(modes, torch.full((6,), 1e14, dtype=F64)), LABELS)
    cross_entropies = []
    for i, j in (LABELS[:, None] == LABELS).nonzero().tolist():
        if i != j:
            others = torch.cat([modes[j : j + 1], modes[LABELS[i] != LABELS]])
            cross_entropies.append(F.cross_entropy(KAPPA * others @ modes[i], torch.tensor(0)))
    assert found.item() == pytest.approx(torch.stack(cross_entropies).mean().item(), abs=1e-6)


def _circle(angles, concentrations, power, points=64):
    """E of sigmoid(kappa (z.z+ - z.z-))^power, or of its logarithm for power 0, over three vMFs on the circle."""
    grid = torch.arange(points, dtype=F64) * (2 * math.pi / points)
    densities = [torch.softmax(k * torch.cos(grid - a), 0) for a, k in zip(angles, concentrations)]
    anchor, positive, negative = grid[:, None, None], grid[None, :, None], grid[None, None, :]
    log = F.logsigmoid(KAPPA * (torch.cos(anchor - positive) - torch.cos(anchor - negative)))
    value = log if power == 0 else (power * log).exp()
    return torch.einsum("abc,a,b,c->", value, *densities)


ANGLES, CONCENTRATIONS = (0.3, 1.2, 2.0), (2.0, 5.0, 1.0)
MODES = torch.tensor([[math.cos(a), math.sin(a)] for a in ANGLES], dtype=F64)
THREE = torch.tensor([0, 0, 1])


def test_many_draws_give_the_integral_inside_the_logarithm():
    """On the circle, with one negative, the periodic sum is exact; the bound is five standard errors."""
    count = 40_000
    torch.manual_seed(0)
    images = VonMisesFisher(MODES, torch.tensor(CONCENTRATIONS, dtype=F64))
    found = MonteCarloInfoNCE(KAPPA, count).pair_losses(images.rsample((count,)), THREE)[0].item()
    mean, square = _circle(ANGLES, CONCENTRATIONS, 1).item(), _circle(ANGLES, CONCENTRATIONS, 2).item()
    error = math.sqrt((square - mean**2) / count) / mean
    assert abs(found + math.log(mean)) < 5 * error
    assert error < 0.01


def test_one_draw_gives_the_integral_of_the_logarithm_which_is_larger():
    """The mean of the K = 1 losses is E[-log], above -log E of the method's loss (Jensen)."""
    torch.manual_seed(0)
    draws = VonMisesFisher(MODES, torch.tensor(CONCENTRATIONS, dtype=F64)).rsample((600,))
    single = torch.stack([MonteCarloInfoNCE(KAPPA, 1).pair_losses(z[None], THREE)[0] for z in draws])
    wanted = -_circle(ANGLES, CONCENTRATIONS, 0).item()
    assert abs(single.mean().item() - wanted) < 5 * single.std().item() / math.sqrt(len(single))
    assert wanted > -math.log(_circle(ANGLES, CONCENTRATIONS, 1).item()) + 0.1


def test_the_gradient_in_the_concentrations_is_that_of_the_integral():
    count = 10_000
    torch.manual_seed(0)
    k = torch.tensor(CONCENTRATIONS, dtype=F64, requires_grad=True)
    draws = VonMisesFisher(MODES, k).rsample((count,))
    (found,) = torch.autograd.grad(MonteCarloInfoNCE(KAPPA, count).pair_losses(draws, THREE)[0], k)
    exact = torch.tensor(CONCENTRATIONS, dtype=F64, requires_grad=True)
    (wanted,) = torch.autograd.grad(-_circle(ANGLES, exact.unbind(), 1).log(), exact)
    torch.testing.assert_close(found, wanted, rtol=0.1, atol=2e-3)


def test_a_batch_without_negatives_costs_nothing_and_one_without_positives_is_refused():
    raw = _unit(4, 3).requires_grad_()
    images = VonMisesFisher(raw, torch.full((4,), 3.0, dtype=F64))
    loss = MonteCarloInfoNCE(KAPPA, 2)(images, torch.zeros(4, dtype=torch.long))
    (gradient,) = torch.autograd.grad(loss, raw)
    assert (loss.item(), gradient.abs().max().item()) == (0.0, 0.0)
    with pytest.raises(ValueError, match="at least two images of some class"):
        MonteCarloInfoNCE(KAPPA, 2)(images, torch.arange(4))


@pytest.mark.parametrize("dim", [16, 64, 512])
def test_images_start_at_a_mean_resultant_length_that_does_not_depend_on_the_dimension(dim):
    method = McInfoNCE()
    start = method.distribution(torch.randn(3, dim), torch.zeros(3, 1))
    assert start.concentration.tolist() == [dim] * 3
    assert start.mean_resultant_length.tolist() == pytest.approx([0.618] * 3, abs=0.01)
    moved = method.distribution(torch.randn(3, dim), torch.tensor([[-3.0], [0.0], [3.0]]))
    assert moved.concentration.tolist() == pytest.approx([dim / 4, dim, 4 * dim])
    assert method.confidence(moved).tolist() == pytest.approx([math.log(x) for x in (dim / 4, dim, 4 * dim)])
