"""Processor time of the main job by part, and of its trainings at another setting, both in one run.

    uv run python benchmarks/main_job.py [--pin optim.precision=bfloat16] [--seeds 3] [--epochs 20]

The main job is ``bench run --method dul_cls --dataset ndigit --seeds 5``: five studies of ten trials, trainings of 20
epochs, each in a process with one thread. Trainings at the usual setting and with the pinned value run in turn, with
the same seeds, each in a process of its own that is forked when everything is imported. Compared are processor seconds,
peak memory and the MAP@R of the validation classes that selects the epoch.

The parts of a training follow: time and share, and for the convolutions the arithmetic rate, next to that of a large
matrix product in float32 and bfloat16. The protocol fixes the arithmetic of the convolutions, so that their time at the
rate of the matrix product bounds what a faster implementation can save. All times are processor times, which other load
disturbs less than wall times.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import torch
from bench.engine.training import Trainer, run_training
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.site import Site
from bench.store.specs import TrainSpec
from torch import Tensor, nn


class Cost(NamedTuple):
    """Result of a training: processor seconds, peak memory in MiB, validation MAP@R of the epoch that is kept."""

    seconds: float
    memory: float
    map_at_r: float


def spec_of(site: Site, pins: list[str], replicate: int) -> TrainSpec:
    """Specification of a training of the main job at the default setting and some pinned values."""
    request = Experiment(methods=("dul_cls",), datasets=("ndigit",), hparams="default", set=pins)
    return build_plans(request, site).plans[-1].train_specs({}, replicate, None)[0]


def _train(spec: TrainSpec, site: Site, out: Connection) -> None:
    before = time.process_time()
    record = run_training(spec, site, lambda epoch: None)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    out.send(Cost(time.process_time() - before, memory, record.val_map_at_r))


def trained(spec: TrainSpec, site: Site) -> Cost:
    """Cost of a training in a process of its own."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_train, args=(spec, site, send))
    process.start()
    send.close()
    cost: Cost = receive.recv()
    process.join()
    return cost


def milliseconds(work: Callable[[], object], calls: int = 8, repeats: int = 5) -> float:
    """Processor time of a call: the least mean over some calls, after two to warm up."""
    work(), work()
    means = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(calls):
            work()
        means.append((time.process_time() - start) / calls)
    return 1e3 * min(means)


def convolutions(backbone: nn.Module, images: Tensor) -> list[tuple[str, float, float]]:
    """Name, time of a step and multiply-adds of a step in millions of every convolution, padding not counted."""
    seen: list[tuple[nn.Conv2d, Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, inputs: seen.append((module, inputs[0].detach().clone())))
        for module in backbone.modules()
        if isinstance(module, nn.Conv2d)
    ]
    backbone(images)
    for hook in hooks:
        hook.remove()
    rows = []
    for number, (layer, inputs) in enumerate(seen):
        inputs.requires_grad_(number > 0)
        gradient = torch.randn_like(layer(inputs).detach())
        took = milliseconds(lambda: layer(inputs).backward(gradient))  # noqa: B023
        # As many multiply-adds as output and tap pairs that lie inside the image, for each of the passes.
        inside = nn.functional.conv2d(
            torch.ones(1, 1, *inputs.shape[2:]), torch.ones(1, 1, *layer.kernel_size), padding=layer.padding
        )
        passes = 2 + (number > 0)
        pairs = float(inside.sum()) * len(inputs) * layer.in_channels * layer.out_channels
        rows.append((f"convolution {number + 1}", took, passes * pairs / 1e6))
    return rows


def print_parts(spec: TrainSpec, site: Site) -> None:
    """Print the time of the parts of a training."""
    trainer = Trainer(spec, site)
    trainer.resume_or_start()
    trainer.train_epoch(0)
    model, optimisation = trainer.model.train(), trainer.optimisation
    rows, batch = next(trainer._batches("parts", 0))
    labels = trainer.data.train.labels[rows]
    draws = torch.Generator().manual_seed(0)
    loss_of = partial(trainer._loss, labels, "parts")
    step = milliseconds(lambda: trainer.micro_batches.gradients(batch, loss_of))
    features = model.features(batch).detach().requires_grad_()
    convolution = convolutions(model.backbone, batch)
    heads = milliseconds(lambda: loss_of(model.embed_features(features)).backward())
    of_steps = [(name, took) for name, took, _ in convolution]
    of_steps.append(("pooling, batch norm, ReLU", step - heads - sum(took for _, took in of_steps)))
    of_steps += [
        ("heads and loss", heads),
        ("augmented batch", milliseconds(lambda: trainer.inputs.batch(rows, draws))),
        ("optimiser", milliseconds(optimisation.update)),
    ]
    epochs = spec.optim.epochs
    parts = [(name, took * trainer.steps * epochs / 1e3) for name, took in of_steps]
    parts.append(("validation", epochs * milliseconds(lambda: trainer.validate(0, 0.0), 2, 4) / 1e3))
    trainer.book(trainer.validate(0, 0.0))
    parts.append(("checkpoints", epochs * milliseconds(trainer.save_checkpoint, 2, 4) / 1e3))
    total = sum(took for _, took in parts)
    rate = {name: 2 * millions / took for name, took, millions in convolution}
    print(f"{'part of a training':<28}{'processor s':>12}{'share':>8}{'Gflop/s':>9}")
    for name, took in parts:
        print(f"{name:<28}{took:>12.2f}{took / total:>8.1%}" + (f"{rate[name]:>9.0f}" if name in rate else ""))
    print(f"{'sum':<28}{total:>12.2f}")
    for dtype in (torch.float32, torch.bfloat16):
        square = torch.randn(1024, 1024).to(dtype)
        name = f"matrix product, {str(dtype).removeprefix('torch.')}"
        print(f"{name:<48}{2 * 1.024**3 / milliseconds(lambda: square @ square, 2) * 1e3:>9.0f}")  # noqa: B023


def print_pairs(site: Site, pin: str, seeds: int, common: list[str]) -> None:
    """Train at both settings in turn, and print what they cost and give."""
    sides: tuple[list[Cost], list[Cost]] = ([], [])
    print(f"\n{'seed':<6}{'processor s':>20}{'peak MiB':>16}{'validation MAP@R':>20}   usual, {pin}")
    for seed in range(seeds):
        for side, pins in zip(sides, (common, [*common, pin])):
            side.append(trained(spec_of(site, pins, seed), site))
        a, b = (side[-1] for side in sides)
        line = f"{seed:<6}{a.seconds:>10.2f}{b.seconds:>10.2f}{a.memory:>8.0f}{b.memory:>8.0f}"
        print(f"{line}{a.map_at_r:>10.4f}{b.map_at_r:>10.4f}", flush=True)
    ratios = [a.seconds / b.seconds for a, b in zip(*sides)]
    print(f"ratio of processor seconds: {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")
    difference = np.array([b.map_at_r - a.map_at_r for a, b in zip(*sides)])
    spread = f" +- {difference.std(ddof=1) / len(difference) ** 0.5:.4f} (standard error)" if seeds > 1 else ""
    print(f"difference of validation MAP@R: {difference.mean():+.4f}{spread}")


def main() -> None:
    """Print the parts of a training, and trainings at both settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pin", default="optim.precision=bfloat16", help="KEY=VALUE of the other setting")
    parser.add_argument("--seeds", type=int, default=3, help="pairs of trainings; 0 for the parts alone")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    common = [f"optim.epochs={options.epochs}"]
    with tempfile.TemporaryDirectory() as folder:
        site = Site(results=folder, weights="none", threads=1)
        site.dataset("ndigit").train_val()  # makes its digits once
        if options.seeds:
            print_pairs(site, options.pin, options.seeds, common)
        print_parts(spec_of(site, common, options.seeds), site)


if __name__ == "__main__":
    main()
