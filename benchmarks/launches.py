"""Kernels that a training step starts and times that the host waits for the GPU, by method, on a simulated GPU.

    uv run python benchmarks/launches.py [--classes 100,11318] [--dim 128] [--batch 112] [--reasons]

Prints a Markdown table. Launches are operators that compute; they and the waits beside them are those of distribution,
loss and backward pass without a backbone. The last column has the waits of an epoch of one step of the engine on a
small network, one of which is for its mean loss. No GPU is needed, and none is used.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "gpu"))

from simulated_gpu import Gpu
from steps import loss_step, one_step, small_trainer, trained


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", default="100,11318")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=112)
    parser.add_argument("--reasons", action="store_true", help="also say what the host waits for")
    a = parser.parse_args()
    sizes, gpu = list(map(int, a.classes.split(","))), Gpu()
    titles = [f"{what}, {size:,} classes" for what in ("launches", "waits") for size in sizes]
    print(f"| method | {' | '.join(titles)} | waits of a whole step |\n|---|{'--:|' * (len(titles) + 1)}")
    for cls in trained():
        launches, waits = [], []
        with gpu:
            for size in sizes:
                step = loss_step(cls(), size, a.dim, a.batch, "cuda")
                step()  # constants are made in the first one
                gpu.launches = 0
                gpu.waits.clear()
                step()
                launches.append(gpu.launches)
                waits.append(gpu.waits.total())
            trainer = small_trainer(cls(), "cuda")
            one_step(trainer)
            gpu.waits.clear()
            one_step(trainer)
        print(f"| {cls.name} | {' | '.join(map(str, launches + waits))} | {gpu.waits.total()} |", flush=True)
        if a.reasons:
            print(f"  {dict(gpu.waits)}")


if __name__ == "__main__":
    main()
