"""Ray clusters of several nodes, and runs of ``bench`` on them, for tests."""

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.engine.conftest import heed_signals

BENCH = Path(sys.executable).with_name("bench")
RAY = Path(sys.executable).with_name("ray")
GRID = ("--method", "cosface,pfe", "--dataset", "ndigit_smoke", "--seeds", "1", "--trials", "3")
TRAININGS = 2 * 3
"""Number of trainings of that run."""


def processes():
    """Arguments and parent of every living process, by number."""
    listed = subprocess.check_output(["ps", "-eo", "pid=,ppid=,stat=,args="], text=True)
    rows = (line.split(None, 3) for line in listed.splitlines())
    return {int(pid): (int(parent), said) for pid, parent, state, said in rows if "Z" not in state}


def below(*roots):
    """Numbers and arguments of the descendants of some processes."""
    there = processes()
    found = set(roots)
    while grown := {pid for pid, (parent, _) in there.items() if parent in found and pid not in found}:
        found |= grown
    return {pid: there[pid][1] for pid in found - set(roots) if pid in there}


class Cluster:
    """Ray nodes on this host, or each on one of ``hosts``, of one core each, with a token of their own."""

    def __init__(self, folder, hosts=None):
        self.folder = Path(folder)
        self._hosts, self.address = hosts, "127.0.0.1"
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
        if self._hosts is not None:
            prefix = self._hosts.on(name)
            arguments = (f"--node-ip-address={self._hosts.addresses[name]}", *arguments)
            self.address = self.address if self.nodes else self._hosts.addresses[name]
        place = (f"--address={self.address}:{self.port}",) if self.nodes else head
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
        self.started |= set(below(self.nodes[name].pid))

    def kill(self, name):
        """End a node as a power cut does: all of its processes at once."""
        node = self.nodes.pop(name)
        for pid in (*below(node.pid), node.pid):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        node.wait()

    def _below(self):
        return below(*(node.pid for node in self.nodes.values()))

    def hosts(self):
        """Processes of the actors of all nodes."""
        return [pid for pid, said in self._below().items() if said.startswith("ray::Host")]

    def workers(self):
        """Our worker processes on all nodes."""
        return [pid for pid, said in self._below().items() if "bench.engine.worker" in said]

    def stop(self):
        for node in self.nodes.values():
            node.terminate()
        for node in self.nodes.values():
            node.wait(300)

    def command(self, cwd, *arguments, prefix=()):
        """Start ``bench run`` on the cluster."""
        where = ("--launcher", "ray", "--address", f"{self.address}:{self.port}")
        return Run([*prefix, BENCH, "run", *GRID, *where, *arguments], cwd, self.variables)


@contextlib.contextmanager
def cluster_of_its_own():
    """A cluster in a folder of a short path: sockets have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        there = Cluster(folder)
        try:
            yield there
        finally:
            there.stop()


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

    def finished(self, seconds=600):
        """Everything that was said by a run that ends well."""
        code, said = self.end(seconds)
        assert code == 0, said
        return said


def recorded(cwd):
    """Bytes of the records of finished trainings and trials, by path."""
    names = ("record.json", "trial-*.json")
    return {path: path.read_bytes() for name in names for path in (cwd / "runs").glob(f"*/*/*/*/{name}")}


def table_of_one_host(folder, grid):
    """The tidy table that a run without a cluster writes."""
    command = [BENCH, "run", *grid, "--results", "runs", "--workers", "2"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=900)
    return (folder / "runs" / "metrics.csv").read_bytes()


def wait_until(true, seconds=20, what=""):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.1)
