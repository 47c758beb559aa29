"""Training crops per second: the pixel cache against PIL in a DataLoader, both in one run.

    uv run python benchmarks/loader.py [--images 640] [--size 500x375] [--workers 2]

Each side gives batches of 128 augmented 224 px crops (random resized crop, flip, colour jitter), normalised floats,
with the same number of processes or threads. The other side is the usual pipeline: PIL decoding, torchvision's PIL
transforms, ``DataLoader``. The first pass of ours (decoding into the cache) is timed separately. Processor time, that
of this process and of the DataLoader's, is less disturbed by other load than the rate is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import transforms

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "gpu"))

from steps import photograph

BATCH = 128


class Files(torch.utils.data.Dataset):
    """The usual pipeline: PIL, torchvision and a DataLoader."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(224, (0.16, 1.0), (0.75, 4 / 3)),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.25, 0.25, 0.25),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> torch.Tensor:
        with Image.open(self.paths[i]) as image:
            made: torch.Tensor = self.transform(image.convert("RGB"))
        return made


def photographs(folder: Path, count: int, size: tuple[int, int]) -> list[Path]:
    """JPEG files with the statistics of photographs."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{i}.jpg" for i in range(count)]
    for path in paths:
        photograph(rng, size).save(path, quality=90)
    return paths


def peak() -> int:
    """Peak memory of this process and its largest child, MiB."""
    return sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) // 1024


def processor_seconds() -> float:
    """Processor seconds of this process and the processes that it has started and that still run (Linux)."""
    used = time.process_time()
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def main() -> None:
    """Time both pipelines and print their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--size", default="500x375")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BENCH_CACHE"] = f"{folder}/cache"
        from bench.datasets import PhotoAugmentation, PhotoImages, View

        torch.set_num_threads(1)
        paths = photographs(Path(folder), options.images, (width, height))
        kilobytes = sum(p.stat().st_size for p in paths) / len(paths) / 1024
        print(f"{options.images} JPEG files of {width} x {height}, {kilobytes:.0f} KiB each; {options.workers} workers")
        labels = torch.arange(len(paths)) % 2
        ours = PhotoImages(paths, labels, map(str, paths), ("a", "b"), view=View(), threads=options.workers)
        start = time.perf_counter()
        ours.prepare("training")
        first = len(paths) / (time.perf_counter() - start)
        generator = torch.Generator().manual_seed(0)

        def cached() -> tuple[float, float]:
            start, used, seen = time.perf_counter(), processor_seconds(), 0
            batch = None
            for index in torch.randperm(len(paths), generator=generator).split(BATCH):
                batch = ours.training(index, PhotoAugmentation(), generator, batch)  # as the training loop does
                seen += len(batch)
            return seen / (time.perf_counter() - start), 1e3 * (processor_seconds() - used) / seen

        loader = torch.utils.data.DataLoader(
            Files(paths), BATCH, shuffle=True, num_workers=options.workers, persistent_workers=True
        )
        list(loader)  # start the processes

        def usual() -> tuple[float, float]:
            start, used = time.perf_counter(), processor_seconds()
            seen = sum(len(batch) for batch in loader)
            return seen / (time.perf_counter() - start), 1e3 * (processor_seconds() - used) / seen

        cached()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        pairs = [(cached(), usual()) for _ in range(options.repeats)]
        rate, work = (statistics.median(side[i] for side, _ in pairs) for i in (0, 1))
        print(f"cache {rate:8.0f} images/s {work:8.2f} ms of a processor (decoding, once: {first:.0f} images/s)")
        rate, work = (statistics.median(side[i] for _, side in pairs) for i in (0, 1))
        print(f"PIL   {rate:8.0f} images/s {work:8.2f} ms of a processor (DataLoader, {options.workers} processes)")
        for what, ratios in (
            ("rate", sorted(a[0] / b[0] for a, b in pairs)),
            ("processor time", sorted(b[1] / a[1] for a, b in pairs)),
        ):
            print(f"ratio {statistics.median(ratios):8.2f} in {what} (from {ratios[0]:.2f} to {ratios[-1]:.2f})")
        disk = sum(p.stat().st_size for p in Path(f"{folder}/cache").rglob("*") if p.is_file()) / len(paths) / 1024
        print(f"peak memory {before} MiB (cache), {peak()} MiB (with the DataLoader's largest process)")
        print(f"disk        {disk:.0f} KiB per image in the cache")


if __name__ == "__main__":
    main()
