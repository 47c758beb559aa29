"""Labels of a batch that the host knows too, so that a loss can count and select by them without waiting for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of the CPU on a device; the host does not wait until it is there."""
    return tensor if torch.device(device).type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def labels_on(device: torch.device | str, labels: Tensor) -> Tensor:
    """Labels ``[B]`` of the CPU on a device, which :func:`on_host` finds again there."""
    there = sent(labels, device)
    if there is not labels:
        there.on_host = labels  # type: ignore[attr-defined]
    return there


def on_host(labels: Tensor) -> Tensor:
    """Labels ``[B]`` on the CPU: those that :func:`labels_on` was given, or else a copy, for which the host waits."""
    found: Tensor = getattr(labels, "on_host", labels)
    return found.cpu()


def places(mask: Tensor, device: torch.device | str) -> tuple[Tensor, ...]:
    """Indices on a device of what is true in a mask of the CPU, one tensor ``[P]`` for each dimension."""
    return tuple(sent(index, device) for index in mask.nonzero(as_tuple=True))
