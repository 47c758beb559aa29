"""Ensembles: side by side is the mean of cosines, agreement is about classes; masks and passes of MC dropout."""

import math

import pytest
import torch
import torch.nn.functional as F
from bench.conformance import build
from bench.methods._model import EmbeddingModel, EnsembleModel, mean_log_probabilities
from bench.methods.backbones.registry import build_backbone
from bench.methods.deep_ensemble import DeepEnsemble, mutual_information
from bench.methods.heads import MeanHead
from bench.methods.hib import HIB
from bench.methods.mc_dropout import MCDropout, dropout_masks, moments_over_masks
from bench.methods.scorers.registry import pairwise_score
from scipy.stats import spearmanr


def _log_p(members=4, images=5, classes=3):
    g = torch.Generator().manual_seed(0)
    return torch.randn(members, images, classes, generator=g, dtype=torch.float64).mul(3).log_softmax(-1)


@pytest.fixture
def ensemble():
    """A network of three members, and images."""
    return build(DeepEnsemble).eval(), torch.randn(6, 1, 20, 20, generator=torch.Generator().manual_seed(1))


def test_mutual_information_equals_its_loop():
    log_p = _log_p()
    found = mutual_information(log_p)
    for image in range(5):
        p = log_p[:, image].exp().tolist()
        mean = [sum(q[c] for q in p) / len(p) for c in range(3)]
        entropy = -sum(m * math.log(m) for m in mean)
        own = sum(-sum(v * math.log(v) for v in q) for q in p) / len(p)
        assert float(found[image]) == pytest.approx(entropy - own, rel=1e-12)
        assert mean_log_probabilities(log_p)[image].exp().tolist() == pytest.approx(mean)


def test_mutual_information_of_the_extremes():
    assert float(mutual_information(_log_p(1).expand(4, -1, -1)).abs().max()) < 1e-14
    apart = torch.tensor([[0.0, -2000.0], [-2000.0, 0.0]], dtype=torch.float64)[:, None]  # probabilities underflow
    assert float(mutual_information(apart)) == pytest.approx(math.log(2))


def test_cosines_are_the_mean_of_the_members(ensemble):
    model, images = ensemble
    with torch.no_grad():
        embedding = model(images)
        each = [F.normalize(member(images).raw, dim=-1) for member in model.members]
    expected = torch.stack([u @ u.mT for u in each]).mean(0)
    found = pairwise_score("cosine", embedding.distribution, embedding.distribution)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_confidences_are_those_of_the_mean_of_the_members_probabilities(ensemble):
    model, images = ensemble
    with torch.no_grad():
        found = model.confidences(model(images))
        each = [member.confidences(member(images)) for member in model.members]
        classifiers = [member.objective.class_cosines(member(images).distribution) for member in model.members]
    p = torch.stack([(scale * cosines.double()).softmax(-1) for cosines, scale in classifiers])
    torch.testing.assert_close(found["max_probability"], p.mean(0).amax(-1).log())
    torch.testing.assert_close(found["neg_entropy"], (p.mean(0) * p.mean(0).log()).sum(-1))
    torch.testing.assert_close(found["method"], -mutual_information(p.log()))
    for name in ("norm", "max_cosine"):
        torch.testing.assert_close(found[name], sum(of[name] for of in each) / 3)


def test_members_without_a_classifier_are_refused():
    member = EmbeddingModel(HIB(), build_backbone("convnet", 1, None), 3, 8)
    with pytest.raises(TypeError, match="--base norm_softmax"):
        EnsembleModel(DeepEnsemble(), [member])


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
