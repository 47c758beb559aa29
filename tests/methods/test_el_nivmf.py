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
    gen = torch.Generator().manual_seed(1)
    return torch.randn(20, 8, generator=gen) + 2.0, torch.arange(20) % 3


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
    model = _model(cls(cls.Params(start="class_means", norm_multiplier=30.0, concentration=6.0), "released"))
    before, unseen = model.mean.weight.clone(), model.objective.weight[3].clone()
    model.method.initialise(model, raw, labels)
    assert torch.equal(model.mean.weight, 30.0 * before)
    assert model.spread.alpha.item() == 1.0
    for c in range(3):
        mean = raw[labels == c].mean(0)
        torch.testing.assert_close(model.objective.weight[c], 6.0 * mean / mean.norm())
    assert torch.equal(model.objective.weight[3], unseen)


def test_rates_are_over_that_of_the_directions():
    params = ElNivmf.Params(concentration_rate=4.0, temperature_rate=0.04)
    model = _model(ElNivmf(params, "released"))
    optim = Optim(epochs=1, optimizer="adam", lr=1e-5, lr_objective=0.05, weight_decay=4e-4, decay_objective=False)
    groups = build_optimizer(model, model.objective, optim).param_groups
    rate = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert rate[id(model.objective.weight)] == pytest.approx((0.05, 0.0))
    assert rate[id(model.objective.raw_concentration)] == pytest.approx((0.2, 0.0))
    assert rate[id(model.objective.raw_temperature)] == pytest.approx((0.002, 0.0))
