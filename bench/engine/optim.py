"""Optimisers and schedules by name."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..errors import UnitFailed, unknown

OPTIMIZERS = ("adamw", "sgd")
SCHEDULES = ("onecycle", "constant")


def check_names(optim: dict[str, Any]) -> None:
    """Refuse an optimiser or a schedule that does not exist.

    Raises:
        UserError: With the nearest name.
    """
    for key, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        if optim[key] not in known:
            raise unknown(f"value of optim.{key}:", optim[key], known)


def build_optimizer(model: nn.Module, objective: nn.Module, optim: dict[str, Any]) -> torch.optim.Optimizer:
    """Optimiser with two learning rates: ``lr_objective`` for the objective's own parameters, ``lr`` for the rest.

    Raises:
        UnitFailed: If nothing is trainable.
    """
    own = [p for p in objective.parameters() if p.requires_grad]
    taken = {id(p) for p in own}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in taken]
    groups = [
        {"params": params, "lr": lr, "max_lr": lr}
        for params, lr in ((rest, optim["lr"]), (own, optim["lr_objective"]))
        if params
    ]
    if not groups:
        raise UnitFailed("nothing to train: every part of the model is frozen")
    if optim["optimizer"] == "sgd":
        return torch.optim.SGD(groups, momentum=0.9, weight_decay=optim["weight_decay"])
    return torch.optim.AdamW(groups, weight_decay=optim["weight_decay"], fused=True)


def learning_rate_factor(step: int, total: int, schedule: str, warmup: float) -> float:
    """Share of the peak learning rate at a step: a pure function, so that a resumed run needs no scheduler state.

    ``onecycle`` (Smith and Topin 2017) rises as half a cosine from 1/25 to 1 over ``warmup * total`` steps and falls
    as half a cosine to 0.

    Example:
        >>> [round(learning_rate_factor(step, 100, "onecycle", 0.1), 3) for step in (0, 10, 55, 100)]
        [0.04, 1.0, 0.5, 0.0]
    """
    if schedule == "constant":
        return 1.0
    rise = max(1.0, warmup * total)
    if step < rise:
        return 1 / 25 + (1 - 1 / 25) * (1 - math.cos(math.pi * step / rise)) / 2
    return (1 + math.cos(math.pi * (step - rise) / max(1.0, total - rise))) / 2
