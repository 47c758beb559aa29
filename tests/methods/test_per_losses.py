"""Losses and gradients of PER's public code: what the released form of each of its methods computes, to the digit.

The golden values are float64 with the public code's own draws; gradients at D = 128 are stored in float32.
"""

import json

import pytest
import torch
from bench.methods.losses import CosFaceLoss
from bench.registry import Registry

from .per_golden import F64, FOLDER, error, load, normal_draws, vmf_draws

METHODS = Registry("methods")
C = 7
CASES = json.loads((FOLDER / "losses.json").read_text())
"""Method and parameters of each golden name."""

GOLDEN = {dim: load(f"losses_D{dim}") for dim in (8, 128)}
HELD = [(name, dim) for name in CASES for dim in (8, 128) if f"{name}/loss" in GOLDEN[dim]]


class Replay:
    """A released method on the golden inputs: loss and the gradients by the golden names."""

    def __init__(self, name, dim, labels, monkeypatch, dtype=F64):
        method, params = CASES[name]
        self.name, self.dim, self.monkeypatch = name, dim, monkeypatch
        self.dtype, self.inputs, self.draws = dtype, load(f"inputs_D{dim}", dtype), load(f"draws_D{dim}", dtype)
        cls = METHODS.get(method).load()
        form = [{"form": form} for form in ("released_per", "released") if form in cls.forms()]
        self.method = cls(cls.Params(**params, **(form[0] if form else {})))
        self.objective = self._objective()
        if method == "vmf_loss":
            self.raw, self.spread = self.inputs["raw_vmf"], torch.ones(24, 1, dtype=dtype)
        else:
            self.raw = self.inputs["raw"]
            self.spread = self.inputs["spread_vmf" if name == "dul_cls_vmf" else "spread"]
        self.labels = self.inputs[labels]
        self._inject(method)
        self.raw.requires_grad_(), self.spread.requires_grad_()
        self.loss = self.objective(self.method.distribution(self.raw, self.spread), self.labels)
        self.loss.backward()

    def _objective(self):
        base = None
        if self.method.on_base:
            base = CosFaceLoss(C, self.dim, 16.0, 0.2).to(self.dtype)
            base.weight.data = self.inputs["weight"].clone()
        objective = self.method.objective(C, self.dim, base).to(self.dtype)
        with torch.no_grad():
            for module in (objective, getattr(objective, "classifier", None)):
                if hasattr(module, "weight"):
                    vmf = hasattr(module, "log_temperature")
                    module.weight.copy_(self.inputs["weight_vmf" if vmf else "weight"])
            if hasattr(objective, "spread"):
                objective.weight.copy_(self.inputs["weight_dsml"][:, :-1])
                objective.spread.copy_(self.inputs["weight_dsml"][:, -1])
            if hasattr(objective, "raw_scale"):
                objective.start(self.inputs["raw"].abs().mean() / (12 if self.name == "hib_saturated" else 1))
                objective.bias.fill_(0.3)
        return objective

    def _inject(self, method):
        draws = self.draws
        if method == "hib":
            columns, rows = draws["hib/eps0"][0], draws["hib/eps1"][:, 0]
            normal_draws(self.monkeypatch, columns.transpose(0, 1), rows.transpose(0, 1))
        elif method == "spe" and self.method.params.samples:
            rank = (self.labels[:, None] == self.labels[None, :]).tril(-1).sum(1)
            halves = [rank < 2, rank >= 2]
            chosen = (draws[f"spe/eps{h}"][rank[own] % 2, self.labels[own]] for h, own in enumerate(halves))
            normal_draws(self.monkeypatch, *(draw.transpose(0, 1) for draw in chosen))
        elif method == "vmf_loss":
            vmf_draws(self.monkeypatch, draws["vmf_loss/e"], draws["vmf_loss/v"], samples=10)
        elif self.name == "dul_cls_vmf":
            vmf_draws(self.monkeypatch, draws["dul_cls_vmf/e"], draws["dul_cls_vmf/v"])
        elif method == "dul_cls":
            normal_draws(self.monkeypatch, draws[f"{self.name}/eps"])

    def values(self):
        objective = self.objective
        weight = getattr(getattr(objective, "classifier", objective), "weight", None)
        if hasattr(objective, "spread"):
            weight_grad = torch.cat([objective.weight.grad, objective.spread.grad.unsqueeze(1)], 1)
        else:
            weight_grad = None if weight is None else weight.grad
        leaves = {"grad_log_scale": "log_temperature", "grad_scorer_scale": "raw_scale", "grad_scorer_bias": "bias",
                  "grad_hidden_epsilon": "log_noise"}  # fmt: skip
        found = {"loss": self.loss, "grad_raw": self.raw.grad, "grad_spread": self.spread.grad}
        found["grad_weight"] = weight_grad
        held = {key: getattr(objective, leaf, None) for key, leaf in leaves.items()}
        return found | {key: leaf.grad for key, leaf in held.items() if leaf is not None}


def _compare(name, dim, prefix, replay):
    golden, found, errors = GOLDEN[dim], replay.values(), {}
    for key in ("loss", "grad_raw", "grad_spread", "grad_weight", "grad_log_scale", "grad_scorer_scale",
                "grad_scorer_bias", "grad_hidden_epsilon"):  # fmt: skip
        if f"{prefix}/{key}" in golden:
            errors[key] = error(found[key], golden[f"{prefix}/{key}"])
    assert "loss" in errors
    # Gradients at D = 128 are stored in float32.
    limits = {key: 1e-9 if dim == 8 or key == "loss" else 1e-6 for key in errors}
    assert {key: value for key, value in errors.items() if value > limits[key]} == {}, (name, dim)


@pytest.mark.parametrize(("name", "dim"), HELD)
def test_loss_and_gradients(name, dim, monkeypatch):
    _compare(name, dim, name, Replay(name, dim, "labels", monkeypatch))


@pytest.mark.parametrize(("name", "dim"), HELD)
def test_the_loss_in_float32(name, dim, monkeypatch):
    # In which the public code runs: saturated match probabilities give another loss than in float64.
    replay = Replay(name, dim, "labels", monkeypatch, torch.float32)
    assert replay.loss.dtype == torch.float32
    assert replay.loss.item() == pytest.approx(GOLDEN[dim][f"{name}/loss_float32"].item(), rel=1e-5)


@pytest.mark.parametrize(("name", "dim"), [case for case in HELD if f"{case[0]}/unbalanced/loss" in GOLDEN[case[1]]])
def test_loss_and_gradients_of_a_batch_with_classes_of_different_sizes(name, dim, monkeypatch):
    _compare(name, dim, f"{name}/unbalanced", Replay(name, dim, "labels_unbalanced", monkeypatch))


def test_no_draws_replace_a_draw_by_its_expectation():
    # samples = 0 divided by zero. Independent: the same sums with one point of length A(k) per image.
    cls = METHODS.get("vmf_loss").load()
    inputs = load("inputs_D8")
    for fidelity in ("corrected", "released"):
        method = cls(cls.Params(samples=0, form=fidelity))
        objective = method.objective(C, 8).double()
        x = method.distribution(inputs["raw_vmf"], torch.ones(24, 1, dtype=F64))
        value = objective(x, inputs["labels"])
        assert torch.isfinite(value)
        value.backward()
        assert torch.isfinite(objective.weight.grad).all()
    from bench.methods.distributions import vmf_log_normalizer, vmf_mean_resultant_length

    objective = cls(cls.Params(samples=0)).objective(C, 8).double()
    beta, v, k = objective.log_temperature.exp(), objective.weight, objective.weight.norm(dim=1)
    terms = []
    for i in range(24):
        joint = torch.stack([(v[c] + beta * x.mean[i]).norm() for c in range(C)])
        total = torch.logsumexp(vmf_log_normalizer(k, 8) - vmf_log_normalizer(joint, 8), 0)
        y = inputs["labels"][i]
        own = vmf_mean_resultant_length(k[y], 8) * (x.mean[i] @ v[y]) / k[y]
        terms.append(total - beta * own)
    assert error(objective(x, inputs["labels"]), torch.stack(terms).mean()) < 1e-12
