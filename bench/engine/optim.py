"""Optimisers and schedules by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..errors import UnitFailed, unknown

OPTIMIZERS = ("adamw", "adam", "sgd", "rmsprop")
SCHEDULES = ("onecycle", "cosine", "step", "multistep", "constant")
PRECISIONS = ("float32", "bfloat16", "float16")


def check_names(optim: dict[str, Any]) -> None:
    """Refuse an optimiser or a schedule that does not exist.

    Raises:
        UserError: With the nearest name.
    """
    for key, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("precision", PRECISIONS)):
        if optim[key] not in known:
            raise unknown(f"value of optim.{key}:", optim[key], known)


def build_optimizer(model: nn.Module, objective: nn.Module, optim: dict[str, Any]) -> torch.optim.Optimizer:
    """Optimiser with two learning rates: ``lr_objective`` for the objective's own parameters, ``lr`` for the rest.

    An objective may have a ``learning_rates`` mapping from prefixes of its parameter names to ``(rate, factor)``, the
    rate being ``lr`` or ``lr_objective``: those parameters learn at factor times that rate and without weight decay,
    which would pull a logarithm or a flow towards nothing in particular.

    Raises:
        UnitFailed: If nothing is trainable.
    """
    special = dict(getattr(objective, "learning_rates", {}))
    decay = optim["weight_decay"]
    grouped: dict[tuple[float, float], list[nn.Parameter]] = {}
    taken = set()
    for name, parameter in objective.named_parameters():
        taken.add(id(parameter))
        prefix = next((p for p in special if name.startswith(p)), None)
        rate, factor = special[prefix] if prefix is not None else ("lr_objective", 1.0)
        key = (optim[rate] * factor, decay if prefix is None and optim["decay_objective"] else 0.0)
        if parameter.requires_grad:
            grouped.setdefault(key, []).append(parameter)
    parts: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in taken:
            factor = 1.0 if name.startswith("backbone.") else optim["heads_factor"]
            parts.setdefault(optim["lr"] * factor, []).append(parameter)
    groups = [{"params": params, "lr": lr, "max_lr": lr, "weight_decay": decay} for lr, params in parts.items()]
    groups += [{"params": params, "lr": lr, "max_lr": lr, "weight_decay": wd} for (lr, wd), params in grouped.items()]
    if not groups:
        raise UnitFailed("nothing to train: every part of the model is frozen")
    if optim["optimizer"] == "sgd":
        return torch.optim.SGD(groups, momentum=0.9)
    if optim["optimizer"] == "rmsprop":
        return torch.optim.RMSprop(groups, momentum=0.9)
    cls = torch.optim.Adam if optim["optimizer"] == "adam" else torch.optim.AdamW
    return cls(groups, fused=True)


def learning_rate_factor(step: int, steps: int, optim: Mapping[str, Any]) -> float:
    """Share of the peak learning rate at a step: a pure function, so that a resumed run needs no scheduler state.

    ``onecycle`` (Smith and Topin 2017) rises as half a cosine from 1/25 to 1 over the share ``warmup`` of all steps
    and falls as half a cosine to 0; ``cosine`` only falls; ``step`` is ``gamma`` to the number of ``step_epochs``
    passed, ``multistep`` to the number of ``milestones`` passed.

    Args:
        step: Steps done.
        steps: Steps of an epoch.
        optim: ``schedule``, ``epochs``, ``warmup``, ``gamma``, ``step_epochs``, ``milestones``.

    Example:
        >>> optim = {"schedule": "onecycle", "epochs": 10, "warmup": 0.1}
        >>> [round(learning_rate_factor(step, 10, optim), 3) for step in (0, 10, 55, 100)]
        [0.04, 1.0, 0.5, 0.0]
    """
    total, schedule = optim["epochs"] * steps, optim["schedule"]
    if schedule == "constant":
        return 1.0
    if schedule == "step":
        factor: float = optim["gamma"] ** (step // steps // optim["step_epochs"])
        return factor
    if schedule == "multistep":
        passed = sum(step // steps >= epoch for epoch in optim["milestones"])
        return math.pow(optim["gamma"], passed)
    if schedule == "cosine":
        return (1 + math.cos(math.pi * step / total)) / 2
    warmup = optim["warmup"]
    rise = max(1.0, warmup * total)
    if step < rise:
        return 1 / 25 + (1 - 1 / 25) * (1 - math.cos(math.pi * step / rise)) / 2
    return (1 + math.cos(math.pi * (step - rise) / max(1.0, total - rise))) / 2
