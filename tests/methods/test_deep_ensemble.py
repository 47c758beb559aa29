"""Deep ensembles: side by side is the mean of cosines, and agreement is about classes."""

import math

import pytest
import torch
import torch.nn.functional as F
from bench.conformance import build
from bench.methods._model import EmbeddingModel, EnsembleModel, mean_log_probabilities
from bench.methods.backbones.registry import build_backbone
from bench.methods.deep_ensemble import DeepEnsemble, mutual_information
from bench.methods.hib import HIB
from bench.methods.scorers.registry import pairwise_score


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
    alike = _log_p(1).expand(4, -1, -1)
    assert float(mutual_information(alike).abs().max()) < 1e-14
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
