"""Resources of this machine: device, cores, processes."""

from __future__ import annotations

import os

from .errors import UserError


def pick_device(device: str) -> str:
    """Device to compute on, ``cpu`` or ``cuda``.

    Args:
        device: ``cpu``, ``cuda``, or ``auto`` for ``cuda`` if there is a GPU.

    Raises:
        UserError: If ``cuda`` is asked for and not there.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; use --device cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def worker_count(asked: int | None, device: str) -> int:
    """Number of worker processes: what was asked for, else one per core, or a single one on a GPU.

    Args:
        asked: The number that was asked for, if any.
        device: ``cpu`` or ``cuda``.

    Raises:
        UserError: If more than four per core are asked for.
    """
    if asked is None:
        return 1 if device == "cuda" else cores()
    if asked > 4 * (os.cpu_count() or 1):
        raise UserError(f"--workers {asked}: this machine has {os.cpu_count()} cores; each worker keeps one busy")
    return asked


def cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
