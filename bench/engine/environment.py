"""What a unit runs on, and what it costs: GPU, machine, software, run time and memory; and how the machine rounds."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Self

import torch

from .._version import __version__
from ..errors import NoGpu, first_line, is_out_of_memory
from ..methods.host_labels import labels_on
from ..protocols.recipes._base import Optim
from ..resources import CARD, SHARE
from ..site import Site
from ..store.records import Cost, Environment
from ..store.specs import TrainSpec
from .networks import CHUNK, build_model, prepare_steps, state_sha256
from .optim import Optimisation
from .running import Running

OUTSIDE = 0.75 * 2**30
"""Bytes that a process holds beside its tensors: context, kernels and handles of CUDA. An estimate for recent GPUs."""


def open_gpu(sharing: int = 0) -> None:
    """Open the GPU of this process, hold it to its share of the memory, and turn TF32 off: a training turns it on.

    With ``sharing`` workers on this GPU, none of which has begun, there must be room for the shares of all of them.

    Raises:
        NoGpu: If it cannot be used.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    name, share = f"GPU {os.environ.get(CARD) or 0}", float(os.environ.get(SHARE, 1))
    try:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        free, total = torch.cuda.mem_get_info()
    except (RuntimeError, AssertionError) as error:
        hint = "; another program uses it alone (nvidia-smi -c DEFAULT)" if "busy" in str(error) else ""
        raise NoGpu(f"{name} cannot be used: {first_line(error)}{hint}") from error
    if share < 1:
        torch.cuda.set_per_process_memory_fraction(max(share / 2, share - OUTSIDE / total))
    if sharing * share * total > free + sharing * OUTSIDE:
        raise NoGpu(
            f"{name}: {sharing} workers with a share of {share:.2g} need {sharing * share * total / 2**30:.1f} GiB, but"
            f" {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free; use fewer --workers, or a smaller"
            " --gpus-per-worker with them"
        )


EMBEDDING = "embedding of split test"
"""Step of a test that embeds a chunk of clean test images."""


@dataclass
class Meter(Running):
    """Progress of a training or test that measures its cost, from when it is made.

    It is no part of what is computed: a training without one gives the same numbers.
    """

    resumed: bool = False
    _peaks: bool = False
    _cpu: float = field(default_factory=time.process_time)
    _chunks: list[float] = field(default_factory=list)
    _last: tuple[str, float, int | None] | None = None

    @classmethod
    def of(cls, alive: Callable[[str], None], resumed: bool) -> Self:
        """Make a meter that starts now; ``resumed`` is whether an earlier process did part of the training."""
        meter = cls(resumed=resumed, _peaks=_forget_peaks())

        def timed(step: str) -> None:
            meter.time(step)
            alive(step)

        meter.alive = timed
        return meter

    def time(self, step: str) -> None:
        """Note that a step begins; a chunk of test images is timed by the beginning of the next one.

        The last chunk of a split is not timed: it may be short. Nor is one that ran out of memory.
        """
        now = time.perf_counter()
        step = step.partition(":")[0]  # without how many images are done
        if step == EMBEDDING and self._last is not None and self._last[0] == step and self._last[2] == self.chunk:
            self._chunks.append(1000 * (now - self._last[1]) / (self.chunk or CHUNK))
        self._last = (step, now, self.chunk)

    def cost(self) -> Cost:
        """Cost up to now."""
        gpu = torch.cuda.max_memory_allocated() >> 20 if torch.cuda.is_initialized() else 0
        return Cost(
            cpu_seconds=None if self.resumed else round(time.process_time() - self._cpu, 3),
            peak_memory_mib=_peak_memory() if self._peaks else None,
            peak_gpu_memory_mib=gpu or None,
            ms_per_image=round(median(self._chunks), 4) if self._chunks else None,
            resumed=self.resumed,
        )


def _forget_peaks() -> bool:
    """Let the largest memory count from now, since a worker does many jobs; False if the system does not."""
    if torch.cuda.is_initialized():  # a look at the GPU would open it
        torch.cuda.reset_peak_memory_stats()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux, or a container without the right
        return False
    return True


def _peak_memory() -> int | None:
    """Largest resident memory since it was forgotten, MiB."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) >> 10 if found else None


def environment(site: Site, started: float, running: Running, rounding: str = "") -> Environment:
    """Record of the machine, the software, the run time and, if it was measured, the cost of a training or test."""
    per_mib = 1 << 20 if platform.system() == "Darwin" else 1 << 10  # macOS counts bytes, Linux KiB
    return Environment(
        bench=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        device=torch.cuda.get_device_name() if site.device == "cuda" else "cpu",
        gpu_software=gpu_software() if site.device == "cuda" else "",
        threads=torch.get_num_threads(),
        seconds=round(time.perf_counter() - started, 3),
        peak_memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // per_mib,
        **running.sizes,
        cost=running.cost() if isinstance(running, Meter) else None,
        processor=processor(),
        commit=commit(),
        rounding=rounding,
    )


def gpu_software() -> str:
    """Versions of what computes on the GPU, such as ``CUDA 13.0, cuDNN 91300, driver 580.65.06``."""
    try:
        said = Path("/proc/driver/nvidia/version").read_text()
    except OSError:  # not Linux
        said = ""
    driver = re.search(r"\b\d+\.\d+(\.\d+)?\b", said)
    own = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    return f"{own}, driver {driver[0]}" if driver else own


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
    asked = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


STEPS, IMAGES, CLASSES = 20, 8, 4

_known: dict[tuple[str, str, int], str] = {}


def rounding(spec: TrainSpec, site: Site, shape: tuple[int, ...]) -> str:
    """Hash of the weights after 20 steps of the method, at its default setting, on 8 images of noise ``[C, H, W]``.

    Machines with equal hashes train alike to the last bit, as far as so few steps can tell. A process computes it once
    for a method and network. A method of a plug-in has none: its code may count what it does.
    """
    if site.methods.get(spec.method).plugin:
        return ""
    own = spec.optim
    optim = Optim(epochs=1, lr=1e-3, lr_objective=1e-3, optimizer=own.optimizer, precision=own.precision)
    base = spec.base and spec.base.model_copy(update={"params": {}, "unit": ""})
    fixed = spec.replaced(params={}, optim=optim, base=base, replicate=0, fold=0, crop_confidence=None)
    key = fixed.id, site.device, torch.get_num_threads()
    if key not in _known:
        try:
            _known[key] = _after_steps(fixed, site.model_copy(update={"weights": "none"}), shape)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return ""  # a training may fit all the same, in smaller parts
    return _known[key]


def _after_steps(spec: TrainSpec, site: Site, shape: tuple[int, ...]) -> str:
    model = build_model(spec, site, CLASSES, shape[0]).train()
    prepare_steps(model, spec.optim)
    noise = torch.rand(IMAGES, *shape, generator=torch.Generator().manual_seed(0)).to(site.device)
    images = noise.contiguous(memory_format=torch.channels_last) if noise.dim() == 4 else noise
    labels = labels_on(site.device, torch.arange(IMAGES) % CLASSES)
    if not model.method.by_steps:
        with torch.no_grad():
            model.method.fit(model.eval(), model.features(images), labels)
        return state_sha256(model)[:16]
    optimisation = Optimisation(model, spec.optim, site.device)
    with torch.no_grad():
        features = model.features(images)
    for _ in range(STEPS):
        features = features if model.backbone_frozen else model.features(images)
        optimisation.step(model.objective(model.embed_features(features).distribution, labels))
    return state_sha256(model)[:16]
