"""Cost of every method's loss relative to a training step of GoogLeNet at 224 px, measured in one run.

    uv run python benchmarks/losses.py [--classes 11318] [--dim 128] [--batch 100] [--backbone-batch N] [--device cpu]

The backbone step (forward and backward, channels last) is timed at ``--backbone-batch`` images and scaled to
``--batch``; losses are timed at ``--batch`` in full. Prints milliseconds, the share of the step, and the peak memory
that the loss adds.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench.methods.distributions import vmf_log_normalizer

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "gpu"))

from steps import loss_step, trained


def timed(run: Callable[[], object], device: str) -> float:
    """Seconds of one run."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def paired(first: Callable[[], object], second: Callable[[], object], repeats: int, device: str) -> tuple[float, float]:
    """Median seconds of two alternating runs after one warm-up of each; other load on the machine affects both."""
    times = [(timed(first, device), timed(second, device)) for _ in range(repeats + 1)][1:]
    return statistics.median(t for t, _ in times), statistics.median(t for _, t in times)


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
    # Memory that earlier runs returned to the allocator would hide the need of this run.
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=11318)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--backbone-batch", type=int, help="8; on a GPU, which it would not fill, --batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    a.backbone_batch = a.backbone_batch or (8 if a.device == "cpu" else a.batch)
    backbone = googlenet_step(a.backbone_batch, a.device)
    print(f"{a.device}, {torch.get_num_threads()} threads; a step of GoogLeNet at 224 px, timed at batch")
    print(f"{a.backbone_batch} in turns with each loss and scaled to {a.batch}; {a.classes} classes, dim {a.dim}\n")
    print(f"{'loss':<24}{'ms':>9}{'step ms':>9}{'% of step':>11}{'peak MiB':>10}")
    for cls in trained():
        run = loss_step(cls(), a.classes, a.dim, a.batch, a.device)
        step, loss = paired(backbone, run, a.repeats, a.device)
        step *= a.batch / a.backbone_batch
        share, peak = 100 * loss / step, peak_extra(run, a.device)
        print(f"{cls.name:<24}{loss * 1e3:>9.1f}{step * 1e3:>9.0f}{share:>11.2f}{peak:>10.0f}")
    k = torch.rand(1_000_000, dtype=torch.float64, device=a.device) * 1000
    from scipy.special import ive

    host = k.cpu().numpy()
    scipy, ours = paired(
        lambda: ive(a.dim / 2 - 1, host), lambda: vmf_log_normalizer(k, a.dim), 3 * a.repeats, a.device
    )
    print(
        f"\nlog C of 1e6 concentrations (float64): {ours * 1e3:.0f} ms; scipy.special.ive {scipy * 1e3:.0f} ms;",
        end=" ",
    )
    print(f"ratio {scipy / ours:.1f}")


if __name__ == "__main__":
    main()
