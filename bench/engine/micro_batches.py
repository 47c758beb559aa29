"""Gradients of a loss on a whole batch whose images pass through the backbone in parts when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import OutOfMemory, first_line, is_out_of_memory
from ..methods._model import Embedding, EmbeddingModel
from .inputs import Inputs
from .optim import Optimisation
from .running import Running, release_memory

T = TypeVar("T")


class MicroBatches:
    """Training steps that go on in micro-batches when memory runs out.

    As in GradCache (Gao et al. 2021, arXiv:2101.06983): a first pass without a graph gives the backbone's features of
    all images, heads and loss are computed on the whole batch, and a second pass gives each part of the features its
    share of the gradient. The value of a loss over pairs thus stays what it is. Random numbers of a backbone (dropout)
    are the same in both passes; heads and loss draw theirs once. Without dropout the gradients are those of the whole
    batch up to rounding.

    Batch norm that trains takes its statistics from the whole batch, so that such a batch is never split.
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
                self.model.features(part).backward(gradient)
            _set_random_state(after)
        return loss.detach()

    def _smaller_until_it_fits(self, batch: Tensor, whole: Callable[[], T], in_parts: Callable[[int], T]) -> T:
        while True:
            before = _State.of(self._heads)
            try:
                size = self.running.micro_batch
                return whole() if size is None else in_parts(size)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                smaller = self._smaller(len(batch), error)
            # Here and not above: the error refers to everything that the failed attempt has allocated.
            release_memory()
            before.restore()
            self.running.micro_batch = smaller

    def _smaller(self, batch: int, error: Exception) -> int:
        """Size of micro-batches to try next, if there is one."""
        said = first_line(error)
        if not self.inputs.through_backbone:
            raise OutOfMemory("heads on cached features cannot be trained in parts", said) from error
        if any(isinstance(module, _BatchNorm) and module.training for module in self.model.backbone.modules()):
            frozen = ", data.freeze_norm=statistics" if hasattr(self.model.backbone, "freeze_norm") else ""
            raise OutOfMemory("batch norm trains on whole batches", said, frozen) from error
        size = min(batch, self.running.micro_batch or batch)
        if size == 1:
            raise OutOfMemory("one image at a time", said) from error
        return size // 2


@dataclass(frozen=True)
class _State:
    """State that an attempt changes before it fails: random states, and buffers of heads and objective."""

    draws: list[Tensor]
    buffers: list[tuple[nn.Module, str, Tensor]]

    @classmethod
    def of(cls, modules: Sequence[nn.Module]) -> _State:
        held = [
            (module, name, buffer.clone()) for module in modules for name, buffer in module.named_buffers(recurse=False)
        ]
        return cls(_random_state(), held)

    def restore(self) -> None:
        _set_random_state(self.draws)
        for module, name, buffer in self.buffers:
            setattr(module, name, buffer)


def _random_state() -> list[Tensor]:
    """States of the generators of the host and, if it has been used, of the GPU."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]


def _set_random_state(states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)
