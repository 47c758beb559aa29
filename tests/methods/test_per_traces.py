"""Twenty training steps of PER's public code: the same small networks from our heads, objectives and optimiser groups.

SGD with momentum .9, weight decay on everything, gradients clipped to a norm of 10, rates that fall before step 11.
"""

import json

import pytest
import torch
from bench.engine.optim import Optimisation
from bench.methods import EmbeddingModel
from bench.protocols.recipes import Optim
from bench.registry import Registry
from torch import nn

from .per_golden import F64, FOLDER, error, load, normal_draws, vmf_draws

STEPS, PER_EPOCH, DIM, C = 20, 2, 16, 6
TRACES = json.loads((FOLDER / "traces.json").read_text())
"""Method, parameters and rates (network, objective, factor of the schedule)."""

NAMES = {
    "backbone.weight": "_embedder._stem.lin.weight",
    "mean.weight": "_embedder._head.0.weight",
    "mean.bias": "_embedder._head.0.bias",
    **{
        f"spread.{2 * layer}.{kind}": f"_embedder._extra_head.{layer}.{kind}"
        for layer in range(3)
        for kind in ("weight", "bias")
    },
    "spread.alpha": "_embedder._output_scale",
    "objective.weight": "_classifier.weight",
    "objective.classifier.weight": "_classifier.weight",
    "objective.log_temperature": "_classifier.log_scale",
    "objective.raw_scale": "_scorer.scale",
    "objective.bias": "_scorer.bias",
}
"""Our names of the golden tensors."""


class Stem(nn.Linear):
    """A trainable linear layer in the place of the backbone."""

    def __init__(self):
        super().__init__(32, 32, bias=False)


class Trace:
    """Our network at the golden start, with its optimiser."""

    def __init__(self, name):
        self.golden, self.inputs = load(f"trace_{name}"), load("trace_inputs")
        method, params, (lr, lr_objective, gamma) = TRACES[name]
        cls = Registry("methods").get(method).load()
        form = {"form": "released"} if "released" in cls.forms() else {}
        self.model = EmbeddingModel(cls(cls.Params(**params, **form)), Stem(), C, DIM).double()
        self.model.train()
        self.model.load_state_dict({key: value.clone() for key, value in self.golden_of("start").items()})
        settings = Optim(
            optimizer="sgd", schedule="step", step_epochs=5, gamma=gamma, lr=lr, lr_objective=lr_objective,
            weight_decay=1e-4, grad_clip=10.0, heads_factor=1.0, epochs=32,
        )  # fmt: skip
        self.optimisation = Optimisation(self.model, settings, "cpu")

    def golden_of(self, when):
        """Golden tensors by our names; every one of them has one."""
        state = self.model.state_dict()
        found = {ours: self.golden[f"{when}/{theirs}"] for ours, theirs in NAMES.items()
                 if ours in state and f"{when}/{theirs}" in self.golden}  # fmt: skip
        assert len(found) == sum(key.startswith(f"{when}/") for key in self.golden)
        assert set(found) == set(state)
        return found

    def embed(self, features):
        # As EmbeddingModel does, which is in float32 for good; the golden values are in float64.
        pooled = self.model.backbone(features)
        raw = self.model.mean(pooled)
        spread = None if self.model.spread is None else self.model.spread(pooled)
        return raw, spread

    def loss(self, step):
        rows = self.inputs["rows"][step].long()
        distribution = self.model.method.distribution(*self.embed(self.inputs["features"][rows]))
        return self.model.objective(distribution, self.inputs["labels"][rows])


def _inject(name, step, monkeypatch):
    draws = load("trace_hib" if name == "hib_cars196" else f"trace_{name}")
    if name == "dul_cls":
        normal_draws(monkeypatch, draws["draws/eps"][step] / 16)
    elif name.startswith("hib"):
        columns, rows = draws["draws/eps0"][step][0] / 16, draws["draws/eps1"][step][:, 0] / 16
        normal_draws(monkeypatch, columns.transpose(0, 1), rows.transpose(0, 1))
    elif name == "vmf_loss":
        vmf_draws(monkeypatch, draws["draws/e"][step], draws["draws/v"][step] / 16, samples=10)


@pytest.mark.parametrize("name", TRACES)
def test_twenty_steps(name, monkeypatch):
    trace = Trace(name)
    golden, groups = trace.golden, trace.optimisation.optimizer.param_groups
    assert len(groups) == 2
    assert all(group["weight_decay"] == 1e-4 for group in groups)
    for step in range(STEPS):
        _inject(name, step, monkeypatch)
        trace.optimisation.set_rate(step, PER_EPOCH)
        assert [group["lr"] for group in groups] == pytest.approx(golden["lr"][step].tolist(), rel=1e-12)
        loss = trace.loss(step)
        assert loss.item() == pytest.approx(golden["loss"][step].item(), rel=1e-8), step
        trained = [p for p in trace.model.parameters() if p.requires_grad]
        grads = torch.autograd.grad(loss, trained, retain_graph=True)
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        assert norm.item() == pytest.approx(golden["gradient_norm"][step].item(), rel=1e-7), step
        trace.optimisation.step(loss)
        for ours, theirs in NAMES.items():
            if f"after_step/{theirs}" in golden:
                value = trace.model.state_dict()[ours].item()
                assert value == pytest.approx(golden[f"after_step/{theirs}"][step].item(), rel=1e-8), (ours, step)
    state = trace.model.state_dict()
    for ours, value in trace.golden_of("end").items():
        assert error(state[ours], value) < 1e-8, ours


@pytest.mark.parametrize("name", ["hib", "vmf_loss"])
def test_the_start_that_depends_on_the_data(name):
    # PER looks at the first ten batches.
    trace = Trace(name)
    rows = trace.inputs["rows"][:10].long().flatten()
    if name == "vmf_loss":
        trace.model.spread.alpha.fill_(1.0)
    raw, _ = trace.embed(trace.inputs["features"][rows].to(F64))
    trace.model.method.initialise(trace.model, raw.detach(), trace.inputs["labels"][rows])
    key = "objective.raw_scale" if name == "hib" else "spread.alpha"
    # Theirs is computed in float32.
    assert error(trace.model.state_dict()[key], trace.golden_of("start")[key]) < 1e-6
