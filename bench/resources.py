"""What this machine lends a command: a device, cores, processes."""

from __future__ import annotations

import os

from .errors import UserError


def pick_device(device: str) -> str:
    """``cpu`` or ``cuda``.

    Raises:
        UserError: If cuda is asked for and not there.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; use --device cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def default_workers(device: str) -> int:
    """One process per core this one may run on; one alone on a GPU, which they would have to share."""
    return 1 if device == "cuda" else cores()


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
