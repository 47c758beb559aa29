"""Cost of every method's loss beside a training step of GoogLeNet at 224 px, both measured in this run.

    uv run python benchmarks/losses.py [--classes 11318] [--dim 128] [--batch 100] [--backbone-batch 8] [--device cpu]

The backbone step (forward and backward, channels last) is timed at ``--backbone-batch`` images and scaled to
``--batch``; losses are timed at ``--batch`` in full. Prints milliseconds, the share of the step, and the peak memory
that the loss adds.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench.methods import EmbeddingModel
from bench.methods.distributions import vmf_log_normalizer
from bench.registry import Registry
from torch import nn


class Flat(nn.Module):
    """Stands in for a backbone: hands features through."""

    out_features = 1024

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features as they are."""
        return x


def best_of(run: Callable[[], object], repeats: int, device: str) -> float:
    """Median seconds of a few runs after one to warm up."""
    times = []
    for number in range(repeats + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        if number:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def resident() -> int:
    """Resident memory of this process, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def peak_extra(run: Callable[[], object], device: str) -> float:
    """MiB that a run adds at its peak (sampled every millisecond on the CPU)."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    # Memory that earlier runs gave back to the allocator would hide what this one needs.
    ctypes.CDLL(None).malloc_trim(0)
    before, peak, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    run()
    done.set()
    thread.join()
    return max(0, peak - before) / 2**20


def googlenet_step(batch: int, device: str) -> Callable[[], None]:
    """Forward and backward of GoogLeNet on random 224 px images."""
    from torchvision.models import googlenet

    model = googlenet(weights=None, aux_logits=False, init_weights=False, num_classes=128)
    model = model.to(device, memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=torch.channels_last)

    def run() -> None:
        model.zero_grad(set_to_none=True)
        model(images).square().mean().backward()

    return run


def loss_step(name: str, classes: int, dim: int, batch: int, device: str) -> Callable[[], None]:
    """Distribution, loss and backward to the raw embeddings and the objective's parameters."""
    cls = Registry("methods").get(name).load()
    method = cls()
    torch.manual_seed(0)
    base = Registry("methods").get("cosface").load()().objective(classes, dim) if method.on_base else None
    model = EmbeddingModel(method, Flat(), classes, dim, base).to(device).train()
    labels = torch.arange(batch, device=device) // 4 % classes
    features = torch.rand(batch, 1024, device=device)
    if method.warm_start:
        with torch.no_grad():
            method.initialise(model, model(features).raw, labels)
    raw = model(features).raw.detach()
    spread = None if model.spread is None else model.spread(features).detach()

    def run() -> None:
        model.zero_grad(set_to_none=True)
        point = raw.clone().requires_grad_()
        width = None if spread is None else spread.clone().requires_grad_()
        model.objective(method.distribution(point, width), labels).backward()

    return run


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=11318)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--backbone-batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    step = best_of(googlenet_step(a.backbone_batch, a.device), a.repeats, a.device) * a.batch / a.backbone_batch
    print(
        f"{a.device}, {torch.get_num_threads()} threads; GoogLeNet 224 px step at batch {a.batch}: {step * 1e3:.0f} ms"
    )
    print(f"(timed at {a.backbone_batch} and scaled); {a.classes} classes, dim {a.dim}\n")
    print(f"{'loss':<24}{'ms':>9}{'% of step':>11}{'peak MiB':>10}")
    for entry in Registry("methods"):
        run = loss_step(entry.name, a.classes, a.dim, a.batch, a.device)
        seconds = best_of(run, a.repeats, a.device)
        print(f"{entry.name:<24}{seconds * 1e3:>9.1f}{100 * seconds / step:>11.2f}{peak_extra(run, a.device):>10.0f}")
    k = torch.rand(1_000_000, dtype=torch.float64, device=a.device) * 1000
    ours = best_of(lambda: vmf_log_normalizer(k, a.dim), a.repeats, a.device)
    from scipy.special import ive

    host = k.cpu().numpy()
    scipy = best_of(lambda: ive(a.dim / 2 - 1, host), a.repeats, "cpu")
    print(
        f"\nlog C of 1e6 concentrations (float64): {ours * 1e3:.0f} ms; scipy.special.ive {scipy * 1e3:.0f} ms;",
        end=" ",
    )
    print(f"ratio {scipy / ours:.1f}")


if __name__ == "__main__":
    main()
