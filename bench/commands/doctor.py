"""``bench doctor``: does this machine compute what it should, how fast, and what should a run on it be told?"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .._version import __version__
from ..errors import UnitFailed, UserError, printable, shortened
from .options import Device, Json, print_json

CHECKS = {
    "versions": (60, ""),
    "run": (120, ""),
    "methods": (240, "the CPU is what a GPU is compared with"),
    "rankings": (60, "the CPU is what a GPU is compared with"),
    "resume": (120, ""),
    "speed": (240, ""),
    "waits": (120, "a CPU is not waited for"),
    "memory": (120, "only a GPU's memory runs out in a way that can be tried"),
    "shares": (120, "a CPU has no shares"),
    "poisoned": (90, "a CPU does not break"),
}
"""Seconds that a check may take, and why it makes no sense on a CPU, by its name in the order of the checks."""

Figures = dict[str, float]


def doctor(
    device: Annotated[Device, typer.Option(help="What to check.")] = Device.auto,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Time for all checks; those that do not fit are left out.")
    ] = 8.0,
    out: Annotated[Path, typer.Option("--out", help="File to write.", metavar="FILE")] = Path("doctor.json"),
    simulated: Annotated[
        bool,
        typer.Option("--simulated", help="Check a simulated GPU: what needs no GPU to be tried. Its speeds are not."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check that this machine computes what it should.

    Measures how fast it is, too, and says what a run should be told.
    Every check is a process of its own. On a GPU, every method, rankings and a whole run are compared with the CPU; a
    worker is killed, runs out of memory and breaks its GPU. Attach the file to bug reports.

    \b
    bench doctor
    bench doctor --device cpu --minutes 3
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from ..resources import cores, pick_device
    from ..store.files import write_atomic

    end = time.monotonic() + 60 * minutes
    if simulated and device is Device.cpu:
        raise UserError("--simulated is a GPU; leave --device cpu out")
    chosen = "cuda" if simulated else pick_device(device.value)
    write_atomic(out, b"{}\n")  # before minutes are spent
    results: list[Any] = []
    for name in CHECKS:
        start = time.monotonic()
        state, says, figures = _checked(name, chosen, simulated, end - start)
        seconds = time.monotonic() - start
        results.append({"check": name, "state": state, "says": says, "seconds": round(seconds, 1), "figures": figures})
        if not as_json:
            print(printable(f"{state:<4}  {name:<9} {seconds:4.0f} s  {says}"), flush=True)
    figures = {key: value for result in results for key, value in result["figures"].items()}
    nothing = ["no advice: speeds of a simulated GPU mean nothing"]
    advised = nothing if simulated else advice(chosen, cores(), figures)
    report = {"bench": __version__, "device": chosen, "simulated": simulated, "checks": results, "advice": advised}
    write_atomic(out, json.dumps(report, indent=1).encode() + b"\n")
    if as_json:
        print_json(report)
    else:
        print("\n".join([*advised, f"written to {out}"]))
    failed = sum(result["state"] == "FAIL" for result in results)
    if failed:
        raise UnitFailed(f"{failed} of {len(results)} checks failed", "bench doctor")


def _checked(name: str, device: str, simulated: bool, left: float) -> tuple[str, str, Figures]:
    """State of a check, a line and figures; it is left out if it makes no sense here, or if little time is left."""
    limit, why = CHECKS[name]
    if device == "cpu" and why:
        return "skip", why, {}
    if left < limit / 4:
        return "skip", f"{max(0, left):.0f} s of --minutes are left, it may need {limit} s", {}
    with tempfile.TemporaryDirectory(prefix="bench-doctor-", ignore_cleanup_errors=True) as folder:
        try:
            code, said = _run(name, device, "simulated" if simulated else "", folder, min(limit, left))
        except subprocess.TimeoutExpired:
            if left < limit:
                return "skip", f"ended after {left:.0f} s, when --minutes were over", {}
            return "FAIL", f"no result after {limit} s", {}
        path = Path(folder) / "result.json"
        if not path.exists():
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            last = (said.strip().splitlines() or ["it said nothing"])[-1]
            return "FAIL", shortened(f"its process ended ({how}): {last}"), {}
        found = json.loads(path.read_text())
        return found["state"], found["says"], found["figures"]


def _run(name: str, device: str, simulated: str, folder: str, limit: float) -> tuple[int, str]:
    """Exit code of a check's process, and what it said."""
    from ..engine.pool import ONE_THREAD, UNLESS_SET

    command = [sys.executable, "-P", "-m", "bench.doctor.checks", name, device, simulated, folder]
    env = {**UNLESS_SET, **os.environ, **ONE_THREAD}
    done = subprocess.run(command, capture_output=True, env=env, text=True, errors="replace", timeout=limit)
    return done.returncode, done.stderr


def _share(workers: int) -> float:
    """Share of a GPU of each of some workers, rounded down: rounded up, one of them would find no room."""
    return math.floor(1000 / workers) / 1000


def advice(device: str, cores: int, figures: Figures) -> list[str]:
    """Lines of advice for runs on a machine, from the figures of its checks."""
    lines = []
    if "all" not in figures:
        return ["no advice: the speed was not measured"]
    best = max((name for name in ("float32", "tf32", "bfloat16") if name in figures), key=figures.__getitem__)
    network, together = figures[best], figures["all"]
    slowest = "batches" if figures["batches"] < network else "network"
    lines.append(f"bottleneck: the {slowest}; all together reach {together / network:.0%} of the network alone")
    if device == "cpu":
        lines += [f"workers: {cores}, one per core, as without --workers", "precision: float32"]
    else:
        room = int(figures.get("total", 0) // (1.2 * figures["peak"]))
        workers = max(1, min(round(network / together), room, cores))
        share = f"--gpus-per-worker {_share(workers):g}" if workers > 1 else "as without --gpus-per-worker"
        lines.append(f"workers: {workers} on a GPU, {share}; networks and batches of this size leave room for {room}")
        gains = {int(name.split()[1]): gain for name, gain in figures.items() if name.startswith("gain ")}
        many = max(gains, key=gains.__getitem__, default=1)
        if gains.get(many, 1) >= 1.2:
            gain = f"{many} at once do {gains[many]:.1f} times the work of one"
            lines.append(f"heads on frozen features, and small images: {gain}, --gpus-per-worker {_share(many):g}")
        ratio = network / figures["float32"]
        faster = f"--set optim.precision={best} trains {ratio:.1f} times as fast as float32"
        lines.append(f"precision: {faster if ratio >= 1.15 else 'float32; no other is faster by 15 %'}")
    shares = {name.removeprefix("loss "): share for name, share in figures.items() if name.startswith("loss ")}
    slow = [f"{name} {share:.0%}" for name, share in shares.items() if share > 0.1]
    return [*lines, *([f"losses above a tenth of the step: {', '.join(slow)}"] if slow else [])]
