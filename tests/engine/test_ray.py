"""Runs on Ray clusters of several nodes on this host: the same tables as on one machine, whoever dies."""

import importlib.util
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.engine.conftest import heed_signals

BENCH = Path(sys.executable).with_name("bench")
RAY = Path(sys.executable).with_name("ray")
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)"),
]

GRID = ("--method", "cosface,pfe", "--dataset", "ndigit_smoke", "--seeds", "2", "--trials", "4")
DEATHS = int(os.environ.get("BENCH_RAY_DEATHS", "1"))
"""Deaths of each kind, at random moments."""


def _status(pid):
    """Parent and state of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), fields[0]


def _processes():
    """Arguments and parent of every living process, by number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent, state = _status(path.name)
            if state != "Z":
                found[int(path.name)] = (parent, (path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def _below(*roots):
    """Numbers and arguments of the descendants of some processes."""
    there = _processes()
    found = set(roots)
    while grown := {pid for pid, (parent, _) in there.items() if parent in found and pid not in found}:
        found |= grown
    return {pid: there[pid][1] for pid in found - set(roots) if pid in there}


class Cluster:
    """Ray nodes on this host, each of one core, with a token of their own."""

    def __init__(self, folder):
        self.folder = Path(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        token = self.folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.variables = {
            **os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        }  # fmt: skip
        self.nodes = {}
        self.started = set()

    def start(self, name, *arguments, cores=1, prefix=(), **variables):
        """Start a node; the first one is the head."""
        head = ("--head", f"--port={self.port}", f"--temp-dir={self.folder}/t", "--include-dashboard=false")
        place = (f"--address=127.0.0.1:{self.port}",) if self.nodes else head
        command = [*prefix, RAY, "start", *place, f"--num-cpus={cores}", f"--node-name={name}", "--block", *arguments]
        log = (self.folder / f"{name}.log").open("wb")
        self.nodes[name] = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=self.variables | variables, start_new_session=True
        )
        end = time.monotonic() + 120
        while b"block forever" not in (self.folder / f"{name}.log").read_bytes():
            assert time.monotonic() < end
            assert self.nodes[name].poll() is None, (self.folder / f"{name}.log").read_text()
            time.sleep(0.2)
        self.started |= set(_below(self.nodes[name].pid))

    def kill(self, name):
        """End a node as a power cut does: all of its processes at once."""
        node = self.nodes.pop(name)
        for pid in (*_below(node.pid), node.pid):
            os.kill(pid, signal.SIGKILL)
        node.wait()

    def hosts(self, *names):
        """Processes of the actors of some nodes, or of all."""
        nodes = [self.nodes[name].pid for name in names or self.nodes]
        return [pid for pid, said in _below(*nodes).items() if said.startswith("ray::Host")]

    def workers(self):
        """Our worker processes on all nodes."""
        return [
            pid
            for pid, said in _below(*(node.pid for node in self.nodes.values())).items()
            if "bench.engine.worker" in said
        ]

    def stop(self):
        for node in self.nodes.values():
            node.terminate()
        for node in self.nodes.values():
            node.wait(300)

    def command(self, cwd, *arguments, prefix=()):
        """Start ``bench run`` on the cluster."""
        where = ("--launcher", "ray", "--address", f"127.0.0.1:{self.port}")
        return Run([*prefix, BENCH, "run", *GRID, *where, *arguments], cwd, self.variables)


class Run:
    """A command that is at work."""

    def __init__(self, command, cwd, variables):
        self.log = Path(cwd) / f"log-{secrets.token_hex(4)}"
        self.process = subprocess.Popen(
            [*map(str, command)], cwd=cwd, env=variables, stdout=self.log.open("wb"), stderr=subprocess.STDOUT,
            preexec_fn=heed_signals,
        )  # fmt: skip

    @property
    def said(self):
        return self.log.read_text()

    def wait_for(self, text, seconds=240):
        end = time.monotonic() + seconds
        while not re.search(text, self.said):
            assert time.monotonic() < end, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.2)

    def end(self, seconds=600):
        """Exit code and everything that was said."""
        code = self.process.wait(seconds)
        assert "Traceback" not in self.said, self.said
        return code, self.said


def _recorded(cwd):
    """Bytes of the records of finished trainings and trials, by path."""
    names = ("record.json", "trial-*.json")
    return {path: path.read_bytes() for name in names for path in (cwd / "runs").glob(f"*/*/*/*/{name}")}


def _wait_until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, n1 (the head) and n2; tests that end a node start another one."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:  # a short path: sockets have 107 bytes
        there = Cluster(folder)
        try:
            there.start("n1")
            there.start("n2")
            yield there
        finally:
            there.stop()
            left = there.started & set(_processes())
        assert not left


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The table that one machine writes."""
    cwd = tmp_path_factory.mktemp("local")
    subprocess.run(
        [BENCH, "run", *GRID, "--results", "runs", "--workers", "2"], cwd=cwd, check=True, capture_output=True
    )
    return (cwd / "runs" / "metrics.csv").read_bytes()


def test_two_nodes_write_the_table_of_one_machine(cluster, table, tmp_path):
    run = cluster.command(tmp_path, "--results", "runs")
    run.wait_for("n1 has joined")
    run.wait_for("n2 has joined")

    def status():
        said = subprocess.run([BENCH, "status", "--results", "runs", "--json"], cwd=tmp_path, capture_output=True)
        return {unit["node"] for row in json.loads(said.stdout or "[]") for unit in row["running"]}

    _wait_until(lambda: status() & {"n1", "n2"}, 60)
    code, said = run.end()
    assert code == 0, said
    assert "12 trainings done" in said  # as many as there are records: none was done twice
    assert (tmp_path / "runs" / "metrics.csv").read_bytes() == table
    assert len(list((tmp_path / "runs").glob("*/*/*/train-*/record.json"))) == 12
    _wait_until(lambda: not cluster.hosts() and not cluster.workers())
    uploaded = list(cluster.folder.glob("t/*/runtime_resources/*_files/*"))
    assert not uploaded


@pytest.mark.parametrize("who", ["actor", "worker", "node", "driver"])
def test_deaths_change_nothing(cluster, table, tmp_path, who):
    draw = random.Random(who)
    run = cluster.command(tmp_path, "--results", "runs")
    died, before = 0, {}
    while died < DEATHS:
        run.wait_for("has joined")
        time.sleep(draw.uniform(0, 6))
        if run.process.poll() is not None:  # it was over before: the next one starts anew
            code, said = run.end()
            assert code == 0, said
            shutil.rmtree(tmp_path / "runs")
            run = cluster.command(tmp_path, "--results", "runs")
            before = {}
            continue
        # Three deaths without an epoch in between would end a job, and rightly.
        if _recorded(tmp_path).keys() == before.keys():
            continue
        before = _recorded(tmp_path)
        if who == "node":
            name = next(name for name in cluster.nodes if name != "n1")
            cluster.kill(name)
            cluster.start(f"n{len(cluster.started)}")
        elif who == "driver":
            run.process.kill()
            run.process.wait()
            _wait_until(lambda: not cluster.hosts() and not cluster.workers(), 3)
            run = cluster.command(tmp_path, "--results", "runs")
        elif victims := (cluster.hosts() if who == "actor" else cluster.workers()):
            os.kill(draw.choice(victims), signal.SIGKILL)
        else:
            continue
        died += 1
        now = _recorded(tmp_path)
        assert {path: now.get(path) for path in before} == before
    code, said = run.end()
    assert code == 0, said
    assert (tmp_path / "runs" / "metrics.csv").read_bytes() == table
    assert {path: _recorded(tmp_path).get(path) for path in before} == before
    _wait_until(lambda: not cluster.hosts() and not cluster.workers())


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_everything_and_the_same_command_resumes(cluster, table, tmp_path, number, expected):
    run = cluster.command(tmp_path, "--results", "runs")
    run.wait_for("n2|n[0-9]+ has joined")
    _wait_until(lambda: list((tmp_path / "runs").glob("*/*/*/*/record.json")), 120)
    run.process.send_signal(number)
    code, said = run.end(60)
    assert code == expected
    assert said.rstrip().endswith("type the same command again to go on.")
    _wait_until(lambda: not cluster.hosts() and not cluster.workers(), 5)
    code, said = cluster.command(tmp_path, "--results", "runs").end()
    assert code == 0, said
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
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        there = Cluster(folder)
        try:
            there.start("g1", "--num-gpus=1", cores=4)
            there.start("g2", "--num-gpus=1", cores=4)
            asked = ("--gpus-per-worker", "0.5", "--set", "optim.epochs=400")
            first = there.command(tmp_path, "--results", "runs", *asked)
            first.wait_for("g1 has joined: 2 workers")
            first.wait_for("g2 has joined: 2 workers")
            _wait_until(lambda: len(there.hosts()) == len(there.workers()) == 4, 60)
            second = there.command(tmp_path, "--results", "runs2", *asked)
            time.sleep(20)
            assert len(there.workers()) == 4
            assert "has joined" not in second.said
            for run in (first, second):
                run.process.send_signal(signal.SIGINT)
                assert run.end(60)[0] == 130
            too_many = there.command(tmp_path, "--results", "runs", "--gpus-per-worker", "0.5", "--dry-run")
            assert too_many.end()[0] == 0
        finally:
            there.stop()


def test_the_death_of_the_head_is_one_line_and_the_same_command_resumes(table, tmp_path):
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        there = Cluster(folder)
        try:
            there.start("n1")
            run = there.command(tmp_path, "--results", "runs")
            _wait_until(lambda: list((tmp_path / "runs").glob("*/*/*/*/record.json")), 240)
            before = _recorded(tmp_path)
            there.kill("n1")
            code, said = run.end(120)
            assert code == 1, said
            assert "bench: the head of the Ray cluster has not answered" in said.splitlines()[-1]
            there.start("n1")
            code, said = there.command(tmp_path, "--results", "runs").end()
            assert code == 0, said
            assert (tmp_path / "runs" / "metrics.csv").read_bytes() == table
            assert {path: _recorded(tmp_path).get(path) for path in before} == before
        finally:
            there.stop()
