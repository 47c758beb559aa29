import subprocess
import sys

import pytest
import torch
from bench.engine.optim import OPTIMIZERS

TORCH = {
    "adamw": lambda groups: torch.optim.AdamW(groups, fused=True),
    "adam": lambda groups: torch.optim.Adam(groups, fused=True),
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, momentum=0.9),
}

HEAVY = """
import sys
import torch
from bench.datasets.ndigit import NDigitSmoke
from bench.engine import testing, training, worker
from bench.engine.optim import OPTIMIZERS

torch.set_deterministic_debug_mode("warn")
NDigitSmoke().train_val(0, 4)
for make in OPTIMIZERS.values():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = make([{"params": [parameter], "lr": 0.1}])
    for _ in range(2):
        optimizer.zero_grad()
        parameter.square().sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
heavy = {"torch._dynamo", "torch._inductor", "torchvision", "timm", "sklearn", "pandas", "matplotlib", "optuna"}
print(sorted(heavy & set(sys.modules)))
"""


def _trained(make, resume):
    """Parameters after four steps; half-way another optimiser takes over the state of the first, if asked for."""
    parameters = [torch.nn.Parameter(torch.linspace(-1, 2, 7)), torch.nn.Parameter(torch.ones(2, 3))]
    groups = [{"params": [p], "lr": 0.05, "weight_decay": 0.1} for p in parameters]
    optimizer = make(groups)
    for step in range(4):
        if step == 2 and resume:
            state, optimizer = optimizer.state_dict(), make(groups)
            optimizer.load_state_dict(state)
        optimizer.zero_grad(set_to_none=True)
        sum((p**4).sum() for p in parameters).backward()
        optimizer.step()
    assert not any(p.grad is None or p.grad.requires_grad for p in parameters)
    return [p.detach().clone() for p in parameters]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_pytorch_to_the_last_bit(name):
    expected = _trained(TORCH[name], False)
    for resume in (False, True):
        assert all(map(torch.equal, _trained(OPTIMIZERS[name], resume), expected))


@pytest.mark.slow
def test_a_training_imports_nothing_that_it_does_not_need():
    assert subprocess.check_output([sys.executable, "-c", HEAVY]) == b"[]\n"
