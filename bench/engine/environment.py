"""Record of the machine and software that a unit ran on, and of its run time."""

from __future__ import annotations

import platform
import resource
import time

import torch

from .._version import __version__
from ..site import Site
from ..store.records import Environment
from .meter import Meter
from .running import Running


def environment(site: Site, started: float, running: Running) -> Environment:
    """Record of the machine, the software and the run time of a training or test.

    Args:
        site: Its device is recorded.
        started: Value of ``time.perf_counter()`` at the start.
        running: Progress of the training or test; sizes that memory forced on it are recorded, and the cost if it is a
            :class:`~bench.engine.meter.Meter`.
    """
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
    )
