"""Training steps: optimisers, schedules, and gradients of batches that pass in parts when memory runs out."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import OutOfMemory, UnitFailed, first_line, is_out_of_memory
from ..methods._model import Embedding, EmbeddingModel, tf32
from ..protocols.recipes._base import Optim, Optimizer, Schedule
from .inputs import Inputs
from .running import Running, release_memory

T = TypeVar("T")

Groups = list[dict[str, Any]]
"""Parameter groups as torch takes them, each with its peak rate as ``max_lr``."""


def _eager(kind: type[torch.optim.Optimizer]) -> type[Any]:
    """Optimiser without the wrappers that keep ``torch.compile`` out of its methods.

    The wrappers import ``torch._dynamo``, which takes longer than the rest of torch, and no step of ours is compiled.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


_ADAMW, _ADAM = _eager(torch.optim.AdamW), _eager(torch.optim.Adam)
_SGD, _RMSPROP = _eager(torch.optim.SGD), _eager(torch.optim.RMSprop)

OPTIMIZERS: Mapping[Optimizer, Callable[[Groups], torch.optim.Optimizer]] = {
    "adamw": lambda groups: _ADAMW(groups, fused=True),
    "adam": lambda groups: _ADAM(groups, fused=True),
    "sgd": lambda groups: _SGD(groups, momentum=0.9),
    "rmsprop": lambda groups: _RMSPROP(groups, momentum=0.9),
}


def build_optimizer(model: nn.Module, objective: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """Optimiser with a learning rate ``lr_objective`` for the objective's own parameters and ``lr`` for all others.

    The rate of the heads is ``lr`` times ``heads_factor``. An objective may have a mapping ``learning_rates`` from
    prefixes of its parameter names to ``(rate, factor)``, where rate is ``"lr"`` or ``"lr_objective"``. These
    parameters learn at factor times that rate and without weight decay, which makes no sense for a logarithm or a
    normalising flow.
    """
    special = dict(getattr(objective, "learning_rates", {}))
    decay = optim.weight_decay
    of_objective: dict[tuple[float, float], list[nn.Parameter]] = {}
    taken = set()
    for name, parameter in objective.named_parameters():
        taken.add(id(parameter))
        prefix = next((p for p in special if name.startswith(p)), None)
        rate, factor = special[prefix] if prefix is not None else ("lr_objective", 1.0)
        key = (getattr(optim, rate) * factor, decay if prefix is None and optim.decay_objective else 0.0)
        if parameter.requires_grad:
            of_objective.setdefault(key, []).append(parameter)
    of_model: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in taken:
            factor = 1.0 if name.startswith("backbone.") else optim.heads_factor
            of_model.setdefault(optim.lr * factor, []).append(parameter)
    groups = [_group(parameters, lr, decay) for lr, parameters in of_model.items()]
    groups += [_group(parameters, lr, own_decay) for (lr, own_decay), parameters in of_objective.items()]
    if not groups:
        raise UnitFailed("nothing to train: every part of the model is frozen")
    return OPTIMIZERS[optim.optimizer](groups)


def _group(parameters: list[nn.Parameter], lr: float, decay: float) -> dict[str, Any]:
    return {"params": parameters, "lr": lr, "max_lr": lr, "weight_decay": decay}


def _one_cycle(step: int, steps: int, optim: Optim) -> float:
    total = optim.epochs * steps
    rise = max(1.0, optim.warmup * total)
    if step < rise:
        return 1 / 25 + (1 - 1 / 25) * (1 - math.cos(math.pi * step / rise)) / 2
    return (1 + math.cos(math.pi * (step - rise) / max(1.0, total - rise))) / 2


SCHEDULES: Mapping[Schedule, Callable[[int, int, Optim], float]] = {
    "onecycle": _one_cycle,
    "cosine": lambda step, steps, optim: (1 + math.cos(math.pi * step / (optim.epochs * steps))) / 2,
    "step": lambda step, steps, optim: optim.gamma ** (step // steps // optim.step_epochs),
    "multistep": lambda step, steps, optim: optim.gamma ** sum(step // steps >= epoch for epoch in optim.milestones),
    "constant": lambda step, steps, optim: 1.0,
}


def learning_rate_factor(step: int, steps: int, optim: Optim) -> float:
    """Share of the peak learning rate at a step: a pure function, so that a resumed run needs no scheduler state.

    ``onecycle`` (Smith and Topin 2017) rises as half a cosine from 1/25 to 1 over the share ``warmup`` of all steps and
    falls as half a cosine to 0; ``cosine`` only falls; ``constant`` is 1. ``step`` multiplies the factor by ``gamma``
    every ``step_epochs`` epochs, ``multistep`` at each of the epochs ``milestones``. An epoch has ``steps`` steps.

    Example:
        >>> optim = Optim(schedule="onecycle", epochs=10, warmup=0.1, lr=1.0, lr_objective=1.0)
        >>> [round(learning_rate_factor(step, 10, optim), 3) for step in (0, 10, 55, 100)]
        [0.04, 1.0, 0.5, 0.0]
    """
    return SCHEDULES[optim.schedule](step, steps, optim)


class Optimisation:
    """Optimiser, loss scaling and gradient clipping of one model, in which something must be trainable."""

    def __init__(self, model: EmbeddingModel, optim: Optim, device: str) -> None:
        self.model, self.optim = model, optim
        self.optimizer = build_optimizer(model, model.objective, optim)
        self.scaler = torch.amp.GradScaler(device, enabled=optim.precision == "float16")
        self._trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def set_rate(self, step: int, steps: int) -> None:
        """Set the learning rates by the schedule, of ``steps`` steps an epoch."""
        factor = learning_rate_factor(step, steps, self.optim)
        for group in self.optimizer.param_groups:
            group["lr"] = group["max_lr"] * factor

    def step(self, loss: Tensor) -> None:
        """Backpropagate a loss and take one optimiser step."""
        self.backward(loss)
        self.update()

    def backward(self, loss: Tensor) -> None:
        """Set the gradients to those of a loss, a scalar; in half precision they are scaled."""
        self.optimizer.zero_grad(set_to_none=True)
        with tf32(self.model.tf32):
            self.scaler.scale(loss).backward()

    def update(self, *, heads_only: bool = False) -> None:
        """Take one optimiser step by the gradients of the parameters; ``heads_only`` leaves the backbone as it is."""
        self.scaler.unscale_(self.optimizer)
        if heads_only:
            self.model.backbone.zero_grad(set_to_none=True)  # an optimiser skips what has no gradient
        if self.optim.grad_clip:
            nn.utils.clip_grad_norm_(self._trainable, self.optim.grad_clip, error_if_nonfinite=False)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """State dicts of the optimiser (``optimizer``) and of the loss scaling (``scaler``)."""
        return {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore optimiser and loss scaling from what :meth:`state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])


class MicroBatches:
    """Training steps that are tried again when memory runs out, and then go on in micro-batches.

    As in GradCache (Gao et al. 2021, arXiv:2101.06983): a first pass without a graph gives the backbone's features of
    all images, heads and loss are computed on the whole batch, and a second pass gives each part of the features its
    share of the gradient. The value of a loss over pairs thus stays what it is. Random numbers of a backbone (dropout)
    are the same in both passes; heads and loss draw theirs once. Without dropout the gradients are those of the whole
    batch up to rounding.

    Batch norm that trains takes its statistics from the whole batch, so that such a batch is never split, nor tried
    again here: running statistics have moved.
    """

    def __init__(self, model: EmbeddingModel, inputs: Inputs, optimisation: Optimisation, running: Running) -> None:
        self.model, self.inputs, self.optimisation, self.running = model, inputs, optimisation, running
        heads = (model.mean, model.spread, model.objective)
        self._heads = [module for head in heads if head is not None for module in head.modules()]

    @torch.no_grad()
    def embedding(self, batch: Tensor) -> Embedding:
        """Embeddings of a batch, without a graph."""
        return self._smaller_until_it_fits(
            batch,
            lambda: self.inputs.embed_batch(self.model, batch),
            lambda size: self.model.embed_features(torch.cat([self.model.features(p) for p in batch.split(size)])),
        )

    def gradients(self, batch: Tensor, loss_of: Callable[[Embedding], Tensor], heads_only: bool = False) -> Tensor:
        """Set the gradients of a loss on a batch, with ``heads_only`` not the backbone's; returns the loss."""
        return self._smaller_until_it_fits(
            batch,
            lambda: self._whole(batch, loss_of),
            lambda size: self._in_parts(batch.split(size), loss_of, heads_only),
        )

    def _whole(self, batch: Tensor, loss_of: Callable[[Embedding], Tensor]) -> Tensor:
        loss = loss_of(self.inputs.embed_batch(self.model, batch))
        self.optimisation.backward(loss)
        return loss.detach()

    def _in_parts(self, parts: Sequence[Tensor], loss_of: Callable[[Embedding], Tensor], heads_only: bool) -> Tensor:
        second_pass = not heads_only and any(p.requires_grad for p in self.model.backbone.parameters())
        draws, computed = [], []
        with torch.no_grad():
            for part in parts:
                draws.append(_random_state())
                computed.append(self.model.features(part))
        features = torch.cat(computed).requires_grad_(second_pass)
        loss = loss_of(self.model.embed_features(features))
        self.optimisation.backward(loss)
        if second_pass and features.grad is not None:
            after = _random_state()
            for part, drawn, gradient in zip(parts, draws, features.grad.split(len(parts[0]))):
                _set_random_state(drawn)
                again = self.model.features(part)
                with tf32(self.model.tf32):
                    again.backward(gradient)
            _set_random_state(after)
        return loss.detach()

    def _smaller_until_it_fits(self, batch: Tensor, whole: Callable[[], T], in_parts: Callable[[int], T]) -> T:
        freed = False
        while True:
            restore = _restoring(self._heads)
            size = self.running.micro_batch
            try:
                return whole() if size is None else in_parts(size)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                smaller = size if self._repeatable and not freed else self._smaller(len(batch), error)
            # Here and not above: the error refers to everything that the failed attempt has allocated.
            release_memory()
            restore()
            self.running.micro_batch, freed = smaller, True

    @property
    def _repeatable(self) -> bool:
        """Whether a failed attempt leaves the backbone as it was."""
        return not any(isinstance(module, _BatchNorm) and module.training for module in self.model.backbone.modules())

    def _smaller(self, batch: int, error: Exception) -> int:
        """Size of micro-batches to try next, if there is one."""
        said = first_line(error)
        if not self.inputs.through_backbone:
            raise OutOfMemory("heads on cached features cannot be trained in parts", said) from error
        if not self._repeatable:
            frozen = ", data.freeze_norm=statistics" if hasattr(self.model.backbone, "freeze_norm") else ""
            raise OutOfMemory("batch norm trains on whole batches", said, frozen) from error
        size = min(batch, self.running.micro_batch or batch)
        if size == 1:
            raise OutOfMemory("one image at a time", said) from error
        return size // 2


def _restoring(modules: Sequence[nn.Module]) -> Callable[[], None]:
    """Function that puts back what an attempt changes before it fails: random states, and buffers of some modules."""
    draws = _random_state()
    held = [(module, *item) for module in modules for item in module.named_buffers(recurse=False)]
    copies = [(module, name, buffer.clone()) for module, name, buffer in held]

    def restore() -> None:
        _set_random_state(draws)
        for module, name, buffer in copies:
            setattr(module, name, buffer)

    return restore


def _random_state() -> list[Tensor]:
    """States of the generators of the host and, if it has been used, of the GPU."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]


def _set_random_state(states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)
