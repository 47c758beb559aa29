"""Cost of the launchers: the same small run by local workers and on a Ray cluster of one node, in turn, in one run.

    uv run --extra ray python benchmarks/launchers.py [--trials 8 48] [--repeats 3]

Trainings last an epoch, so that most of what is measured is the launcher. Each run is made with two numbers of trials:
the difference gives the cost of a unit, what is left the cost of starting and ending. Processor seconds and memory are
those of the command and of everything below it and below the Ray node, looked up five times a second; the node's own
costs while no command runs are not counted. Memory is the largest sum of proportional set sizes.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

TICK = os.sysconf("SC_CLK_TCK")
BIN = Path(sys.executable).parent


class Cost(NamedTuple):
    """Cost of a run: wall-clock seconds, processor seconds, and peak memory in MiB."""

    wall: float
    cpu: float
    memory: float


def below(roots: set[int]) -> set[int]:
    """Some processes and all of their descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = set(roots)
    while grown := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= grown
    return found


def cpu_seconds(pid: int) -> float:
    """Processor seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory(pid: int) -> float:
    """Proportional set size of a process, MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def measured(command: list[str], cwd: Path, variables: dict[str, str], node: int | None) -> Cost:
    """Cost of a command, and of what it makes the processes of a Ray node do."""
    used: dict[int, float] = {}
    peak = 0.0
    stop = threading.Event()
    before = {pid: cpu_seconds(pid) for pid in below({node})} if node else {}
    began = time.perf_counter()
    with (cwd / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=cwd, env=variables, stdout=log, stderr=subprocess.STDOUT)

        def watch() -> None:
            nonlocal peak
            while not stop.wait(0.2):
                held = 0.0
                for pid in below({process.pid} | ({node} if node else set())):
                    try:
                        used[pid] = cpu_seconds(pid) - before.get(pid, 0.0)
                        held += memory(pid)
                    except OSError:
                        continue
                peak = max(peak, held)

        watching = threading.Thread(target=watch)
        watching.start()
        code = process.wait()
        wall = time.perf_counter() - began
        stop.set()
        watching.join()
    if code:
        raise SystemExit((cwd / "log").read_text())
    return Cost(wall, sum(used.values()), peak)


class Node:
    """A Ray cluster of one node with one core, with a token, while the context lasts."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        (self.folder / "token").write_text(secrets.token_hex(32))
        self.variables = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        }

    def __enter__(self) -> Node:
        port = self.address.rpartition(":")[2]
        options = ("--head", f"--port={port}", "--num-cpus=1", f"--temp-dir={self.folder}/t", "--block")
        log = self.folder / "log"
        self._process = subprocess.Popen(
            [BIN / "ray", "start", *options, "--include-dashboard=false"],
            env=self.variables,
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
        )
        while b"block forever" not in log.read_bytes():
            if self._process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.2)
        return self

    @property
    def pid(self) -> int:
        """Number of the process that all others of the node come from."""
        return self._process.pid

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.wait()


def main() -> None:
    """Print the costs of both launchers and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs=2, default=(8, 48), help="numbers of trials, few and many")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    few, many = sorted(arguments.trials)
    if few == many:
        parser.error("--trials: two different numbers")
    costs: dict[tuple[str, int], list[Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="l") as folder, Node(folder) as node:
        for repeat in range(arguments.repeats):
            for trials in (few, many):
                for launcher in ("local", "ray"):
                    on_ray = ["--launcher", "ray", "--address", node.address] if launcher == "ray" else []
                    command = [
                        *(str(BIN / "bench"), "run", "--method", "cosface", "--dataset", "ndigit_smoke"),
                        *("--set", "optim.epochs=1", "--seeds", "1", "--trials", str(trials), "--workers", "1"),
                        *("--results", f"{launcher}-{trials}-{repeat}", *on_ray),
                    ]
                    cost = measured(command, Path(folder), node.variables, node.pid if on_ray else None)
                    costs.setdefault((launcher, trials), []).append(cost)
    print(f"{'':<24}{'wall s':>22}{'processor s':>22}{'peak MiB':>22}")
    print(f"{'':<24}" + f"{'local':>8}{'ray':>7}{'ratio':>7}" * 3)

    def line(what: str, of: dict[str, Cost], digits: int) -> None:
        pairs = [(of["local"][i], of["ray"][i]) for i in range(3)]
        print(f"{what:<24}" + "".join(f"{a:>8.{digits}f}{b:>7.{digits}f}{b / a:>7.2f}" for a, b in pairs))

    median = {key: Cost(*(statistics.median(part) for part in zip(*rows))) for key, rows in costs.items()}
    for trials in (few, many):
        line(f"{trials + 1} trainings", {name: median[name, trials] for name in ("local", "ray")}, 1)
    for name in ("local", "ray"):
        a, b = median[name, few], median[name, many]
        wall, cpu = ((y - x) / (many - few) for x, y in zip(a[:2], b[:2]))
        start = a.wall - wall * (few + 1), a.cpu - cpu * (few + 1)
        print(f"{name:<6} a unit: {wall:.2f} s, {cpu:.2f} s of a processor", end="; ")
        print(f"start and end: {start[0]:.1f} s, {start[1]:.1f} s of a processor")


if __name__ == "__main__":
    main()
