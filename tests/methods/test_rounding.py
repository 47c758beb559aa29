"""Operations that round alike everywhere have the values and gradients of torch's."""

import pytest
import torch
import torch.nn.functional as F
from bench.methods.heads import FewOutputs, SpreadHead
from bench.methods.hib import MatchLoss
from bench.methods.losses import cross_entropies, softplus
from torch import nn


def _equal(ours, reference, *inputs, tolerance=1e-12):
    found = [(f(*inputs), torch.autograd.grad(f(*inputs).sum(), inputs)) for f in (ours, reference)]
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_cross_entropies_are_those_of_torch(dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (9,), generator=generator)
    logits = (64 * torch.randn(9, 5, dtype=dtype, generator=generator)).requires_grad_()
    theirs = torch.nn.CrossEntropyLoss(reduction="none")
    _equal(lambda x: cross_entropies(x, labels), lambda x: theirs(x, labels), logits, tolerance=tolerance)


def test_cross_entropy_of_logits_far_apart_is_exact():
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0], [12.0, 0.0]], requires_grad=True)
    losses = cross_entropies(logits, torch.tensor([0, 0, 0]))
    (slope,) = torch.autograd.grad(losses.sum(), logits)
    assert losses[:2].tolist() == [0.0, 200.0]
    assert losses[2].item() == pytest.approx(torch.tensor(-12.0, dtype=torch.float64).exp().log1p().item(), abs=1e-7)
    assert slope[:2].tolist() == [[0.0, 0.0], [-1.0, 1.0]]


def test_softplus_is_that_of_torch_also_far_out_and_at_zero():
    x = torch.tensor([-300.0, -30.0, -1e-9, 0.0, 1e-9, 0.3, 30.0, 300.0], dtype=torch.float64, requires_grad=True)
    _equal(softplus, F.softplus, x)
    low = torch.tensor([-90.0, -20.0, 0.0, 80.0, 1e30])
    torch.testing.assert_close(softplus(low), F.softplus(low.double()).float(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("out", [1, 3])
def test_a_layer_of_few_outputs_is_a_linear_one(out):
    torch.manual_seed(0)
    layer = FewOutputs(16, out).double()
    x = torch.randn(10, 16, dtype=torch.float64, requires_grad=True)
    _equal(lambda x, *_: layer(x), lambda x, w, b: F.linear(x, w, b), x, layer.weight, layer.bias)


def test_a_spread_of_many_outputs_is_one_product_of_matrices():
    """Element-wise products would take out times as much memory."""
    assert type(SpreadHead(64, out=64)[-1]) is nn.Linear
    assert type(SpreadHead(64)[-1]) is FewOutputs


def test_distances_of_many_close_draws_keep_their_digits():
    """cdist by products of matrices gives half of such pairs distance 0 and no gradient."""
    generator = torch.Generator().manual_seed(0)
    draws = F.normalize(torch.ones(64, 32) + 2e-4 * torch.randn(64, 32, generator=generator), dim=1)[None]
    exact = (draws[0, :, None].double() - draws[0].double()).norm(dim=-1)
    found = -MatchLoss(kl_weight=0.0, samples=1, pairs="all")._logits(draws, draws)[:, 0, :, 0]
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0.0)
