"""What a run does not depend on: workers, kills, dead workers, Ctrl-C; signals and closed pipes."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from bench.site import Site
from bench.store.claims import Claims

from tests.plans import planned
from tests.templates import PLAIN, written

from .conftest import BENCH, PATIENCE, SMALL, TINY, wait_for


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["first epoch", "between trials", "a seed"])
def test_a_killed_run_resumes_to_the_same_table(moment, small_table, cli, tmp_path, killer, alive_in_group):
    root = tmp_path / "results" / "runs"
    reached = {
        "first epoch": lambda: any(root.rglob("checkpoint.pt")),
        "between trials": lambda: len(list(root.rglob("trial-*.json"))) >= 4,
        "a seed": lambda: any(root.rglob("test-*/record.json")),
    }[moment]
    process = cli.start("run", *SMALL, "--workers", "2")
    assert killer(process, reached)
    assert not alive_in_group(process.pid, within=10), "workers outlived their parent"
    recorded = {p: p.stat().st_mtime_ns for p in root.rglob("train-*/record.json")}
    cli("run", *SMALL, "--workers", "2")
    assert (root / "metrics.csv").read_bytes() == small_table
    for path, stamp in recorded.items():
        assert path.stat().st_mtime_ns == stamp, f"{path} was trained twice"


def _wait_for_training(process, root):
    wait_for(process, lambda: any(root.rglob("checkpoint.pt")))


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_its_job_goes_on(small_table, cli, tmp_path):
    root = tmp_path / "results" / "runs"
    process = cli.start("run", *SMALL, "--workers", "2")
    _wait_for_training(process, root)
    listed = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    workers = [int(pid) for pid, group, args in rows if group == str(process.pid) and "bench.engine.worker" in args]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert (root / "metrics.csv").read_bytes() == small_table


@pytest.mark.slow
def test_a_rerun_has_the_folder_to_itself(cli, tmp_path):
    root = tmp_path / "results" / "runs"
    there = Claims(root)
    there.enter(alone=False, lost=lambda: None)
    line = cli.refused("run", *SMALL, "--on-existing", "rerun")
    assert f"another bench run is writing to {root} (process {os.getpid()} on" in line
    # A refused run wrote its protocol into store.json.
    assert [path.name for path in root.iterdir()] == [".drivers"]
    there.close()
    there.enter(alone=True, lost=lambda: None)
    assert "another bench run is writing" in cli.refused("run", *SMALL)
    there.close()
    assert not list((root / ".drivers").iterdir())


def test_who_is_alone_is_told_when_his_claim_is_deleted(tmp_path, monkeypatch):
    """After ``.lock`` was deleted, a second run entered unnoticed."""
    monkeypatch.setattr("bench.store.claims.LEASE", 0.6)
    told = threading.Event()
    claims = Claims(tmp_path)
    claims.enter(alone=True, lost=told.set)
    (tmp_path / ".drivers" / "alone").unlink()
    assert told.wait(PATIENCE)
    claims.close()


def _wait_for_our_first_line(process):
    """Python itself does not catch SIGTERM, we do; before that, a signal is not ours to handle."""
    status = Path(f"/proc/{process.pid}/status")
    caught = 0
    while status.exists() and not caught >> (signal.SIGTERM - 1) & 1 and process.poll() is None:
        time.sleep(0.005)
        caught = int(re.search(r"^SigCgt:\s*(\w+)", status.read_text(), re.MULTILINE)[1], 16)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("after", [0.1, 0.8, 2.3])
def test_a_signal_at_any_moment_of_start_up_ends_it_without_a_traceback(number, code, after, cli, tmp_path):
    process = cli.start("run", *SMALL)
    _wait_for_our_first_line(process)
    time.sleep(after)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=PATIENCE)
    if "Fatal Python error" in stderr:  # on a busy machine without /proc
        pytest.skip("the signal came before Python itself had started")
    assert "Traceback" not in stderr
    # Without /proc it may not have come to our first line.
    assert process.returncode == code or (process.returncode == -number and not Path("/proc").exists())
    if process.returncode == code:
        assert "nothing finished is lost" in stderr.lower()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "number", "code"),
    [(os.killpg, signal.SIGINT, 130), (os.kill, signal.SIGTERM, 143), (os.kill, signal.SIGHUP, 129)],
)  # the terminal sends Ctrl-C to the whole group
def test_a_signal_in_training_says_how_to_go_on_and_leaves_everything_resumable(
    send, number, code, cli, tmp_path, alive_in_group
):
    process = cli.start("run", "--method", "arcface", *TINY)
    _wait_for_training(process, tmp_path / "results" / "runs")
    send(process.pid, number)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert "same command again" in " ".join(stderr.split())
    assert "Traceback" not in stderr
    assert not alive_in_group(process.pid, within=1)
    assert not list(tmp_path.rglob(".claim"))
    cli("run", "--method", "arcface", *TINY)


QUICK = (BENCH, "run", "--method", "cosface", "--dataset", "ndigit_smoke", "--set", "optim.epochs=1", "--seeds", "1",
         "--hparams", "default")  # fmt: skip
FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


@FULL
def test_output_that_cannot_be_written_is_one_line(cli):
    """On a full disk it was a traceback and exit code 120."""
    with open("/dev/full", "w") as full:
        done = subprocess.run([BENCH, "list", "methods"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "bench: standard output: No space left on device"
    assert "Traceback" not in done.stderr


@FULL
@pytest.mark.slow
def test_a_log_that_cannot_be_written_ends_no_run(cli, tmp_path):
    """A full disk with the log ended the run, with a traceback and exit code 120."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(QUICK, cwd=tmp_path, stdout=subprocess.PIPE, stderr=full, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert "cosface" in done.stdout
    assert (tmp_path / "results" / "runs" / "report" / "report.html").exists()


REMEMBERS = """
import random
from collections import deque
import numpy as np
import torch

class Loss(CosineClassifier):
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        START
    def forward(self, distribution, labels):
        STEP
        return factor * super().forward(distribution, labels)
    EXTRA

@register"""
"""Before the class of a method: a softmax whose weight changes with the steps."""
EXTRA = "get_extra_state = lambda self: self.kept\n    set_extra_state = lambda self, kept: setattr(self, 'kept', kept)"
RISES = "factor = self.kept = self.kept * 1.01"
TENSOR, BUFFER = "self.kept = torch.ones(())", "self.register_buffer('kept', torch.ones(()){})"
MEMORIES = {  # start, step, further members, and what no checkpoint can hold
    "buffer": (BUFFER.format(""), RISES, "", ""),
    "extra state": (TENSOR, RISES, EXTRA, ""),
    "global generators": ("self.kept = np.random.rand()",
                          "factor = self.kept + np.random.rand() + random.random()", "", ""),
    "number": ("self.kept = 1.0", RISES, "", ""),
    "list": ("self.kept = [{'at': (1.0,)}]", "factor = 1.01 * self.kept.pop()['at'][0]\n"
             "        self.kept.append({'at': (factor,)})", "", ""),
    "tensor": (TENSOR, RISES, "", "kept"),
    "temporary buffer": (BUFFER.format(", persistent=False"), RISES, "", "_buffers"),
    "deque": ("self.kept = deque([1.0])", "factor = 1.01 * self.kept.pop()\n        self.kept.append(factor)", "",
              "kept"),
    "generator": ("self.kept = torch.Generator().manual_seed(1)", "factor = torch.rand((), generator=self.kept)", "",
                  "kept"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", MEMORIES)
def test_a_training_with_a_memory_ends_the_same_after_a_break(kind, tmp_path):
    """What is in plain attributes was lost: 1,016 of 1,097 values of a run differed after a kill, without a word."""
    from bench.engine.training import run_training

    *code, lost = MEMORIES[kind]
    text = PLAIN.replace("@register", REMEMBERS).replace("return CosineClassifier", "return Loss")
    for place, part in zip(("START", "STEP", "    EXTRA\n"), (*code[:2], f"    {code[2]}\n")):
        text = text.replace(place, part)
    plugin = written(tmp_path, text)

    def ready(results):
        site = Site(results=str(tmp_path / results), plugins=(str(plugin),))
        [plan], _ = planned(site, "mine", set=("optim.epochs=3",))
        return plan.train_specs({}, 0, None)[0], site

    def stop(epoch):
        if epoch == 2:
            raise KeyboardInterrupt

    whole = run_training(*ready("a"), lambda epoch: None)
    spec, site = ready("b")
    with pytest.raises(KeyboardInterrupt):
        run_training(spec, site, stop)
    epochs = []
    resumed = run_training(spec, site, epochs.append)
    assert (resumed.files, resumed.history, resumed.note) == (whole.files, whole.history, whole.note)
    assert epochs == ([1, 2, 3] if lost else [3])
    assert whole.note.startswith(f"objective.{lost} changed in training") if lost else whole.note == ""


@pytest.mark.slow
def test_a_rerun_that_loses_its_folder_ends_as_a_background_job_too(cli, tmp_path, alive_in_group):
    """A script's background job ignores SIGINT, by which it was to end: it went on next to the other run."""
    root = tmp_path / "results" / "runs"
    asked = ("--method", "cosface", "--dataset", "ndigit_smoke", "--set", "optim.epochs=5000", "--hparams", "default")
    ignoring = ("bash", "-c", 'trap "" INT; exec "$0" "$@"')
    process = cli.start("run", *asked, "--on-existing", "rerun", prefix=ignoring)
    _wait_for_training(process, root)
    (root / ".drivers" / "alone").unlink()
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert "same command again" in " ".join(stderr.split())
    assert "Traceback" not in stderr
    assert not alive_in_group(process.pid, within=1)


@pytest.mark.slow
def test_a_closed_pipe_stops_nothing(cli, tmp_path):
    """``bench run | head -1`` stopped the run, ``bench status | true`` had exit code 1."""
    for script, command in (('"$@" 2>&1 | head -c 1', QUICK), ('"$@" | true', (BENCH, "status", "--check"))):
        piped = ["bash", "-c", f"set -o pipefail; {script}", "sh", *command]
        done = subprocess.run(piped, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "results" / "runs" / "report" / "comparison.md").exists()
