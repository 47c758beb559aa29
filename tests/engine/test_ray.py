"""Runs on Ray clusters of several nodes on this host: the same tables as on one machine, whoever dies."""

import importlib.util
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.engine import clusters

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)"),
]

DEATHS = int(os.environ.get("BENCH_RAY_DEATHS", "1"))
"""Deaths of each kind, at random moments."""


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, n1 (the head) and n2; tests that end a node start another one."""
    with clusters.cluster_of_its_own() as there:
        there.start("n1")
        there.start("n2")
        yield there
    assert not there.started & set(clusters.processes())


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The table that one machine writes."""
    return clusters.table_of_one_host(tmp_path_factory.mktemp("local"), clusters.GRID)


def without_ray(said):
    """What a command has said, without the paragraphs of Ray about nodes that died."""
    return re.sub(r"[^\n]*\(raylet\)[^\n]*\n(\t[^\n]*\n)*", "", said).rstrip()


def test_two_nodes_write_the_table_of_one_machine(cluster, table, tmp_path):
    run = cluster.command(tmp_path, "--results", "runs")
    for name in cluster.nodes:
        run.wait_for(f"node {name} has joined")
    said = run.finished()
    assert f"{clusters.TRAININGS} trainings done" in said  # as many as there are records: none was done twice
    assert (tmp_path / "runs" / "metrics.csv").read_bytes() == table
    assert len(list((tmp_path / "runs").glob("*/*/*/train-*/record.json"))) == clusters.TRAININGS
    clusters.wait_until(lambda: not cluster.hosts() and not cluster.workers())
    assert not list(cluster.folder.glob("t/*/runtime_resources/*_files/*"))


@pytest.mark.parametrize("who", ["actor", "worker", "node", "driver"])
def test_deaths_change_nothing(cluster, table, tmp_path, who):
    draw = random.Random(who)
    run = cluster.command(tmp_path, "--results", "runs")
    died, before = 0, {}
    while died < DEATHS:
        run.wait_for("has joined")
        time.sleep(draw.uniform(0, 6))
        if run.process.poll() is not None:  # it was over before: the next one starts anew
            run.finished()
            shutil.rmtree(tmp_path / "runs")
            run = cluster.command(tmp_path, "--results", "runs")
            before = {}
            continue
        # Three deaths without an epoch in between would end a job, and rightly.
        if clusters.recorded(tmp_path).keys() == before.keys():
            continue
        before = clusters.recorded(tmp_path)
        if who == "node":
            name = next(name for name in cluster.nodes if name != "n1")
            cluster.kill(name)
            cluster.start(f"n{len(cluster.started)}")
        elif who == "driver":
            run.process.kill()
            run.process.wait()
            clusters.wait_until(lambda: not cluster.hosts() and not cluster.workers(), 3)
            run = cluster.command(tmp_path, "--results", "runs")
        elif victims := (cluster.hosts() if who == "actor" else cluster.workers()):
            os.kill(draw.choice(victims), signal.SIGKILL)
        else:
            continue
        died += 1
        assert before.items() <= clusters.recorded(tmp_path).items()
    run.finished()
    assert (tmp_path / "runs" / "metrics.csv").read_bytes() == table
    assert before.items() <= clusters.recorded(tmp_path).items()
    clusters.wait_until(lambda: not cluster.hosts() and not cluster.workers())


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_everything_and_the_same_command_resumes(cluster, table, tmp_path, number, expected):
    run = cluster.command(tmp_path, "--results", "runs")
    run.wait_for("node n[0-9]+ has joined")
    clusters.wait_until(lambda: list((tmp_path / "runs").glob("*/*/*/*/record.json")), 120)
    run.process.send_signal(number)
    code, said = run.end(60)
    assert code == expected
    assert without_ray(said).endswith("run the same command again to resume.")
    clusters.wait_until(lambda: not cluster.hosts() and not cluster.workers(), 5)
    cluster.command(tmp_path, "--results", "runs").finished()
    assert (tmp_path / "runs" / "metrics.csv").read_bytes() == table


def test_a_node_with_other_code_or_without_the_folder_is_left_out_by_name(cluster, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(ROOT / "bench", other / "bench")
    for name in ("methods", "datasets", "protocols", "results"):
        shutil.copytree(ROOT / name, other / "bench" / name, ignore=shutil.ignore_patterns("runs"))
    method = other / "bench" / "methods" / "cosface.py"
    method.write_text(method.read_text() + "\nEDITED = True\n")
    cluster.start("edited", PYTHONPATH=str(other))
    (tmp_path / "runs").mkdir()
    hidden = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {tmp_path}/runs && exec "$@"', "sh")
    can_hide = os.geteuid() == 0 and subprocess.run([*hidden, "true"], capture_output=True).returncode == 0
    if can_hide:
        cluster.start("blind", prefix=hidden)
    try:
        run = cluster.command(tmp_path, "--results", "runs", "--set", "optim.epochs=400", "--trials", "40")
        run.wait_for(r"node edited is left out: its code of \w+ on ndigit_smoke is not that of this run")
        run.wait_for("node n1 has joined")
        if can_hide:
            run.wait_for(f"node blind is left out: it does not see the results folder {tmp_path}/runs")
        run.process.send_signal(signal.SIGINT)
        assert run.end(60)[0] == 130
    finally:
        for name in {"edited", "blind"} & set(cluster.nodes):
            cluster.kill(name)


def test_declared_gpus_are_shared_out_and_a_fifth_worker_waits(tmp_path):
    with clusters.cluster_of_its_own() as there:
        there.start("g1", "--num-gpus=1", cores=4)
        there.start("g2", "--num-gpus=1", cores=4)
        asked = ("--gpus-per-worker", "0.5", "--set", "optim.epochs=400", "--trials", "40")
        first = there.command(tmp_path, "--results", "runs", *asked)
        first.wait_for("g1 has joined: 2 workers")
        first.wait_for("g2 has joined: 2 workers")
        clusters.wait_until(lambda: len(there.hosts()) == len(there.workers()) == 4, 60)
        second = there.command(tmp_path, "--results", "runs2", *asked)
        time.sleep(20)
        assert len(there.workers()) == 4, first.said
        assert "has joined" not in second.said
        for run in (first, second):
            run.process.send_signal(signal.SIGINT)
            assert run.end(60)[0] == 130
        there.command(tmp_path, "--results", "runs", "--gpus-per-worker", "0.5", "--dry-run").finished()


def test_the_death_of_the_head_is_one_line_and_the_same_command_resumes(table, tmp_path):
    with clusters.cluster_of_its_own() as there:
        there.start("n1")
        run = there.command(tmp_path, "--results", "runs")
        clusters.wait_until(lambda: list((tmp_path / "runs").glob("*/*/*/*/record.json")), 240)
        before = clusters.recorded(tmp_path)
        there.kill("n1")
        code, said = run.end(120)
        assert code == 1, said
        assert "bench: the head of the Ray cluster has not answered" in without_ray(said).splitlines()[-1]
        there.start("n1")
        there.command(tmp_path, "--results", "runs").finished()
        assert (tmp_path / "runs" / "metrics.csv").read_bytes() == table
        assert before.items() <= clusters.recorded(tmp_path).items()
