"""``bench doctor``: its checks on a simulated GPU, what it leaves out, and what it advises."""

import json
import re
import subprocess
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from bench.commands import doctor
from bench.commands.doctor import CHECKS, advice
from bench.conformance.failure import ConformanceError
from bench.doctor import checks
from bench.doctor.checks import TOLERANCE, Here
from bench.doctor.simulated_gpu import ASSERT, Gpu
from bench.doctor.steps import METHODS, DrawsOnCpu, apart
from bench.errors import breaks_gpu
from bench.resources import per_gpu


@pytest.fixture
def gpu(monkeypatch):
    return Gpu(monkeypatch.setattr)


@pytest.fixture
def here(gpu, tmp_path, monkeypatch):
    """A simulated GPU, and two methods to check on it."""
    few = SimpleNamespace(names=["cosface", "deep_ensemble"], get=METHODS.get)
    monkeypatch.setattr(checks, "METHODS", few)
    return Here("cuda", tmp_path, gpu)


def test_every_check_is_known_to_the_command():
    assert CHECKS.keys() == checks.CHECKS.keys()


def test_methods_and_rankings_are_those_of_the_cpu(here):
    assert checks.methods(here)[1] == checks.rankings(here)[1] == {"cosface corrected": 0, "deep_ensemble corrected": 0}
    assert checks._waits(here.gpu, lambda: torch.zeros(1, device="cpu")) == 0


@pytest.mark.slow
def test_a_gpu_that_computes_something_else_is_noticed(here, monkeypatch):
    computed = Gpu.run

    def wrong(self, func, args, kwargs):
        found = computed(self, func, args, kwargs)
        if func._schema.name == "aten::convolution":
            found.held.mul_(1 + 20 * TOLERANCE)
        if func._schema.name in ("aten::mm", "aten::bmm") and len(args[0]) == 8:  # scores of eight queries
            found.held.copy_(-found.held)
        return found

    monkeypatch.setattr(Gpu, "run", wrong)
    with pytest.raises(ConformanceError, match="steps differ"):
        checks.methods(here)
    with pytest.raises(ConformanceError, match="swapped scores differ"):
        checks.rankings(here)


def test_differences_are_relative_to_all_weights_and_to_each_other_array():
    expected = {"a.weight": torch.tensor([3.0, 4.0]), "a.bias": torch.zeros(1), "scores": torch.tensor([0.1])}
    found = expected | {"a.bias": torch.tensor([0.05])}
    assert apart(found, expected) == pytest.approx(0.01)
    assert apart(expected | {"scores": torch.tensor([0.2])}, expected) == pytest.approx(1)


def test_random_numbers_of_the_gpu_can_be_drawn_on_the_cpu(gpu):
    drawn = []

    def draws(device):
        torch.manual_seed(0)
        made = torch.empty(4, device=device)
        dropped = torch.nn.functional.dropout(torch.ones(50, device=device), 0.5)
        return torch.cat([made.normal_(), torch.rand(3, device=device), torch.randn_like(made), dropped]).cpu()

    expected = draws("cpu")
    with gpu:
        gpu.fails = lambda op, args, to_gpu: drawn.append(op)
        found = draws("cuda")
        assert "normal_" in drawn
        drawn.clear()
        with DrawsOnCpu():
            found = draws("cuda")
    assert torch.equal(found, expected)
    assert not {"normal_", "rand", "randn_like", "bernoulli_", "native_dropout"} & set(drawn)


def test_an_index_beyond_the_end_breaks_the_simulated_gpu(gpu):
    with gpu:
        here = torch.zeros(3, device="cuda")
        with pytest.raises(RuntimeError, match=ASSERT) as caught:
            here[torch.full((1,), 3, device="cuda")]
        assert breaks_gpu(caught.value)
        with pytest.raises(RuntimeError, match=ASSERT):
            here + 1


def test_waits_of_a_real_gpu_are_the_warnings_of_torch(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def work():
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    assert checks._waits(None, work) == 3
    assert modes == ["warn", "default"]


def _answers(monkeypatch, **states):
    """Let every check be done, or fail as it is told, without a process."""

    def done(name, device, simulated, folder, limit):
        state = states.get(name, "ok")
        if state == "late":
            raise subprocess.TimeoutExpired("doctor", limit)
        if state == "died":
            return -11, "some\nlast line"
        found = {"state": state, "says": f"{name} on {device}", "figures": {}}
        (Path(folder) / "result.json").write_text(json.dumps(found))
        return 0, ""

    monkeypatch.setattr(doctor, "_run", done)


def test_on_a_cpu_what_makes_no_sense_is_left_out_with_a_reason(inside, monkeypatch):
    _answers(monkeypatch)
    lines = inside("doctor", "--device", "cpu").stdout.splitlines()
    assert [line.split()[:2] for line in lines[: len(CHECKS)]] == [
        ["skip" if why else "ok", name] for name, (_, why) in CHECKS.items()
    ]
    assert lines[6] == "skip  waits        0 s  a CPU is not waited for"
    assert lines[-2:] == ["no advice: the speed was not measured", "written to doctor.json"]
    report = json.loads((inside.cwd / "doctor.json").read_text())
    assert report["device"] == "cpu"
    assert [check["state"] for check in report["checks"]].count("ok") == 4


def test_a_check_that_fails_is_exit_code_1_and_the_others_are_done(inside, monkeypatch):
    _answers(monkeypatch, methods="FAIL", resume="died", speed="late")
    done = inside("doctor", "--simulated", "--out", "here.json", "--json", check=False)
    assert done.returncode == 1
    assert done.stderr == f"bench: 3 of {len(CHECKS)} checks failed\n"
    found = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert found == {check["check"]: check for check in json.loads((inside.cwd / "here.json").read_text())["checks"]}
    assert found["resume"]["says"] == "its process ended (signal 11): last line"
    assert found["speed"]["says"] == "no result after 240 s"
    assert found["poisoned"]["state"] == "ok"
    assert "mean nothing" in json.loads(done.stdout)["advice"][0]


def test_checks_that_do_not_fit_into_the_minutes_are_left_out(inside, monkeypatch):
    _answers(monkeypatch, run="late")
    done = inside("doctor", "--simulated", "--minutes", "0.9")
    states = {line.split()[1]: line for line in done.stdout.splitlines()[: len(CHECKS)]}
    assert "ended after 54 s, when --minutes were over" in states["run"]
    assert "s of --minutes are left, it may need 240 s" in states["methods"]
    assert states["poisoned"].startswith("ok")


def test_bad_input_is_a_line_before_any_check(refusal, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_run", None)
    assert "--simulated is a GPU" in refusal("doctor", "--simulated", "--device", "cpu")
    assert "Is a directory" in refusal("doctor", "--device", "cpu", "--out", tmp_path)


GPU = {
    "total": 80e9, "gain 2": 1.9, "gain 8": 4.5, "loss a": 0.3, "loss b": 0.01, "batches": 1900.0, "float32": 3000.0,
    "bfloat16": 6000.0, "all": 2000.0, "peak": 1e10,
}  # fmt: skip


@pytest.mark.parametrize("workers", range(2, 20))
def test_as_many_workers_as_the_advice_names_find_room(workers):
    figures = GPU | {"all": 6000.0 / workers, "peak": 1e9, "gain 2": 1.0, "gain 8": 1.0, f"gain {workers}": 3.0}
    lines = [line for line in advice("cuda", 64, figures) if "--gpus-per-worker" in line]
    assert len(lines) == 2
    for line in lines:
        share = float(re.search(r"--gpus-per-worker (0\.\d+)", line)[1])
        assert per_gpu(share) == workers, line


def test_advice():
    assert advice("cuda", 16, GPU) == [
        "bottleneck: the batches; all together reach 33% of the network alone",
        "workers: 3 on a GPU, --gpus-per-worker 0.333; networks and batches of this size leave room for 6",
        "heads on frozen features, and small images: 8 at once do 4.5 times the work of one, --gpus-per-worker 0.125",
        "precision: --set optim.precision=bfloat16 trains 2.0 times as fast as float32",
        "losses above a tenth of the step: a 30%",
    ]
    slower = {"peak": 5e10, "bfloat16": 3100.0, "batches": 9000.0, "gain 2": 1.1, "gain 8": 1.0, "loss a": 0.0}
    assert advice("cuda", 16, GPU | slower) == [
        "bottleneck: the network; all together reach 65% of the network alone",
        "workers: 1 on a GPU, as without --gpus-per-worker; networks and batches of this size leave room for 1",
        "precision: float32; no other is faster by 15 %",
    ]
    assert advice("cuda", 16, {"total": 80e9}) == ["no advice: the speed was not measured"]
    assert advice("cpu", 4, GPU)[1:3] == ["workers: 4, one per core, as without --workers", "precision: float32"]


@pytest.mark.slow
def test_the_whole_command_on_a_simulated_gpu(cli, tmp_path):
    report = cli.json("doctor", "--simulated", "--minutes", "20")
    assert {check["check"]: check["state"] for check in report["checks"]} == dict.fromkeys(CHECKS, "ok")
    figures = {check["check"]: check["figures"] for check in report["checks"]}
    assert set(figures["methods"].values()) == {0}
    assert (figures["run"]["equal"], figures["resume"]["difference"]) == (1, 0)
    assert json.loads((tmp_path / "doctor.json").read_text()) == report
