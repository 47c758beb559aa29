"""Record of the machine and software that a unit ran on, and of its run time."""

from __future__ import annotations

import platform
import resource
import time

import torch

from .._version import __version__
from ..site import Site
from ..store.records import Environment
from .running import Running


def environment(site: Site, started: float, running: Running) -> Environment:
    """Machine, software and run time of a unit that began at ``started``, a value of ``time.perf_counter()``."""
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
    )
