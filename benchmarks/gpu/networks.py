"""Images per second of trainings on photographs on a GPU: the network alone, and all together.

    uv run python benchmarks/gpu/networks.py [--networks resnet50:224,bn_inception:224] [--precisions float32,bfloat16]

Trains on 96 photographs of noise, 500 x 375, decoded once, in batches of 120, with ``cosface``. All together are
loading, crops, copy, step and optimiser, with the crops by the GPU, which keeps the decoded images, and by the CPU.
Prints a Markdown table with medians, and the ratio to the network alone. ``--device cpu`` tries the script.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
from bench.commands.doctor import photographs_trainer
from bench.engine.estimate import median_seconds, step_seconds
from bench.engine.gpu import open_gpu
from bench.engine.inputs import generator
from bench.engine.networks import prepare_steps
from bench.engine.running import release_memory

NETWORKS = "resnet50:224,bn_inception:224,tf_efficientnet_lite0:224,tf_efficientnet_lite0:128,squeezenet1_0:224"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=NETWORKS, help="names with the side of their crops in pixels")
    parser.add_argument("--precisions", default="float32,tf32,bfloat16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batch", type=int, default=120, help="images, a multiple of 6")
    parser.add_argument("--steps", type=int, default=8, help="steps that are timed at once")
    a = parser.parse_args()
    if a.batch % 6:
        parser.error(f"--batch {a.batch}: batches are of six classes")
    print("| network | precision | network alone | crops by the GPU | crops by the CPU |\n|---|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BENCH_CACHE"] = folder
        for network, precision in itertools.product(a.networks.split(","), a.precisions.split(",")):
            name, side = network.split(":")
            if a.device == "cuda":
                open_gpu()
            alone, *rates = _rates(Path(folder), name, int(side), precision, a)
            cells = [f"{rate:,.0f} ({rate / alone:.2f})" if rate else "" for rate in rates]
            print(f"| {network} | {precision} | {alone:,.0f} | {' | '.join(cells)} |", flush=True)


def _rates(folder: Path, name: str, side: int, precision: str, a: argparse.Namespace) -> list[float]:
    """Images per second of the network alone, and of all together with crops by GPU (0 if it has none) and CPU."""
    given = folder, a.device, name, side, a.batch, f"optim.precision={precision}"
    trainer = photographs_trainer(*given)
    rows = torch.arange(a.batch) % len(trainer.data.train)
    images = trainer.inputs.batch(rows, generator("networks"))
    labels = trainer.data.train.labels[rows]
    rates = [a.batch / step_seconds(trainer.model, trainer.spec, images, labels, a.device)]
    for on_gpu in (True, False):
        if on_gpu and (a.device == "cpu" or precision == "tf32"):  # the engine leaves the crops to the CPU
            rates.append(0.0)
            continue
        with patch("bench.engine.training.room_for_pixels", lambda room=2**33 * on_gpu: room):
            trainer = photographs_trainer(*given)
        prepare_steps(trainer.model, trainer.spec.optim)
        trainer.steps = a.steps
        rates.append(a.steps * a.batch / median_seconds(lambda it=trainer: it.train_epoch(0)))
    del trainer, images
    if a.device == "cuda":
        release_memory()
    return rates


if __name__ == "__main__":
    main()
