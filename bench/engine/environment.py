"""Record of the machine and software that a unit ran on, and of its run time."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time
from functools import cache
from pathlib import Path

import torch

from .._version import __version__
from ..site import Site
from ..store.records import Environment
from .meter import Meter
from .running import Running


def environment(site: Site, started: float, running: Running) -> Environment:
    """Record of the machine, the software, the run time and, if it was measured, the cost of a training or test."""
    per_mib = 1 << 20 if platform.system() == "Darwin" else 1 << 10  # macOS counts bytes, Linux KiB
    return Environment(
        bench=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        device=torch.cuda.get_device_name() if site.device == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        seconds=round(time.perf_counter() - started, 3),
        peak_memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // per_mib,
        **running.sizes,
        cost=running.cost() if isinstance(running, Meter) else None,
        processor=processor(),
        commit=commit(),
    )


@cache
def processor() -> str:
    """Model of the processor and number of its cores that this machine has, such as ``AMD EPYC, 2 cores``."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores"


@cache
def commit() -> str:
    """Git commit of the checkout that this code is in, followed by ``+`` if tracked files differ; empty without one."""
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return ""
    try:
        asked = (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        head, changes = (
            subprocess.run(
                ["git", "-C", folder, *words], capture_output=True, text=True, check=True, timeout=60
            ).stdout.strip()
            for words in asked
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head}+" if changes else head
