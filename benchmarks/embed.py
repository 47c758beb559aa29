"""Speed and memory of embedding photographs next to the network alone and to a DataLoader, all in one run.

    uv run python benchmarks/embed.py [--backbone tf_efficientnet_lite0] [--image-size 224] [--images 256]
    uv run python benchmarks/embed.py --sides "64 at once,16 at once,4 at once"
    uv run python benchmarks/embed.py --sides "training step,training step as usual"

The network alone takes images that are in memory already: as well as we know (the number at once and the memory that is
kept are those of the engine), and as one would write it (64 at once, the usual allocator). `bench embed` reads a folder
of JPEG files, once when none is in the cache of decoded images and once from it, and writes the embeddings. A test
embeds the images with a head and all confidences, as a worker does; a view is what `--frozen` makes features of,
augmented images. The DataLoader decodes with PIL and torchvision's transforms in as many processes as there are cores.

All have the same network with random weights. Each measurement is made in a process of its own, forked when everything
is imported, so that the peak of memory is that of the side (for the DataLoader, plus its largest process). Ratios are
in processor time, to the first two sides, medians over repeats with the smallest and largest. Other sides are the
network alone with other numbers at once, and training steps of 32 images with memory that is kept and without.
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
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision
from bench.commands.embed import embed_images
from bench.datasets.folder import images_below
from bench.datasets.view import PhotoAugmentation
from bench.engine.encoder import bare_backbone
from bench.engine.networks import CHUNK, at_once, embed, features_of
from bench.methods._model import EmbeddingModel
from bench.methods.backbones.registry import build_backbone
from bench.methods.cosface import CosFace
from bench.resources import cores, keep_memory
from bench.scoring.feature_parts import photographs_of
from loader import photographs
from torch import Tensor, nn
from torchvision.transforms import v2

USUAL = 64
"""Images at once in a loop as one would write it."""


class Cost(NamedTuple):
    """Cost of embedding a folder: wall and processor seconds, and peak memory in MiB."""

    wall: float
    processor: float
    memory: float


def processor_seconds() -> float:
    """Processor seconds of this process and of its processes that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def network_alone(options: argparse.Namespace, size: int | None = None) -> Callable[[], object]:
    """Work of the network alone, on images that are in memory, so many at once or as the engine does."""
    images = torch.rand(min(CHUNK, options.images), 3, options.image_size, options.image_size)
    network, size = _network(options), size or at_once(images, CHUNK)
    parts = [part.contiguous(memory_format=torch.channels_last) for part in images.split(size)]

    def work() -> None:
        with torch.no_grad():
            for start in range(0, options.images, CHUNK):
                for part in parts[: -(-(options.images - start) // size)]:
                    network(part)

    return work


def with_loader(options: argparse.Namespace) -> Callable[[], object]:
    """Work of the usual pipeline: PIL, torchvision's transforms and a DataLoader."""
    network, size = _network(options), options.image_size
    steps: list[Any] = [v2.Resize(round(size * 256 / 224)), v2.CenterCrop(size), v2.ToImage()]
    whole = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True)])
    images = torchvision.datasets.ImageFolder(str(options.folder), whole)

    def work() -> None:
        with torch.no_grad():
            for batch, _ in torch.utils.data.DataLoader(images, USUAL, num_workers=cores()):
                network(batch.contiguous(memory_format=torch.channels_last))

    return work


def with_bench(options: argparse.Namespace, first: bool) -> Callable[[], object]:
    """Work of `bench embed`."""
    if first:
        shutil.rmtree(os.environ["BENCH_CACHE"], ignore_errors=True)
    encoder = bare_backbone(options.backbone, "none", options.image_size, "cpu")
    return lambda: embed_images(options.folder, lambda: encoder, Path(os.environ["BENCH_CACHE"]).with_name("out.npz"))


def in_worker(options: argparse.Namespace, view: bool) -> Callable[[], object]:
    """Work of a worker: the embedding of a test, or the features of an augmented view."""
    encoder = bare_backbone(options.backbone, "none", options.image_size, "cpu")
    images, network = photographs_of(images_below(options.folder)[0], encoder), _network(options)
    if not view:
        model = EmbeddingModel(CosFace(), network, 100, 128)
        return lambda: embed(model, images.evaluation, len(images), "cpu")
    images.prepare("training")

    def features() -> list[Tensor]:
        with torch.no_grad():
            chunks = torch.arange(len(images)).split(CHUNK)
            return [features_of(network, images.view_of(rows, PhotoAugmentation(), 0), len(rows)) for rows in chunks]

    return features


def training_steps(options: argparse.Namespace) -> Callable[[], object]:
    """Work of training steps of 32 images, without an optimiser."""
    network, images = _network(options).train(), torch.rand(32, 3, options.image_size, options.image_size)
    batch = images.contiguous(memory_format=torch.channels_last)

    def work() -> None:
        for _ in range(options.images // len(batch)):
            network.zero_grad()
            network(batch).square().mean().backward()

    return work


def _network(options: argparse.Namespace) -> nn.Module:
    network: nn.Module = build_backbone(options.backbone, 3, None)
    return network.eval().to(memory_format=torch.channels_last)


SIDES: dict[str, Callable[[argparse.Namespace], Callable[[], object]]] = {
    "network alone": network_alone,
    "as one writes it": partial(network_alone, size=USUAL),
    "bench embed, first": partial(with_bench, first=True),
    "bench embed, cache": partial(with_bench, first=False),
    "a test's embedding": partial(in_worker, view=False),
    "a view of --frozen": partial(in_worker, view=True),
    "DataLoader": with_loader,
}
OTHERS = {f"{size} at once": partial(network_alone, size=size) for size in (1, 4, 8, 16, 32, 64, 128, 256)}
OTHERS |= {"training step": training_steps, "training step as usual": training_steps}
USUALLY = ("as one writes it", "DataLoader", "training step as usual")
"""Sides that leave the allocator as it is."""


def _measure(side: str, options: argparse.Namespace, out: Connection) -> None:
    torch.set_num_threads(cores())
    if side not in USUALLY:
        keep_memory()
    work = (SIDES | OTHERS)[side](options)
    wall, processor = time.perf_counter(), processor_seconds()
    work()
    wall, processor = time.perf_counter() - wall, processor_seconds() - processor
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    out.send(Cost(wall, processor, sum(peaks) / 1024))


def measured(side: str, options: argparse.Namespace) -> Cost:
    """Cost of a side in a process of its own."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_measure, args=(side, options, theirs))
    process.start()
    theirs.close()
    cost: Cost = ours.recv()
    process.join()
    return cost


def main() -> None:
    """Measure the sides in turn and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--folder", type=Path, help="photographs, a folder per class; made if not given")
    parser.add_argument("--images", type=int, default=CHUNK, help="photographs that are made")
    parser.add_argument("--size", default="500x375", help="their width and height")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sides", default=",".join(SIDES), help="names of at least two sides, comma separated")
    options = parser.parse_args()
    took: dict[str, list[Cost]] = {side: [] for side in options.sides.split(",")}
    with tempfile.TemporaryDirectory() as name:
        os.environ["BENCH_CACHE"] = f"{name}/cache"
        if options.folder is None:
            options.folder = Path(name) / "photographs"
            (options.folder / "a").mkdir(parents=True)
            width, height = map(int, options.size.split("x"))
            photographs(options.folder / "a", options.images, (width, height))
        options.images = len(images_below(options.folder)[0].ids)
        for _ in range(options.repeats):
            for side, costs in took.items():
                costs.append(measured(side, options))
    setting = f"{options.backbone} at {options.image_size} px, {options.images} images, {cores()} threads"
    print(f"{setting}; medians of {options.repeats}")
    print(f"{'':<24}{'images/s':>10}{'processor ms/image':>20}{'/ first':>20}{'/ second':>20}{'peak MiB':>10}")
    for side, costs in took.items():
        wall, processor, memory = (statistics.median(cost[i] for cost in costs) for i in range(3))
        spreads = (_ratios(costs, other) for other in list(took.values())[:2])
        shown = "".join(f"{spread:>20}" for spread in spreads)
        each = f"{options.images / wall:>10.0f}{1e3 * processor / options.images:>20.2f}"
        print(f"{side:<24}{each}{shown}{memory:>10.0f}")


def _ratios(ours: list[Cost], others: list[Cost]) -> str:
    """Ratio of processor times: median, smallest and largest of the repeats."""
    ratios = [mine.processor / other.processor for mine, other in zip(ours, others)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"


if __name__ == "__main__":
    main()
