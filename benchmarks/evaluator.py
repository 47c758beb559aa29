"""Cost of exact evaluation compared with a bare faiss search and pytorch-metric-learning, measured in one run.

    uv run python benchmarks/evaluator.py [--images 60502] [--dim 128] [--repeats 3]

Embeddings with the class sizes of Stanford Online Products' test half (11,316 classes of 2 to 12 images). One thread
for torch, faiss and BLAS; the sides run in turns, seconds are processor time of that thread (what else runs does not
count), and the fastest repeat of each counts. Memory is what a side adds at its peak, from float32 embeddings to
values, in a process of its own. Every score's metrics are also compared with plain loops over a subsample.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import faiss
import torch
import torch.nn.functional as F
from bench.methods.distributions import DiagonalNormal, IsotropicNormal, PointMass, VonMisesFisher
from bench.methods.scorers import DistributionScorer
from bench.methods.training_density import TrainingDensity
from bench.protocols.filter_out import filter_out_rows
from bench.protocols.query_metrics import mean_of_counted, per_query
from bench.protocols.ranking import full_depth, rank
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from threadpoolctl import threadpool_limits
from torch import Tensor

KS = (1, 2, 4, 8)
CHECKED = 40
"""Queries whose values are computed by loops as well."""


def one_thread() -> None:
    """Limit torch and faiss to one thread each; threadpoolctl limits BLAS."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)


def timed(run: Callable[[], object]) -> float:
    """Seconds of processor time of this thread."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


def peak_extra(run: Callable[[], object]) -> float:
    """MiB that a run adds to the resident memory at its peak, as Linux counts it."""
    # Memory that earlier runs returned to the allocator would hide the need of this run.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def embeddings(count: int, dim: int) -> tuple[Tensor, Tensor]:
    """Unit vectors ``[N, D]`` in the order of a shuffled file list, and classes of 2 to 12 images (mean 5.35)."""
    g = torch.Generator().manual_seed(0)
    classes = max(2, round(count / 60502 * 11316))
    sizes = (2 + 10 * torch.linspace(0, 1, classes).square()).round().long()
    while (left := count - int(sizes.sum())) != 0:
        able = ((sizes < 12) if left > 0 else (sizes > 2)).nonzero().squeeze(1)
        sizes[able[torch.randperm(len(able), generator=g)[: abs(left)]]] += 1 if left > 0 else -1
    labels = torch.arange(classes).repeat_interleave(sizes)[torch.randperm(count, generator=g)]
    spread = 0.8 + 0.8 * torch.rand(count, 1, generator=g)
    x = torch.randn(classes, dim, generator=g)[labels] + spread * torch.randn(count, dim, generator=g)
    return F.normalize(x, dim=1), labels


def scorers(x: Tensor) -> dict[str, Callable[[], DistributionScorer]]:
    """Scorers of the embeddings; variances and concentrations are log-normal with factor 2."""
    g = torch.Generator().manual_seed(1)
    factor = torch.exp(0.7 * torch.randn(len(x), generator=g))
    return {
        "cosine": lambda: DistributionScorer("cosine", PointMass(x)),
        "l2": lambda: DistributionScorer("l2", PointMass(x)),
        "MLS, isotropic normal": lambda: DistributionScorer("mls", IsotropicNormal(x, factor / (4 * x.shape[1]))),
        "MLS, von Mises-Fisher": lambda: DistributionScorer("mls", VonMisesFisher(x, 2 * x.shape[1] * factor)),
        "MLS, diagonal normal": lambda: DistributionScorer(
            "mls", DiagonalNormal(x, factor[:, None] * (0.5 + torch.rand(x.shape, generator=g)) / (4 * x.shape[1]))
        ),
    }


def faiss_search(x: Tensor, depth: int) -> None:
    """The bare search of R + 1 neighbours: no metrics, ties and the query itself left as they come."""
    index = faiss.IndexFlatIP(x.shape[1])
    index.add(x.numpy())
    index.search(x.numpy(), int(depth) + 1)


def pml(x: Tensor, labels: Tensor) -> dict[str, float]:
    """pytorch-metric-learning's metrics with the k its documentation recommends for large sets."""
    include = ("mean_average_precision_at_r", "precision_at_1", "r_precision")
    calculator = AccuracyCalculator(include=include, k="max_bin_count", device=torch.device("cpu"))
    found: dict[str, float] = calculator.get_accuracy(x, labels)
    return found


def check(scorer: DistributionScorer, labels: Tensor) -> float:
    """Largest difference from plain loops in float64, over all metrics of some queries."""
    asked = torch.arange(0, len(labels), max(1, len(labels) // CHECKED))[:CHECKED]
    values = per_query(rank(scorer, labels, depth=full_depth(labels, KS)), KS)
    worst = 0.0
    for q in asked.tolist():
        everyone = torch.arange(len(labels))
        scores = scorer.pairs(torch.full((len(labels),), q), everyone).tolist()
        others = sorted((j for j in range(len(labels)) if j != q), key=lambda j: -scores[j])
        relevant = [bool(labels[j] == labels[q]) for j in others[:200]]
        r = int((labels == labels[q]).sum()) - 1
        hits = [sum(relevant[: i + 1]) for i in range(200)]
        expected = {
            "map_at_r": sum(hits[i] / (i + 1) for i in range(r) if relevant[i]) / r,
            "r_precision": hits[r - 1] / r,
            **{f"recall_at_{k}": float(hits[k - 1] > 0) for k in KS},
        }
        worst = max(worst, *(abs(values[name][q].item() - value) for name, value in expected.items()))
    return worst


def all_sides(count: int, dim: int) -> dict[str, Callable[[], object]]:
    """Measured functions by name; the first is the bare search, the last pytorch-metric-learning."""
    x, labels = embeddings(count, dim)
    depth = full_depth(labels, KS)
    make = scorers(x)
    ids = [str(i) for i in range(count)]
    confidence = torch.rand(count, generator=torch.Generator().manual_seed(2))
    rows = x.double().__getitem__
    return {
        f"faiss IndexFlatIP, k = {depth + 1}": lambda: faiss_search(x, depth),
        **{
            name: lambda build=build: per_query(rank(build(), labels, depth=depth), KS)
            for name, build in make.items()
            if "diagonal" not in name
        },
        "training densities, as many rows": lambda: TrainingDensity.of(rows, labels).confidences(rows, count),
        "filter-out, 10 rates x 2 variants": lambda: list(
            filter_out_rows(make["cosine"](), labels, ids, {"c": confidence})
        ),
        "pytorch-metric-learning, max_bin_count": lambda: pml(x, labels),
    }


def peak_alone(place: int, count: int, dim: int) -> float:
    """Peak of one side in a process of its own, once a small run has loaded what it needs."""
    one_thread()
    with threadpool_limits(1):
        list(all_sides(4000, dim).values())[place]()
        return peak_extra(list(all_sides(count, dim).values())[place])


def compare(count: int, dim: int, repeats: int) -> None:
    """Time and memory of all sides."""
    sides = all_sides(count, dim)
    bare = next(iter(sides))
    peak: dict[str, float] = {}
    for place, name in enumerate(sides):
        # Memory that one side leaves in the allocator would distort the measurement of the next.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            peak[name] = alone.submit(peak_alone, place, count, dim).result()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            times[name].append(timed(run))
    x, labels = embeddings(count, dim)
    depth = full_depth(labels, KS)
    make = scorers(x)
    cosine, base = min(times["cosine"]), min(times[bare])
    print(f"{count} x {dim}, {len(labels.unique())} classes, R <= {depth}, 1 thread, best of {repeats}", flush=True)
    print(f"{'':<40}{'s':>8}{'/ faiss':>9}{'/ cosine':>10}{'peak MiB':>10}")
    for name in sides:
        best = min(times[name])
        print(f"{name:<40}{best:>8.1f}{best / base:>9.2f}{best / cosine:>10.2f}{peak[name]:>10.0f}", flush=True)
    few = torch.arange(16)
    diagonal = make["MLS, diagonal normal"]()
    seconds = timed(lambda: rank(diagonal, labels, depth=depth, queries=few)) * count / len(few)
    name = "MLS, diagonal normal (16 queries, scaled)"
    print(f"{name:<41}{seconds:>7.0f}{seconds / base:>9.0f}{seconds / cosine:>10.0f}")
    theirs = pml(x, labels)
    ours = per_query(rank(make["cosine"](), labels, depth=depth), KS)
    for mine, other in (("map_at_r", "mean_average_precision_at_r"), ("precision_at_1", "precision_at_1")):
        print(f"{mine}: {mean_of_counted(ours[mine]):.7f}, pytorch-metric-learning {theirs[other]:.7f}")
    for name, build in make.items():
        if "diagonal" not in name:
            print(f"{name}: largest difference from loops over {CHECKED} queries {check(build(), labels):.1e}")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60502)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    a = parser.parse_args()
    one_thread()
    with threadpool_limits(1):
        compare(a.images, a.dim, a.repeats)


if __name__ == "__main__":
    main()
