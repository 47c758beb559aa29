"""What a dry run times: steps as they will run, and no work that was begun before."""

import pytest
import torch
from bench.engine import estimate

from tests.plans import planned


def test_work_that_a_gpu_still_has_to_do_is_waited_for(monkeypatch):
    """The first time had the work of the call before it."""
    clock, queued = [0.0], [0.0]

    def wait():
        clock[0] += queued[0]
        queued[0] = 0.0

    def work():
        queued[0] += 5.0

    monkeypatch.setattr(estimate.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    assert estimate.median_seconds(work) == 5.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "compiled"), [("float32", False), ("tf32", False), ("bfloat16", False), ("float32", True)]
)
def test_the_steps_that_are_timed_are_those_that_will_run(monkeypatch, tmp_path, precision, compiled):
    timed, compiling = [], []

    class Stopped(Exception):
        pass

    def optimisation(model, optim, device):
        timed.append((model.precision, model.tf32, compiling == [model.backbone]))
        raise Stopped

    monkeypatch.setattr(estimate, "Optimisation", optimisation)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compiling.append(module))
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *given, **named: None)  # imports the compiler
    pins = (f"optim.precision={precision}", f"optim.compile={str(compiled).lower()}")
    [plan], site = planned(tmp_path, "cosface", set=pins)
    with pytest.raises(Stopped):
        estimate.estimate(plan, site)
    lower = torch.bfloat16 if precision == "bfloat16" else torch.float32
    assert timed == [(lower, precision == "tf32", compiled)]
