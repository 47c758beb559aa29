"""Launchers: the workers of this machine and their cards; options that do not fit; no Ray on one machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bench.cli import main
from bench.engine import pool
from bench.engine.pool import LocalWorker, workers_of
from bench.errors import UserError
from bench.methods.backbones.registry import build_backbone
from bench.planning.experiment import Run
from bench.resources import cores
from bench.site import Site


@pytest.fixture
def cards(monkeypatch):
    """Let torch see some GPUs; gives the card of each worker that is made, and its share."""
    made = []

    class Recorded:
        def __init__(self, silence, variables):
            made.append((variables["CUDA_VISIBLE_DEVICES"], float(variables["BENCH_GPU_SHARE"])))

    def of(count, visible=None):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(pool, "LocalWorker", Recorded)
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return made

    return of


def launched(**options):
    """Site and text of workers on this machine."""
    return workers_of(Run(**options).resolved(), Site(results="nowhere"), (), Path("unused"), print)[1:]


@pytest.mark.parametrize(
    ("count", "visible", "options", "expected", "share"),
    [
        (1, None, {}, ["0"], 1.0),
        (4, None, {}, ["0", "1", "2", "3"], 1.0),
        (4, None, {"workers": 2}, ["0", "1"], 1.0),
        (2, None, {"workers": 5}, ["0", "1", "0", "1", "0"], 1 / 3),
        (2, None, {"gpus_per_worker": 0.5}, ["0", "1", "0", "1"], 0.5),
        (1, None, {"gpus_per_worker": 0.3}, ["0", "0", "0"], 0.3),
        (2, None, {"gpus_per_worker": 0.5, "workers": 1}, ["0"], 0.5),
        (2, "3,5", {"workers": 3}, ["3", "5", "3"], 0.5),
        (2, " 3 , 5 ", {}, ["3", "5"], 1.0),
        (2, "GPU-8f2e, GPU-91aa", {"workers": 3}, ["GPU-8f2e", "GPU-91aa", "GPU-8f2e"], 0.5),
        (1, "MIG-1c2d", {}, ["MIG-1c2d"], 1.0),
        (1, "2,-1,3", {"workers": 2}, ["2", "2"], 0.5),  # CUDA ignores what follows a name that does not exist
        (2, "", {}, ["0", "1"], 1.0),
    ],
)
def test_workers_are_pinned_to_the_cards_in_turn_with_their_share(cards, count, visible, options, expected, share):
    made = cards(count, visible)
    site, text = launched(**options)
    assert made == [(card, share) for card in expected]
    assert site.device == "cuda"
    assert site.threads == max(1, cores() // len(expected))
    number = f"{len(expected)} worker{'s' if len(expected) > 1 else ''}"
    assert text == f"{number} on {f'{count} GPUs' if count > 1 else 'cuda'}"


def test_on_the_cpu_there_is_a_worker_per_core_and_none_is_pinned(cards):
    made = cards(0)
    site, _ = launched()
    assert [card for card, _ in made] == [""] * cores()  # CUDA is hidden: nothing can open it
    assert (site.device, site.threads) == ("cpu", 1)
    made.clear()
    assert launched(workers=3)[1] == "3 workers on cpu"
    assert [card for card, _ in made] == [""] * 3


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (2, {"workers": 5, "gpus_per_worker": 0.5}, r"^--workers 5: .* there is room for 4 on 2 GPUs$"),
        (1, {"workers": 2, "gpus_per_worker": 1.0}, r"^--workers 2: .* there is room for 1 on 1 GPU$"),
        (0, {"gpus_per_worker": 0.5}, r"^--gpus-per-worker 0\.5: no GPU is used here"),
        (2, {"gpus_per_worker": 0.5, "device": "cpu"}, r"^--gpus-per-worker 0\.5: no GPU is used here"),
        (2, {"gpus_per_worker": 0.5, "device": "cpu", "launcher": "ray"}, r"^--gpus-per-worker 0\.5: no GPU is used"),
        (0, {"device": "cuda"}, "^--device cuda: torch sees no GPU"),
        (0, {"address": "auto"}, "^--address names a Ray cluster; add --launcher ray$"),
        (0, {"workers": 257}, "^--workers 257: this machine has 64 cores"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_done(cards, count, options, message):
    cards(count)
    with pytest.raises(UserError, match=message):
        Run(**options).resolved()


@pytest.mark.parametrize("own", [None, ":16:8"])
async def test_a_worker_process_has_one_thread_and_its_variables(own, scripted, monkeypatch):
    given = {"KEPT": "1", **({"CUBLAS_WORKSPACE_CONFIG": own} if own else {})}
    for name in pool.UNLESS_SET:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    started, worker = scripted([]), LocalWorker(None, {"CUDA_VISIBLE_DEVICES": "3"})
    await pool.Pool([worker]).start()
    assert not started  # where there is nothing to do, none is
    await worker.start()
    await worker.stop()
    wanted = {"CUDA_VISIBLE_DEVICES": "3", "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    wanted |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} | given
    assert wanted.items() <= started[0].items()


def test_a_run_on_one_machine_imports_no_ray(tmp_path):
    """Not even where it is installed: it takes a second, and starts threads."""
    (tmp_path / "ray.py").write_text("")
    code = (
        "import sys, bench.commands.run, bench.engine.scheduler, bench.engine.worker\n"
        "from bench.engine.pool import workers_of\n"
        "from bench.planning.experiment import Run\n"
        "from bench.site import Site\n"
        "workers_of(Run(workers=1, device='cpu'), Site(results='nowhere'), (), None, print)\n"
        "assert 'ray' not in sys.modules\n"
        "import ray\n"  # it is found
    )
    own = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-P", "-c", code], env=own, check=True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--frozen"], True),
        (["--frozen", "--workers", "2"], False),
        (["--frozen", "--device", "cpu"], False),
        ([], False),
    ],
)
def test_heads_that_would_have_a_gpu_each_come_with_advice(options, told, cards, monkeypatch, capsys, tmp_path):
    cards(1)
    torch.save(build_backbone("convnet", 1, None).state_dict(), tmp_path / "w.pth")
    monkeypatch.setattr("bench.commands.dry_run.print_dry_run", lambda *given: None)
    command = ["run", "--method", "cosface", "--dataset", "ndigit_smoke", "--weights", str(tmp_path / "w.pth")]
    command += ["--dry-run", "--results", str(tmp_path)]
    assert main([*command, *options]) == 0
    assert ("--gpus-per-worker 0.12" in capsys.readouterr().err) is told
