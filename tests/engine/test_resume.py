"""What a run does not depend on: workers, kills, dead workers, Ctrl-C; and that two runs cannot share a folder."""

import json
import os
import signal
import subprocess
import time

import pytest
from bench.store.folder import Store


def test_workers_and_repetition_change_no_digit(small_table, cli, small, tmp_path):
    cli("run", *small, "--workers", "1")
    assert (tmp_path / "results" / "runs" / "metrics.csv").read_bytes() == small_table


@pytest.mark.slow
def test_a_study_can_be_extended_to_what_a_longer_one_would_have_been(cli, tmp_path):
    small = (
        "run",
        "--method",
        "arcface",
        "--dataset",
        "ndigit_smoke",
        "--set",
        "optim.epochs=1",
        "--seeds",
        "1",
    )
    cli(*small, "--trials", "6", "--results", tmp_path / "a")
    cli(*small, "--trials", "10", "--results", tmp_path / "a")
    cli(*small, "--trials", "10", "--results", tmp_path / "b")

    def trials(root):
        paths = sorted(root.glob("reality_check/ndigit_smoke/arcface/study-*/trial-*.json"))
        return [json.loads(p.read_text()) for p in paths]

    assert len(trials(tmp_path / "a")) == 10
    assert trials(tmp_path / "a") == trials(tmp_path / "b")


@pytest.mark.parametrize(
    "moment",
    [
        "first epoch",
        pytest.param("between trials", marks=pytest.mark.slow),
        pytest.param("a seed", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_resumes_to_the_same_table(moment, small_table, cli, small, tmp_path, killer, alive_in_group):
    root = tmp_path / "results" / "runs"
    reached = {
        "first epoch": lambda: any(root.rglob("checkpoint.pt")),
        "between trials": lambda: len(list(root.rglob("trial-*.json"))) >= 4,
        "a seed": lambda: any(root.rglob("test-*/record.json")),
    }[moment]
    process = cli.start("run", *small, "--workers", "2")
    assert killer(process, reached)
    time.sleep(0.5)
    assert not alive_in_group(process.pid), "workers outlived their parent"
    recorded = {p: p.stat().st_mtime_ns for p in root.rglob("train-*/record.json")}
    cli("run", *small, "--workers", "2")
    assert (root / "metrics.csv").read_bytes() == small_table
    for path, stamp in recorded.items():
        assert path.stat().st_mtime_ns == stamp, f"{path} was trained twice"


def _wait_for_training(process, root):
    while not any(root.rglob("checkpoint.pt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_its_job_goes_on(small_table, cli, small, tmp_path):
    root = tmp_path / "results" / "runs"
    process = cli.start("run", *small, "--workers", "2")
    _wait_for_training(process, root)
    listed = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    workers = [int(pid) for pid, group, args in rows if group == str(process.pid) and "bench.engine.worker" in args]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert (root / "metrics.csv").read_bytes() == small_table


def test_ctrl_c_says_how_to_go_on_and_leaves_everything_resumable(cli, tiny, tmp_path, alive_in_group):
    root = tmp_path / "results" / "runs"
    process = cli.start("run", "--method", "arcface", *tiny)
    _wait_for_training(process, root)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "same command again" in " ".join(stderr.split())
    assert "Traceback" not in stderr
    time.sleep(0.3)
    assert not alive_in_group(process.pid)
    cli("run", "--method", "arcface", *tiny)


def test_two_runs_cannot_write_to_one_folder(cli, small, tmp_path):
    store = Store(tmp_path / "results" / "runs")
    store.open("reality_check", 1, create=True)
    store.lock()
    second = cli("run", *small, check=False)
    assert second.returncode == 2
    assert "another bench run is writing" in second.stderr
    assert not list(store.root.glob("reality_check"))
