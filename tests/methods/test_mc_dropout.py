"""MC dropout: masks, moments over passes, and what training and evaluation return."""

import pytest
import torch
import torch.nn.functional as F
from bench.conformance import build
from bench.methods.heads import MeanHead
from bench.methods.mc_dropout import MCDropout, dropout_masks, moments_over_masks
from scipy.stats import spearmanr


def _head(features=7, dim=5):
    torch.manual_seed(0)
    head = MeanHead(features, dim).double().requires_grad_(False)
    head.bias.normal_()
    return head, torch.rand(6, features, dtype=torch.float64)


def test_masks_are_those_of_dropout():
    masks = dropout_masks(20_000, 12, 0.25)
    assert masks.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    torch.testing.assert_close(masks.mean(0), torch.ones(12), rtol=0, atol=0.02)
    assert torch.equal(masks, dropout_masks(20_000, 12, 0.25))


def test_moments_equal_those_of_a_loop():
    head, x = _head()
    masks = dropout_masks(30, 7, 0.3).double()
    passes = torch.stack([torch.stack([F.normalize(head(m * row), dim=0) for m in masks]) for row in x])
    mean, variance = moments_over_masks(head, x, masks)
    torch.testing.assert_close(mean, passes.mean(1))
    torch.testing.assert_close(variance, passes.var(1))


def test_the_variance_of_a_linear_layer_under_dropout_is_the_closed_form():
    # A large constant coordinate makes the normalisation a division by a constant.
    head, x = _head()
    head.bias[0] = 1e6
    _, variance = moments_over_masks(head, x, dropout_masks(40_000, 7, 0.3).double())
    exact = 0.3 / 0.7 * (x.square() @ head.weight.square().mT)
    torch.testing.assert_close(1e12 * variance[:, 1:], exact[:, 1:], rtol=0.05, atol=0)


def test_without_dropout_the_embedding_is_a_point():
    model = build(MCDropout, rate=0.0).eval()
    x = torch.rand(4, model.mean.in_features)
    with torch.no_grad():
        d = model.embed_features(x).distribution
    torch.testing.assert_close(d.mean, F.normalize(model.mean(x).detach(), dim=-1))
    assert float(d.variance.max()) < 1e-12
    assert torch.isfinite(model.method.confidence(d)).all()


def test_the_confidence_orders_images_as_ser_fiq_does():
    """Half of the mean squared distance of two passes is the sum of variances; SER-FIQ takes the distance itself."""
    head, _ = _head(40, 6)
    features, masks = torch.randn(60, 40).double(), dropout_masks(30, 40, 0.2)
    _, variance = moments_over_masks(head, features, masks)
    passes = torch.stack([F.normalize(head(features * mask), dim=1) for mask in masks.double()])
    distances = torch.cdist(passes.transpose(0, 1), passes.transpose(0, 1))
    pairs = distances[:, *torch.triu_indices(30, 30, 1)]
    torch.testing.assert_close(variance.sum(1), pairs.square().mean(1) / 2)
    ser_fiq = 2 * torch.sigmoid(-pairs.mean(1))
    assert spearmanr(-variance.sum(1), ser_fiq).statistic > 0.99
