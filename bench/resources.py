"""Resources of this machine: device, cores, processes, folder of data sets."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import NoGpu, UserError, first_line

if TYPE_CHECKING:
    from .datasets.dataset import Dataset


CARD = "CUDA_VISIBLE_DEVICES"
"""Environment variable with the GPUs that a process may use; none if it is empty."""

SHARE = "BENCH_GPU_SHARE"
"""Environment variable with the share of a GPU's memory that a process may use, in (0, 1]."""


def pick_device(device: str) -> str:
    """Device to compute on, ``cpu`` or ``cuda``; ``auto`` is ``cuda`` if there is a GPU.

    Raises:
        NoGpu: If a GPU is asked for, or is there, that cannot be used.
    """
    if device == "cpu":
        return device
    import torch

    with warnings.catch_warnings(record=True, action="always") as said:
        if torch.cuda.is_available():
            return "cuda"
    if device == "auto" and not said:
        return "cpu"
    try:  # the driver is too old, say
        torch.cuda.init()
        reason = str(said[-1].message) if said else ""
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
    reason = re.split(r"\. |\.?$", reason)[0]
    raise NoGpu(f"--device {device}: torch sees no GPU here ({reason}); use --device cpu")


def worker_count(asked: int | None, device: str, gpus_per_worker: float | None = None) -> int:
    """Number of worker processes: what was asked for, else one per core, or as many as the GPUs have room for.

    More than four per core, or than the shares of the GPUs, are refused.
    """
    if asked is not None and asked > 4 * (os.cpu_count() or 1):
        raise UserError(f"--workers {asked}: this machine has {os.cpu_count()} cores; each worker keeps one busy")
    if device == "cpu":
        return cores() if asked is None else asked
    cards = len(gpu_names())
    room = cards * per_gpu(gpus_per_worker or 1.0)
    if gpus_per_worker is not None and asked is not None and asked > room:
        raise UserError(
            f"--workers {asked}: with --gpus-per-worker {gpus_per_worker:g} there is room for {room} on"
            f" {cards} GPU{'s' if cards > 1 else ''}"
        )
    return room if asked is None else asked


def per_gpu(share: float) -> int:
    """Number of workers on one GPU if each has a share of it, in (0, 1].

    Example:
        >>> per_gpu(0.25), per_gpu(0.4), per_gpu(1 / 3)
        (4, 2, 3)
    """
    return int(1 / share + 1e-9)


def gpu_names() -> list[str]:
    """Names of the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` takes them."""
    import torch

    count = torch.cuda.device_count()
    given = [name.strip() for name in os.environ.get(CARD, "").split(",") if name.strip()]
    return given[:count] if len(given) >= count else [str(number) for number in range(count)]


def cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_memory() -> None:
    """Have this process keep the memory that it frees, until :func:`return_memory`, where the C library is glibc.

    By default every large array is memory that the system maps and clears anew. For the activations of a network that
    takes up to twice as long as the network itself.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


def return_memory() -> None:
    """Give memory that is free back to the system, where the C library is glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def data_home() -> Path:
    """Folder of downloaded data sets if the user names none: ``$BENCH_DATA``, else the platform's for user data."""
    import platformdirs

    given = os.environ.get("BENCH_DATA")
    return Path(given).expanduser().resolve() if given else platformdirs.user_data_path("bench", appauthor=False)


def root_of(cls: type[Dataset], root: Path | None, home: Path | None) -> Path | None:
    """Folder in which a data set is looked for, the user's or that of all data sets; None if it needs none."""
    from .datasets.releases import PhotoDataset

    if root is None and home is not None and issubclass(cls, PhotoDataset):
        return cls.default_root(home)
    return root


def require_hub() -> None:
    """Check that the package for the Hugging Face Hub is here."""
    if find_spec("huggingface_hub") is None:
        raise UserError("this needs huggingface_hub: `pip install 'probembed[hub]'`")
