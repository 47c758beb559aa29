"""Speed and memory of `bench embed` next to its network alone and to a DataLoader, all in one run.

    uv run python benchmarks/embed.py [--backbone squeezenet1_0] [--image-size 224] [--images 256] [--folder DIR]

The network alone takes images that are in memory already. `bench embed` reads a folder of JPEG files, once when none is
in the cache of decoded images and once from it, and writes the embeddings. The DataLoader decodes with PIL and
torchvision's transforms in as many processes as there are cores. All sides have the same network with random weights
and the same batches; the last batch of `bench embed` is filled up to its full size, so that a number of images that is
no multiple of 256 costs more there. Each measurement is made in a process of its own, so that the peak of memory is
that of the side (for the DataLoader, plus its largest process); imports and the making of the network are not timed.
The ratio is to the network alone, in processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision
from bench.commands.embed import embed_images
from bench.datasets.folder import images_below
from bench.engine.encoder import bare_backbone
from bench.engine.networks import CHUNK
from bench.methods.backbones.registry import build_backbone
from bench.resources import cores
from loader import photographs
from torch import nn
from torchvision.transforms import v2

ALONE, FIRST, CACHED, LOADER = "network alone", "bench embed, first", "bench embed, cache", "DataLoader"


class Cost(NamedTuple):
    """Cost of embedding a folder: wall and processor seconds, and peak memory in MiB."""

    wall: float
    processor: float
    memory: float


def processor_seconds() -> float:
    """Processor seconds of this process and of its processes that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def cost_here(work: Callable[[], object]) -> Cost:
    """Cost of some work in this process."""
    wall, processor = time.perf_counter(), processor_seconds()
    work()
    wall, processor = time.perf_counter() - wall, processor_seconds() - processor
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return Cost(wall, processor, sum(peaks) / 1024)


def measured(side: str, folder: Path, options: argparse.Namespace) -> Cost:
    """Cost of a side in a process of its own."""
    asked = ["--side", side, "--folder", folder, "--backbone", options.backbone, "--image-size", options.image_size]
    command = [sys.executable, __file__, *map(str, asked)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Cost(*json.loads(done.stdout.splitlines()[-1]))


def network_alone(backbone: str, size: int, count: int) -> Callable[[], object]:
    """Work of the network alone, on images that are in memory as `bench embed` passes them."""
    network = _network(backbone)
    images = torch.rand(CHUNK, 3, size, size).contiguous(memory_format=torch.channels_last)

    def work() -> None:
        with torch.no_grad():
            for start in range(0, count, CHUNK):
                network(images[: count - start])

    return work


def with_loader(backbone: str, size: int, folder: Path) -> Callable[[], object]:
    """Work of the usual pipeline: PIL, torchvision's transforms and a DataLoader."""
    network = _network(backbone)
    steps: list[Any] = [v2.Resize(round(size * 256 / 224)), v2.CenterCrop(size), v2.ToImage()]
    images = torchvision.datasets.ImageFolder(str(folder), v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True)]))

    def work() -> None:
        with torch.no_grad():
            for batch, _ in torch.utils.data.DataLoader(images, CHUNK, num_workers=cores()):
                network(batch.contiguous(memory_format=torch.channels_last))

    return work


def _network(backbone: str) -> nn.Module:
    network: nn.Module = build_backbone(backbone, 3, None)
    return network.eval()


def work_of(side: str, options: argparse.Namespace) -> Callable[[], object]:
    """Work that is timed on a side; its network is made before."""
    folder, size = options.folder, options.image_size
    if side == ALONE:
        return network_alone(options.backbone, size, len(images_below(folder)[0].ids))
    if side == LOADER:
        return with_loader(options.backbone, size, folder)
    if side == FIRST:
        shutil.rmtree(os.environ["BENCH_CACHE"], ignore_errors=True)
    encoder = bare_backbone(options.backbone, "none", size, "cpu")
    return lambda: embed_images(folder, lambda: encoder, Path(os.environ["BENCH_CACHE"]).with_name("out.npz"))


def main() -> None:
    """Measure the sides in turn and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="squeezenet1_0")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--folder", type=Path, help="photographs, a folder per class; made if not given")
    parser.add_argument("--images", type=int, default=CHUNK, help="photographs that are made")
    parser.add_argument("--size", default="500x375", help="their width and height")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(cores())
    if options.side:
        print(json.dumps(cost_here(work_of(options.side, options))))
        return
    took: dict[str, list[Cost]] = {side: [] for side in (ALONE, FIRST, CACHED, LOADER)}
    with tempfile.TemporaryDirectory() as name:
        os.environ["BENCH_CACHE"] = f"{name}/cache"
        folder = options.folder
        if folder is None:
            folder = Path(name) / "photographs"
            (folder / "a").mkdir(parents=True)
            width, height = map(int, options.size.split("x"))
            photographs(folder / "a", options.images, (width, height))
        count = len(images_below(folder)[0].ids)
        for _ in range(options.repeats):
            for side, costs in took.items():
                costs.append(measured(side, folder, options))
    setting = f"{options.backbone} at {options.image_size} px, {count} images, {cores()} threads"
    print(f"{setting}; medians of {options.repeats}")
    print(f"{'':<20}{'images/s':>10}{'processor ms/image':>20}{'ratio (from, to)':>22}{'peak MiB':>10}")
    for side, costs in took.items():
        wall, processor, memory = (statistics.median(cost[i] for cost in costs) for i in range(3))
        ratios = [mine.processor / other.processor for mine, other in zip(costs, took[ALONE])]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        print(f"{side:<20}{count / wall:>10.0f}{1e3 * processor / count:>20.2f}{spread:>22}{memory:>10.0f}")


if __name__ == "__main__":
    main()
