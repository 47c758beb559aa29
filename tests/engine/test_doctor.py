"""``bench doctor`` on a CPU, its advice, and what it says when something fails; on a GPU: ``test_gpu_device.py``."""

import json
import re

import pytest
import torch
from bench.commands import doctor
from bench.commands.doctor import advice
from bench.engine.pool import UNLESS_SET
from bench.errors import UnitFailed
from bench.resources import per_gpu

from tests.in_process import forget_determinism


@pytest.fixture(autouse=True)
def _process_of_its_own(monkeypatch):
    """The command sets up its process."""
    for name, value in {**UNLESS_SET, "BENCH_CACHE": ""}.items():
        monkeypatch.setenv(name, value)
    yield
    forget_determinism()


def test_on_a_cpu(inside, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "NETWORKS", {"cpu": ("test_resnet", 32, 12)})
    version, speed, training, *advised = inside("doctor", "--device", "cpu").stdout.splitlines()
    assert f"torch {torch.__version__}" in version
    assert re.match(
        r"images per second, test_resnet, batches of 12: float32 [\d.,]+, batches [\d.,]+, all [\d.,]+$", speed
    )
    assert re.match(r"a training and its test gave \d{4} values$", training)
    assert advised[-1] == "written to doctor.json"
    report = json.loads((tmp_path / "doctor.json").read_text())
    assert (report["device"], report["failed"]) == ("cpu", "")
    assert report["advice"] == advised[:-1]


@pytest.mark.parametrize(
    ("error", "said"),
    [(UnitFailed("values differ"), "values differ"), (RuntimeError("CUDA error\nand more"), "CUDA error")],
)
def test_what_fails_is_exit_code_1_with_its_reason_in_the_file(inside, monkeypatch, error, said):
    def fails(device, folder):
        raise error

    monkeypatch.setattr(doctor, "_speed", fails)
    done = inside("doctor", "--device", "cpu", "--out", "here.json", "--json", check=False)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report == json.loads((inside.cwd / "here.json").read_text())
    assert report["failed"].endswith(said)
    assert done.stderr == f"bench: {report['failed']}\n"
    assert len(report["checks"]) == 1
    assert report["advice"] == ["no advice: the speed was not measured"]


def test_bad_input_is_a_line_before_any_check(refusal, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_machine", None)
    assert "Is a directory" in refusal("doctor", "--device", "cpu", "--out", tmp_path)


GPU = {"total": 80e9, "batches": 1900.0, "float32": 3000.0, "bfloat16": 6000.0, "all": 2000.0, "peak": 1e10}


@pytest.mark.parametrize("workers", range(2, 20))
def test_as_many_workers_as_the_advice_names_find_room(workers):
    (line,) = (line for line in advice("cuda", 64, GPU | {"all": 6000.0 / workers, "peak": 1e9}) if "workers" in line)
    assert per_gpu(float(re.search(r"--gpus-per-worker (0\.\d+)", line)[1])) == workers, line


def test_advice():
    assert advice("cuda", 16, GPU) == [
        "bottleneck: the batches; all together reach 33% of the network alone",
        "workers: 3 on a GPU, --gpus-per-worker 0.333; networks and batches of this size leave room for 6",
        "precision: --set optim.precision=bfloat16 trains 2.0 times as fast as float32",
    ]
    slower = {"peak": 5e10, "bfloat16": 3100.0, "batches": 9000.0}
    assert advice("cuda", 16, GPU | slower) == [
        "bottleneck: the network; all together reach 65% of the network alone",
        "workers: 1 on a GPU, as without --gpus-per-worker; networks and batches of this size leave room for 1",
        "precision: float32; no other is faster by 15 %",
    ]
    assert advice("cuda", 16, {"total": 80e9}) == ["no advice: the speed was not measured"]
    assert advice("cpu", 4, GPU)[1:] == ["workers: 4, one per core, as without --workers", "precision: float32"]
