"""Speed and memory of `bench embed` next to its network alone and to a DataLoader, all in one run.

    uv run python benchmarks/embed.py [--backbone squeezenet1_0] [--image-size 224] [--images 256] [--folder DIR]

The network alone takes images that are in memory already. `bench embed` reads a folder of JPEG files, once when none is
in the cache of decoded images and once from it, and writes the embeddings. The DataLoader decodes with PIL and
torchvision's transforms in as many processes as there are cores. All sides have the same network with random weights
and the same batches; the last batch of `bench embed` is filled up to its full size, so that a number of images that is
no multiple of 256 costs more there. Each measurement is made in a process of its own that is forked when everything is
imported, so that the peak of memory is that of the side (for the DataLoader, plus its largest process). The ratio is
that of the network alone, in processor time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
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


class Cost(NamedTuple):
    """Cost of embedding a folder: wall and processor seconds, and peak memory in MiB."""

    wall: float
    processor: float
    memory: float


Side = Callable[[], Callable[[], object]]
"""Makes the network, and returns the work that is timed."""


def processor_seconds() -> float:
    """Processor seconds of this process and of its processes that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def _measure(side: Side, out: Connection) -> None:
    torch.set_num_threads(cores())
    work = side()
    wall, processor = time.perf_counter(), processor_seconds()
    work()
    wall, processor = time.perf_counter() - wall, processor_seconds() - processor
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    out.send(Cost(wall, processor, sum(peaks) / 1024))


def measured(side: Side) -> Cost:
    """Cost of a side in a process of its own."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_measure, args=(side, send))
    process.start()
    send.close()
    cost: Cost = receive.recv()
    process.join()
    return cost


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


def main() -> None:
    """Measure the sides in turn and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="squeezenet1_0")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--folder", type=Path, help="photographs, a folder per class; made if not given")
    parser.add_argument("--images", type=int, default=CHUNK, help="photographs that are made")
    parser.add_argument("--size", default="500x375", help="their width and height")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        os.environ["BENCH_CACHE"] = f"{scratch}/cache"
        folder: Path = options.folder or scratch / "photographs"
        if options.folder is None:
            (folder / "a").mkdir(parents=True)
            photographs(folder / "a", options.images, (width, height))
        count, size = len(images_below(folder)[0].ids), options.image_size

        def embed() -> Callable[[], object]:
            encoder = bare_backbone(options.backbone, "none", size, "cpu")
            return lambda: embed_images(folder, lambda: encoder, scratch / "out.npz")

        def first() -> Callable[[], object]:
            shutil.rmtree(scratch / "cache", ignore_errors=True)
            return embed()

        sides: dict[str, Side] = {
            "network alone": lambda: network_alone(options.backbone, size, count),
            "bench embed, first": first,
            "bench embed, cache": embed,
            "DataLoader": lambda: with_loader(options.backbone, size, folder),
        }
        took: dict[str, list[Cost]] = {side: [] for side in sides}
        for _ in range(options.repeats):
            for side, make in sides.items():
                took[side].append(measured(make))
    print(f"{options.backbone} at {size} px, {count} images, {cores()} threads; medians of {options.repeats}")
    print(f"{'':<20}{'images/s':>10}{'processor ms/image':>20}{'ratio (from, to)':>22}{'peak MiB':>10}")
    alone = took["network alone"]
    for side, costs in took.items():
        wall, processor, memory = (statistics.median(cost[i] for cost in costs) for i in range(3))
        ratios = [mine.processor / other.processor for mine, other in zip(costs, alone)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        print(f"{side:<20}{count / wall:>10.0f}{1e3 * processor / count:>20.2f}{spread:>22}{memory:>10.0f}")


if __name__ == "__main__":
    main()
