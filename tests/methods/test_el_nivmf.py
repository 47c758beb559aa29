"""The two starts of EL-nivMF: our scaled norms, and the public code's multiplied layer and class-mean proxies."""

import pytest
import torch
from bench.engine.optim import build_optimizer
from bench.methods import EmbeddingModel
from bench.methods.el_nivmf import ElNivmf
from bench.methods.proxy_distance import ProxyDistance
from bench.protocols.recipes import Optim


def _model(method):
    torch.manual_seed(0)
    backbone = torch.nn.Flatten()
    backbone.out_features = 6
    return EmbeddingModel(method, backbone, 4, 8)


@pytest.fixture
def batch():
    return torch.randn(20, 8, generator=torch.Generator().manual_seed(1)) + 2.0, torch.arange(20) % 3


def test_our_start_sets_the_mean_concentration(batch):
    raw, labels = batch
    model = _model(ElNivmf(ElNivmf.Params(image_concentration=2.5)))
    before = model.mean.weight.clone()
    model.method.initialise(model, raw, labels)
    concentration = model.method.distribution(raw, model.spread(raw)).concentration
    assert concentration.mean().item() == pytest.approx(2.5 * 8, rel=1e-5)
    assert torch.equal(model.mean.weight, before)


@pytest.mark.parametrize("cls", [ElNivmf, ProxyDistance])
def test_the_public_start_multiplies_the_last_layer_and_takes_class_means(cls, batch):
    raw, labels = batch
    model = _model(cls(cls.Params(start="class_means", norm_multiplier=30.0, concentration=6.0, form="released")))
    before, unseen = model.mean.weight.clone(), model.objective.weight[3].clone()
    model.method.initialise(model, raw, labels)
    assert torch.equal(model.mean.weight, 30.0 * before)
    assert model.spread.alpha.item() == 1.0
    for c in range(3):
        mean = raw[labels == c].mean(0)
        torch.testing.assert_close(model.objective.weight[c], 6.0 * mean / mean.norm())
    assert torch.equal(model.objective.weight[3], unseen)


@pytest.mark.parametrize(
    ("distance", "concentration", "length"), [("cosine", 10.0, 12.9), ("l2", 200.0, 258.7), ("nivmf", 10.0, 12.9)]
)
def test_proxies_start_as_long_as_in_the_public_code_when_released(distance, concentration, length):
    """Xavier with the concentration as its gain, sqrt(D) sqrt(2 / (D + C)) times it: their length was 1.3."""
    for start, wanted in (("scaled", length), ("xavier", length / concentration)):
        torch.manual_seed(0)
        params = ProxyDistance.Params(distance=distance, concentration=concentration, start=start, form="released")
        proxies = ProxyDistance(params).objective(100, 512)
        lengths = proxies.weight.norm(dim=-1)
        assert lengths.mean().item() == pytest.approx(wanted, rel=0.01)
        # Their weight normalisation starts a scalar concentration at that length.
        found = proxies.concentration().detach()
        if start == "scaled" and distance != "nivmf":
            torch.testing.assert_close(found, lengths.detach())
        else:
            torch.testing.assert_close(found, torch.full_like(found, concentration))
    assert ProxyDistance(ProxyDistance.Params(**ProxyDistance.defaults("released"))).params.start == "scaled"
    assert ProxyDistance().params.start == "xavier"


def test_a_start_that_the_public_code_ignores_leaves_norms_as_they_come(batch):
    """L2 depends on norms; its replay used to start them at D."""
    raw, labels = batch
    model = _model(
        ProxyDistance(ProxyDistance.Params(distance="l2", start="scaled", norm_multiplier=1.0, form="released"))
    )
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.method.initialise(model, raw, labels)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    concentration = model.method.distribution(raw, model.spread(raw)).concentration
    torch.testing.assert_close(concentration, raw.norm(dim=-1))


def test_rates_are_over_that_of_the_directions():
    params = ElNivmf.Params(concentration_rate=4.0, temperature_rate=0.04, form="released")
    model = _model(ElNivmf(params))
    optim = Optim(epochs=1, optimizer="adam", lr=1e-5, lr_objective=0.05, weight_decay=4e-4, decay_objective=False)
    groups = build_optimizer(model, model.objective, optim).param_groups
    rate = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert rate[id(model.objective.weight)] == pytest.approx((0.05, 0.0))
    assert rate[id(model.objective.raw_concentration)] == pytest.approx((0.2, 0.0))
    assert rate[id(model.objective.raw_temperature)] == pytest.approx((0.002, 0.0))
