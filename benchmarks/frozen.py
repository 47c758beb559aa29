"""Trainings of heads on cached features of a frozen backbone: 16 at once against one at a time, in the same run.

    uv run python benchmarks/frozen.py [--methods pfe,scf,dul_reg] [--features 64,256,512,1280] [--members 16]
        [--steps 60] [--device cpu]

The members are trials of one method: the same batches of 64 random features, learning rates from 0.001 to 0.05. One at
a time is the engine's own step. At once, ``torch.func.vmap`` computes the loss of all members from stacked weights, and
each member's own optimiser takes its step on its slice of them. A row has, for each side, milliseconds per member and
step (the processor's on a CPU, which other programs change less) and the growth of the process's memory; their ratio;
the share of a step that is neither heads nor optimiser; and the largest difference of a trained weight, relative to the
largest weight of its tensor. On one core, the products of the heads take as long for 16 members as 16 times for one, so
that hardly more than that share can be saved.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # optimisers import it at their first step
from bench.engine.optim import Optimisation
from bench.methods import EmbeddingModel
from bench.protocols.recipes import Optim
from bench.site import Site
from torch import Tensor, nn
from torch.func import functional_call, vmap

CLASSES, PER_CLASS, DIM, BASE = 16, 4, 128, "cosface"
BATCHES = 8


class Features(nn.Module):
    """Backbone that passes cached features on."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out_features = size


@dataclass(frozen=True)
class Task:
    """Trainings to be timed: method, number of features, members and steps."""

    method: str
    size: int
    members: int
    steps: int
    device: str

    def models(self) -> list[EmbeddingModel]:
        """Networks of the members, equal at the start, as those of trials are."""
        site, models = Site(results="."), []
        for _ in range(self.members):
            torch.manual_seed(0)
            method = site.method(self.method, {})
            base = site.method(BASE, {}).objective(CLASSES, DIM) if method.on_base else None
            model = EmbeddingModel(method, Features(self.size), CLASSES, DIM, base, freeze_backbone=True)
            models.append(model.to(self.device).train())
        return models

    def optimisations(self, models: list[EmbeddingModel]) -> list[Optimisation]:
        """Their optimisers, each with a learning rate of its own."""
        rates = [0.001 * 50 ** (number / max(1, self.members - 1)) for number in range(self.members)]
        settings = [Optim(epochs=1, lr=rate, lr_objective=rate) for rate in rates]
        return [Optimisation(*each, self.device) for each in zip(models, settings)]

    def batches(self) -> tuple[list[Tensor], Tensor]:
        """Some batches of features ``[B, F]`` and their labels ``[B]``: noise around a centre per class."""
        gen = torch.Generator().manual_seed(1)
        labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
        centres = torch.randn(CLASSES, self.size, generator=gen)
        noise = torch.randn(BATCHES, len(labels), self.size, generator=gen)
        return list((0.5 * (centres[labels] + noise)).to(self.device)), labels.to(self.device)


def clock(device: str) -> float:
    """Seconds: of the processor on a CPU, of the wall on a GPU once its work is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def timed(task: Task, step: Callable[[int], None]) -> float:
    """Milliseconds per member and step; the first two steps do not count."""
    for number in range(2):
        step(number)
    start = clock(task.device)
    for number in range(2, task.steps):
        step(number)
    return 1000 * (clock(task.device) - start) / (task.steps - 2) / task.members


def trained(models: list[EmbeddingModel]) -> list[dict[str, Tensor]]:
    """Trained parameters of each member, by name."""
    return [{name: p for name, p in model.named_parameters() if p.requires_grad} for model in models]


def one_at_a_time(task: Task) -> tuple[float, list[dict[str, Tensor]]]:
    """Every member's steps one after the other; milliseconds, and the trained weights."""
    models, (batches, labels) = task.models(), task.batches()
    times = []
    for model, optimisation in zip(models, task.optimisations(models)):

        def step(number: int, model: EmbeddingModel = model, optimisation: Optimisation = optimisation) -> None:
            embedding = model.embed_features(batches[number % BATCHES])
            loss = model.objective(embedding.distribution, labels)
            if not (torch.isfinite(loss) and torch.isfinite(embedding.raw.detach()).all()):
                raise ValueError("the loss is not finite")
            optimisation.step(loss)

        times.append(timed(task, step) * task.members)
    return sum(times) / len(times), trained(models)


def heads_alone(task: Task) -> tuple[float, list[dict[str, Tensor]]]:
    """Forward and backward pass of the heads, and the optimiser, without distribution and loss; milliseconds."""
    models, (batches, _) = task.models(), task.batches()
    times = []
    for model, optimisation in zip(models, task.optimisations(models)):

        def step(number: int, model: EmbeddingModel = model, optimisation: Optimisation = optimisation) -> None:
            raw, spread = model.method.heads(model, batches[number % BATCHES])
            optimisation.step(sum(out.mean() for out in (raw, spread) if out is not None and out.requires_grad))

        times.append(timed(task, step) * task.members)
    return sum(times) / len(times), []


class Loss(nn.Module):
    """The loss of one member as a function of features and labels."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of features ``[B, F]`` with labels ``[B]``."""
        loss: Tensor = self.model.objective(self.model.embed_features(features).distribution, labels)
        return loss


def at_once(task: Task) -> tuple[float, list[dict[str, Tensor]]]:
    """The steps of all members together; milliseconds, and the trained weights."""
    models, (batches, labels) = task.models(), task.batches()
    members, loss = trained(models), Loss(models[0])
    stacked = {name: torch.stack([each[name].detach() for each in members]).requires_grad_() for name in members[0]}
    for number, each in enumerate(members):
        for name, parameter in each.items():
            parameter.data = stacked[name].detach()[number]  # the same memory
    optimisations = task.optimisations(models)

    def step(number: int) -> None:
        batch = (batches[number % BATCHES], labels)
        for value in stacked.values():
            value.grad = None
        losses = vmap(lambda own: functional_call(loss, {f"model.{k}": v for k, v in own.items()}, batch))(stacked)
        if not torch.isfinite(losses).all():
            raise ValueError("a loss is not finite")
        losses.sum().backward()
        for place, (each, optimisation) in enumerate(zip(members, optimisations)):
            for name, parameter in each.items():
                gradient = stacked[name].grad
                parameter.grad = None if gradient is None else gradient[place]
            optimisation.update()

    return timed(task, step), members


SIDES = {"one": one_at_a_time, "heads": heads_alone, "group": at_once}


def run_side(side: str, task: Task, answer: Connection) -> None:
    """Time one side in this process and send milliseconds, growth of memory in MiB, and the weights."""
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        milliseconds, weights = SIDES[side](task)
    except Exception as error:  # of torch.func, of many kinds, about what it cannot batch
        said = str(error).partition(" (")[0][:100]
        answer.send(f"{type(error).__name__}: {said}")
        return
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if task.device != "cpu":
        memory = torch.cuda.max_memory_allocated() / 2**20
    answer.send((milliseconds, memory, [{k: v.detach().cpu().numpy() for k, v in each.items()} for each in weights]))


def in_process(side: str, task: Task) -> Any:
    """Result that a side sends from a process of its own, so that the peak of its memory is its own."""
    context = multiprocessing.get_context("fork" if task.device == "cpu" else "spawn")
    here, there = context.Pipe()
    process = context.Process(target=run_side, args=(side, task, there))
    process.start()
    there.close()
    answer = here.recv()
    process.join()
    return answer


def difference(one: list[dict[str, Any]], group: list[dict[str, Any]]) -> float:
    """Largest difference of a weight between two trainings, relative to the largest weight of its tensor."""
    pairs = [(a[name], b[name]) for a, b in zip(one, group, strict=True) for name in a]
    return max(float(abs(a - b).max() / max(abs(a).max(), 1e-12)) for a, b in pairs)


def main() -> None:
    """Print a row per method and number of features."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="pfe,scf,dul_reg")
    parser.add_argument("--features", default="64,256,512,1280")
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    print("method    features  one at a time    at once          ratio  saveable  difference")
    for method in arguments.methods.split(","):
        for size in map(int, arguments.features.split(",")):
            task = Task(method, size, arguments.members, arguments.steps, arguments.device)
            answers = {side: in_process(side, task) for side in SIDES}
            one, memory, weights = answers["one"]
            saveable = max(0.0, 1 - answers["heads"][0] / one)
            left = f"{method:9} {size:8}  {one:6.2f} ms {memory:4.0f} MiB"
            if isinstance(answers["group"], str):
                print(f"{left}  cannot be batched ({answers['group']})", flush=True)
                continue
            group, more, others = answers["group"]
            apart = difference(weights, others)
            apart = apart if math.isfinite(apart) else math.nan
            ratio = f"{one / group:5.2f}  {100 * saveable:6.0f} %  {apart:.1e}"
            print(f"{left}  {group:6.2f} ms {more:4.0f} MiB  {ratio}", flush=True)


if __name__ == "__main__":
    main()
