"""PFE and DUL-cls by hand, confidences of a classifier, and what holds of every registered method."""

import math

import pytest
import torch
from bench.conformance import build
from bench.methods.distributions import IsotropicNormal
from bench.methods.heads import SpreadHead, variance_from_raw
from bench.registry import Registry
from scipy import stats

METHODS = Registry("methods")
NAMES = [entry.name for entry in METHODS]
C, D = 6, 16


@pytest.mark.parametrize("name", ["cosface", "dul_cls", "pfe"])
def test_confidences_are_named_and_those_of_the_classifier(name):
    model = build(METHODS.get(name).load()).eval()
    images = torch.randn(24, 1, 12, 16, generator=torch.Generator().manual_seed(1))
    found = model.confidences(model(images))
    assert {"norm", "max_cosine", "max_probability", "neg_entropy", model.method.default_confidence} <= set(found)
    assert model.method.paper.title
    # By hand, from the logits of the classifier, or its cosines where these are all it has.
    classifier = model.objective if hasattr(model.objective, "class_cosines") else model.base_objective
    cosines, scale = classifier.class_cosines(model(images).distribution)
    own = getattr(classifier, "class_logits", lambda _: scale * cosines.double())
    p = torch.softmax(own(model(images).distribution), 1).detach()
    torch.testing.assert_close(found["max_probability"].exp(), p.amax(1))
    torch.testing.assert_close(found["neg_entropy"], -torch.as_tensor(stats.entropy(p.numpy(), axis=1)))


def test_pfe_loss_is_the_mean_mls_over_genuine_pairs():
    loss = METHODS.get("pfe").load()().objective(C, D)
    g = torch.Generator().manual_seed(5)
    loc = torch.nn.functional.normalize(torch.randn(6, 3, generator=g, dtype=torch.float64), dim=1)
    variance = torch.rand(6, generator=g, dtype=torch.float64) + 0.1
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    terms = []
    for i in range(6):
        for j in range(6):
            if i != j and labels[i] == labels[j]:
                v = (variance[i] + variance[j]).item()
                terms.append(stats.multivariate_normal(loc[j].numpy(), v).logpdf(loc[i].numpy()))
    value = loss(IsotropicNormal(loc, variance), labels).item()
    assert len(terms) == 8
    assert value == pytest.approx(-sum(terms) / 8, rel=1e-10)
    with pytest.raises(ValueError, match="at least two images"):
        loss(IsotropicNormal(loc, variance), torch.arange(6))


def test_dul_cls_loss_is_margin_softmax_plus_weighted_kl():
    cls = METHODS.get("dul_cls").load()
    loc = torch.nn.functional.normalize(torch.randn(8, D, dtype=torch.float64), dim=1)
    dist = IsotropicNormal(loc, torch.rand(8, dtype=torch.float64))
    labels = torch.arange(8) % C
    values = []
    for weight in (0.0, 0.25):
        torch.manual_seed(0)
        objective = cls(cls.Params(kl_weight=weight)).objective(C, D).double()
        torch.manual_seed(1)
        values.append(objective(dist, labels).item())
    kl = 0.5 * (D * dist.variance - D - D * dist.variance.log() + 1).mean().item()
    assert values[1] - values[0] == pytest.approx(0.25 * kl, rel=1e-6)


def test_the_variance_starts_near_two_over_d_for_every_image():
    torch.manual_seed(0)
    variance = variance_from_raw(SpreadHead(64)(torch.randn(500, 64)), 128)
    assert ((variance * 64).log().abs() < 0.3).all()
    assert variance.std() > 0


def test_no_step_however_large_silences_the_variance_head():
    # A plain ReLU whose inputs are all negative passes no gradient: one confidence for every image, for ever.
    torch.manual_seed(0)
    head, features = SpreadHead(64), torch.rand(200, 64)
    with torch.no_grad():
        for layer in (head[0], head[2]):
            layer.weight.copy_(-layer.weight.abs())
            layer.bias.fill_(-5.0)
    raw = head(features)
    raw.square().mean().backward()
    assert raw.std() > 0
    assert all(p.grad.abs().sum() > 0 for p in head.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_every_searched_parameter_changes_a_training_step(name):
    cls = METHODS.method(name)
    for fidelity in cls.forms():
        idle = cls(cls.Params(**cls.defaults(fidelity))).without_effect
        for key, field in cls.Params.model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and "search" in extra:
                low, high = (_step(cls, fidelity, {key: extra["search"][end]}) for end in ("low", "high"))
                same = len(low) == len(high) and all(map(torch.equal, low, high))
                assert same == (key in idle), f"{fidelity}: {key}"


def _step(cls, fidelity, params):
    """Loss, gradients and initial values of the parts that a step trains."""
    model = build(cls, fidelity, **params)
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(C).repeat_interleave(4)
    torch.manual_seed(1)
    loss = model.objective(model(torch.randn(24, 1, 20, 20, generator=g)).distribution, labels)
    if not cls.by_steps:  # by no gradient
        return [loss.detach()]
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    used = [(p.detach(), g) for p, g in zip(trained, gradients) if g is not None]
    return [loss.detach(), *(tensor for pair in used for tensor in pair)]


def test_pfe_variance_is_stationary_where_theory_says():
    # For one genuine pair at cosine c, equal variances maximise MLS at s = (1 - c) / D.
    c, d = 0.7, 5
    loc = torch.zeros(2, d, dtype=torch.float64)
    loc[0, 0] = 1.0
    loc[1, 0], loc[1, 1] = c, math.sqrt(1 - c * c)
    s = torch.full((2,), (1 - c) / d, dtype=torch.float64, requires_grad=True)
    loss = METHODS.get("pfe").load()().objective(C, d)
    loss(IsotropicNormal(loc, s), torch.tensor([0, 0])).backward()
    assert s.grad.abs().max() < 1e-9
