"""The GPU of a worker process: opening it, its memory, arithmetic and software, and numbers that move to and fro."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from torch import Tensor

from ..errors import NoGpu, first_line
from ..resources import CARD, SHARE

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


def room_for_pixels() -> int:
    """Bytes of decoded images that this process may keep on its GPU: a quarter of its share of the memory.

    What is free does not count, so that a training can be repeated.
    """
    return int(float(os.environ.get(SHARE, 1)) * torch.cuda.mem_get_info()[1] / 4)


class Read:
    """Numbers of a tensor on their way to the host, which waits only for what had been launched before them."""

    def __init__(self, tensor: Tensor) -> None:
        self._numbers, self._event = tensor, torch.cuda.Event() if tensor.is_cuda else None
        if self._event is not None:
            self._numbers = tensor.to("cpu", non_blocking=True)  # in pinned memory
            self._event.record()

    def numbers(self) -> list[float]:
        """The numbers of a tensor ``[N]``."""
        if self._event is not None:
            self._event.synchronize()
        found: list[float] = self._numbers.tolist()
        return found


def software() -> str:
    """Versions of what computes on the GPU, such as ``CUDA 13.0, cuDNN 91300, driver 580.65.06``."""
    try:
        said = Path("/proc/driver/nvidia/version").read_text()
    except OSError:  # not Linux
        said = ""
    driver = re.search(r"\b\d+\.\d+(\.\d+)?\b", said)
    own = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    return f"{own}, driver {driver[0]}" if driver else own
