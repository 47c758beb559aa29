"""What work costs, beside a peer that does the same or a limit that no program is below: one table.

    uv run python benchmarks/all.py [--size smallest|reduced|full] [--repeats 5] [--rows WORDS] [--write]

Each side runs in a process of its own, with one thread, after its smallest size has loaded what it needs; the sides
take turns. Seconds are those of the processor, user and system, processes that a side starts included; memory is what
the process of a side adds at its peak. Both are medians. OpenBLAS, which faiss has in a version of its own, is told the
kernel with which faiss is fastest here and right; stderr names the kernels of every side. Every row checks that both
sides computed the same. ``--write`` puts the table into docs/measurements.md.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import json
import os
import pickle
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bench
import faiss
import numpy as np
import torch
import torch.nn.functional as F
from bench.cli import main as command
from bench.commands.doctor import _planned
from bench.commands.embed import embed_images
from bench.datasets.photo_images import PhotoImages
from bench.datasets.view import PhotoAugmentation, View
from bench.engine.trained import bare_backbone
from bench.engine.training import Trainer
from bench.methods.backbones.registry import build_backbone
from bench.methods.distributions import IsotropicNormal, PointMass, VonMisesFisher
from bench.methods.distributions.bessel import vmf_log_normalizer
from bench.methods.scorers import DistributionScorer
from bench.methods.training_density import NEAREST, SOUGHT, TrainingDensity
from bench.protocols.clustering import clustering_rows, k_means
from bench.protocols.confidence import augrc, aurc
from bench.protocols.query_metrics import mean_of_counted, per_query
from bench.protocols.ranking import full_depth, rank
from bench.protocols.retrieval_sets import first_positive_ranks
from bench.protocols.verification import auc
from bench.seeds import seed_for
from bench.site import Site
from PIL import Image
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from scipy.special import ive
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_info
from torch import Tensor
from torchvision import transforms
from torchvision.datasets import ImageFolder

HOME = Path(__file__).parents[1]
PAGE = HOME / "docs" / "measurements.md"
HEAD = "|work|size|s|peer or limit|s|ratio|MiB|\n|---|---|---|---|---|---|---|"
KERNELS = ("Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids")
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SIZES = ("smallest", "reduced", "full")
NETWORK = "tf_efficientnet_lite0"
HELP = "import sys, probembed; sys.argv = ['bench', '--help']; probembed.entry()"
KS = (1, 2, 4, 8)
MATCH = {"scale": 5.0, "bias": 4.0}


def embeddings(count: int, dim: int, queries: int | None = None) -> tuple[Tensor, Tensor, int]:
    """Unit vectors ``[N, D]`` in random order, and classes of two images or more (mean 5.35, as in SOP's test half)."""
    g = torch.Generator().manual_seed(0)
    classes = int(count / 5.35)
    labels = torch.cat([torch.arange(classes).repeat(2), torch.randint(classes, (count - 2 * classes,), generator=g)])
    labels, spread = labels[torch.randperm(count, generator=g)], 0.8 + 0.8 * torch.rand(count, 1, generator=g)
    x = torch.randn(classes, dim, generator=g)[labels] + spread * torch.randn(count, dim, generator=g)
    return F.normalize(x, dim=1), labels, queries or count


def scorer(name: str, x: Tensor) -> DistributionScorer:
    """A scorer of embeddings; variances and concentrations are log-normal with factor 2."""
    factor = torch.exp(0.7 * torch.randn(len(x), generator=torch.Generator().manual_seed(1)))
    normal, vmf = IsotropicNormal(x, factor / (4 * x.shape[1])), VonMisesFisher(x, 2 * x.shape[1] * factor)
    of = {"mls": normal, "sampled_match": normal, "mls vMF": vmf}.get(name, PointMass(x))
    return DistributionScorer(name.split()[0], of, MATCH)


def ranked(name: str, x: Tensor, labels: Tensor, queries: int) -> tuple[np.ndarray, float]:
    """Nearest neighbours, and MAP@R."""
    ranking = rank(scorer(name, x), labels, depth=full_depth(labels, KS))
    return ranking.neighbours[:, 0].numpy(), mean_of_counted(per_query(ranking, KS)["map_at_r"])


def searched(
    x: Tensor, labels: Tensor, queries: int, among: int | None = None, k: int = 13
) -> tuple[np.ndarray, np.ndarray]:
    """Nearest neighbours without the query itself by a bare faiss index, and the mean products with all k."""
    index = faiss.IndexFlatIP(x.shape[1])
    index.add(x[:among].numpy())
    products, found = index.search(x[:queries].numpy(), k)
    return np.where(found[:, 0] == np.arange(queries), found[:, 1], found[:, 0]), products.mean(1)


def scored(x: Tensor, labels: Tensor, queries: int) -> float:
    """`bench.score` as one types it: Recall@1."""
    asked = {} if queries == len(x) else {"is_query": np.arange(len(x)) < queries}
    table = bench.score(x.numpy(), labels.numpy(), **asked).table
    return float(table[(table["metric"] == "recall_at_1") & (table["confidence"] == "")]["value"].iloc[0])


def recall(x: Tensor, labels: Tensor, queries: int) -> float:
    """Recall@1 by a bare faiss index; all classes have two images or more."""
    return float((labels[searched(x, labels, queries)[0]] == labels[:queries]).double().mean())


def nearest_of_all(name: str, ours: Any, theirs: Any, x: Tensor, *data: Any) -> bool:
    """Whether the nearest neighbours of some queries have the highest score: the other side has not this score."""
    few = torch.arange(0, len(x), len(x) // 20)
    scores = scorer(name, x).matrix(few, torch.arange(len(x)))
    return bool(np.array_equal(scores.scatter(1, few[:, None], -torch.inf).argmax(1), ours[0][few]))


def by_pml(x: Tensor, labels: Tensor, queries: int) -> float:
    """MAP@R by pytorch-metric-learning with the k that its documentation recommends, and two metrics more."""
    include = ("mean_average_precision_at_r", "precision_at_1", "r_precision")
    calculator = AccuracyCalculator(include=include, k="max_bin_count", device=torch.device("cpu"))
    return float(calculator.get_accuracy(x, labels)["mean_average_precision_at_r"])


def wrong(images: int, dim: int, queries: int) -> tuple[Tensor, Tensor, int]:
    """Random unit vectors and classes of two images: nearly all that is found first is wrong."""
    x = torch.randn(images, dim, generator=torch.Generator().manual_seed(0))
    return F.normalize(x, dim=1), torch.arange(images) % (images // 2), queries


def first_positives(x: Tensor, labels: Tensor, queries: int) -> Tensor:
    """Ranks of the first positives, as retrieval sets need them."""
    return first_positive_ranks(scorer("cosine", x), labels, queries=torch.arange(queries))


def counted(x: Tensor, labels: Tensor, queries: int) -> Tensor:
    """The same ranks by products in float32 that are compared with the positive's."""
    ranks = []
    for rows in torch.arange(queries).split(64):
        scores = x[rows] @ x.T
        positive = scores.gather(1, (rows[:, None] + len(x) // 2) % len(x))
        ranks.append((scores >= positive).sum(1) - 1)
    return torch.cat(ranks)


def clustered(x: Tensor, labels: Tensor, queries: int) -> float:
    """Sum of squared distances from the means of as many clusters as classes; their agreement is computed, too."""
    clusters = k_means(x, int(labels.max()) + 1)
    list(clustering_rows(labels, [clusters]))
    sums = torch.zeros_like(x).index_add_(0, clusters, x)
    return float((x - (sums / torch.bincount(clusters, minlength=len(x))[:, None])[clusters]).square().sum())


def by_faiss(x: Tensor, labels: Tensor, queries: int) -> float:
    """The same sum by k-means of faiss, one start and as many iterations."""
    few = {"min_points_per_centroid": 1, "max_points_per_centroid": len(x)}
    return float(faiss.Kmeans(x.shape[1], int(labels.max()) + 1, niter=20, seed=1, **few).train(x.numpy()))


def all_draws(x: Tensor, labels: Tensor, queries: int) -> Any:
    """Nearest neighbours by the sampled match probability from the distances of all draws, as one writes it."""
    draws, nearest = scorer("sampled_match", x)._distribution.mean.unflatten(1, (8, -1)), []
    for query, own in enumerate(draws):
        match = torch.sigmoid(MATCH["bias"] - MATCH["scale"] * torch.cdist(own, draws.flatten(0, 1)))
        scores = match.view(8, len(x), 8).mean((0, 2))
        scores[query] = -1.0
        nearest.append(int(scores.argmax()))
    return np.array(nearest), None


def densities(x: Tensor, labels: Tensor, queries: int) -> Tensor:
    """Mean cosines to the nearest training embeddings, with the other confidences that these give."""
    rows = x.double().__getitem__
    return TrainingDensity(rows, labels).confidences(rows, len(x))["knn_density"]


def cosines(x: Tensor, labels: Tensor, queries: int) -> np.ndarray:
    """The same means by a bare faiss index."""
    return searched(x, labels, queries, SOUGHT, NEAREST)[1]


def photographs(count: int, width: int, side: int = 224) -> tuple[Any, int]:
    """Folder of JPEG files with about the detail of photographs, in two classes."""
    rng, folder = np.random.default_rng(0), tempfile.TemporaryDirectory()
    for number in range(count):
        pixels = Image.fromarray(rng.integers(0, 256, (width // 8, width // 6, 3), dtype=np.uint8))
        path = Path(folder.name) / f"images/c{number % 2}" / f"{number // 2:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels.resize((width, 3 * width // 4), Image.Resampling.BICUBIC).save(path, quality=90)
    os.environ["BENCH_CACHE"] = f"{folder.name}/cache"
    return folder, side


def embedded(folder: Any, side: int) -> np.ndarray:
    """`bench embed` of photographs that no cache has."""
    out, encoder = Path(folder.name) / "out.npz", bare_backbone(NETWORK, "none", "cpu", side)
    embed_images(Path(folder.name) / "images", lambda: encoder, out)
    return np.load(out)["embeddings"]


@torch.no_grad()
def by_torch(folder: Any, side: int) -> np.ndarray:
    """The same network in a loop as one writes it: torchvision's transforms, a DataLoader, batches of 64."""
    view = bare_backbone(NETWORK, "none", "cpu", side).view
    torch.manual_seed(seed_for("embed", NETWORK))
    network = build_backbone(NETWORK, 3, None, image_size=side).eval().to(memory_format=torch.channels_last)
    resize = transforms.Resize(view.resize, transforms.InterpolationMode(view.interpolation))
    steps = transforms.Compose([resize, transforms.CenterCrop(side), transforms.ToTensor()])
    loader = torch.utils.data.DataLoader(ImageFolder(f"{folder.name}/images", steps), 64)
    made = [network(batch.contiguous(memory_format=torch.channels_last)) for batch, _ in loader]
    return torch.cat(made).numpy()


def training(dataset: str) -> tuple[Trainer, list[Any], Any]:
    """A training of CosFace ready for its first step, its batches, and its folder."""
    folder = tempfile.TemporaryDirectory()
    site = Site(results=folder.name, device="cpu")
    made = Trainer(_planned(site, dataset)[1], site)
    made.resume_or_start()
    return made, [(made.data.train.labels[rows], batch.clone()) for rows, batch in made._batches(after=(0,))], folder


def bare_epoch(made: Trainer, batches: list[Any], folder: Any) -> float:
    """The steps of an epoch in a loop as one writes it, on batches that are ready: the mean loss."""
    model, loss_of, optimiser, total = made.model.train(), made.model.objective, made.optimisation.optimizer, 0.0
    for step, (labels, batch) in enumerate(batches):
        made.optimisation.set_rate(step, made.steps)
        cosines = F.normalize(model.mean(model.backbone(batch))) @ F.normalize(loss_of.weight).T
        margin = loss_of.margin * F.one_hot(labels, cosines.shape[1])
        loss = F.cross_entropy(loss_of.scale * (cosines - margin), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += float(loss.detach()) / len(batches)
    return total


def cropped(folder: Any, side: int) -> float:
    """Mean of augmented training crops, whose photographs are decoded once, from a cache of pixels."""
    paths = sorted(Path(folder.name).rglob("*.jpg"))
    images = PhotoImages(paths, torch.arange(len(paths)) % 2, map(str, paths), ("a", "b"), view=View())
    images.prepare("training")
    out, means, g = None, [], torch.Generator()
    for rows in torch.arange(len(paths)).repeat(4).split(128):
        out = images.training(rows, PhotoAugmentation(), g, out)  # as the training loop does
        means.append(float(out.mean()))
    return statistics.fmean(means)


def by_torchvision(folder: Any, side: int) -> float:
    """The same mean by PIL, torchvision and a DataLoader."""
    crop, jitter = transforms.RandomResizedCrop(side, (0.16, 1.0)), transforms.ColorJitter(0.25, 0.25, 0.25)
    steps = transforms.Compose([crop, transforms.RandomHorizontalFlip(), jitter, transforms.ToTensor()])
    loader = torch.utils.data.DataLoader(ImageFolder(f"{folder.name}/images", steps), 128)
    return statistics.fmean(float(batch.mean()) for _ in range(4) for batch, _ in loader)


def pairs(count: int) -> tuple[Tensor, Tensor]:
    """Scores of pairs, rounded so that some are tied, and whether they are of one class."""
    g = torch.Generator().manual_seed(0)
    same = torch.rand(count, generator=g) < 0.3
    return ((torch.randn(count, generator=g) + same) * 1e3).round().double(), same


def by_numpy(confidence: Tensor, right: Tensor) -> tuple[float, float]:
    """AURC and AUGRC from running sums as one writes them, with equal confidences in any order."""
    lost = np.cumsum(~right.numpy()[np.argsort(-confidence.numpy())])
    return (lost / np.arange(1, len(lost) + 1)).mean(), (lost.sum() - lost[-1] / 2) / len(lost) ** 2


def by_scipy(k: Tensor, dim: int) -> Tensor:
    """Log normaliser of von Mises-Fisher distributions."""
    order = dim / 2 - 1
    return order * k.log() - dim / 2 * np.log(2 * np.pi) - torch.from_numpy(ive(order, k.numpy())).log() - k


def reported(archive: str) -> int:
    """`bench report` of an archive of results: the number of tests in its table."""
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        assert command(["report", "--results", str(HOME / "results" / archive), "--out", out]) == 0
        return len({line.rpartition(",")[2] for line in (Path(out) / "metrics.csv").open()}) - 1


def loaded(archive: str) -> int:
    """The same number from the records, read as JSON."""
    with tarfile.open(HOME / "results" / archive) as files:
        records = [json.load(files.extractfile(each)) for each in files if each.name.endswith("record.json")]
    return sum(record["kind"] == "test" for record in records)


def process(text: str) -> int:
    """Exit code of a Python that runs a text."""
    return subprocess.run([sys.executable, "-c", text], capture_output=True).returncode


def near(relative: float) -> Callable[..., bool]:
    """Check of numbers that agree up to a share."""
    return lambda ours, theirs, *data: np.allclose(ours, theirs, rtol=relative, atol=0)


def alike(ours: Any, theirs: Any, *data: Any) -> bool:
    """Check of numbers that agree but for the rounding of pixels or of products."""
    return bool(np.corrcoef(np.ravel(ours), np.ravel(theirs))[0, 1] > 0.999)


def same_nearest(ours: Any, theirs: Any, *data: Any) -> bool:
    """Check of nearest neighbours that agree but for ties in float32."""
    return float(np.mean(ours[0] == theirs[0])) > 0.999


@dataclass(frozen=True)
class Row:
    """A line of the table: what both sides do with some data, the check that it was the same, and sizes of the data.

    The sizes are the smallest, one that takes seconds, and the full one.
    """

    name: str
    ours: Callable[..., Any]
    peer: str
    theirs: Callable[..., Any]
    same: Callable[..., bool]
    data: Callable[..., tuple[Any, ...]]
    sizes: tuple[tuple[Any, ...], ...]


FLAT = "faiss flat search"
SOP = embeddings, ((400, 16), (10000, 128), (60502, 128))
FEW = embeddings, ((400, 16, 50), (20000, 128, 500), (200000, 128, 1000))
WRONG = wrong, ((400, 16, 20), (20000, 128, 1000), (500000, 128, 10000))
DRAWS = embeddings, ((60, 8), (600, 64), (2000, 64))
EMBED = photographs, ((4, 64, 32), (64, 500), (256, 500))
CROPS = photographs, ((4, 64), (128, 500), (512, 500))
EPOCH = training, (("ndigit_smoke",), ("ndigit_smoke",), ("ndigit",))
QUERIES = pairs, ((1000,), (60502,), (60502,))
PAIRS = pairs, ((1000,), (1000000,), (1000000,))
NORMALISER = lambda count, dim: (torch.logspace(0, 3, count).double(), dim), ((10, 64), (100000, 64), (100000, 64))
ARCHIVES = ("study/released/glyphs.tar.xz",), ("study/ndigit-both.tar.xz",), ("reference/ndigit.tar.xz",)
REPORT, START = (lambda archive: (archive,), ARCHIVES), (tuple, ((), (), ()))
ROWS = (
    Row("`bench.score`", scored, FLAT, recall, near(1e-3), *SOP),
    Row("`bench.score`, few queries", scored, FLAT, recall, near(1e-3), *FEW),
    Row("ranking, cosine", partial(ranked, "cosine"), FLAT, searched, same_nearest, *SOP),
    Row("ranking, L2", partial(ranked, "l2"), FLAT, searched, same_nearest, *SOP),
    Row("ranking, MLS of normals", partial(ranked, "mls"), FLAT, searched, partial(nearest_of_all, "mls"), *SOP),
    Row("ranking, MLS of vMF", partial(ranked, "mls vMF"), FLAT, searched, partial(nearest_of_all, "mls vMF"), *SOP),
    Row("metrics", lambda *data: ranked("cosine", *data)[1], "pytorch-metric-learning", by_pml, near(1e-5), *SOP),
    Row("ranks of retrieval sets", first_positives, "products, compared", counted, alike, *WRONG),
    Row("k-means, NMI, AMI, F1", clustered, "faiss k-means", by_faiss, near(0.1), *SOP),
    Row("sampled match probability", partial(ranked, "sampled_match"), "all draws", all_draws, same_nearest, *DRAWS),
    Row("confidences by training data", densities, FLAT, cosines, near(1e-5), *SOP),
    Row("`bench embed`", embedded, "DataLoader", by_torch, alike, *EMBED),
    Row("epoch of a training", lambda made, *_: made.train_epoch(0), "bare loop", bare_epoch, near(0.05), *EPOCH),
    Row("four times training crops", cropped, "torchvision", by_torchvision, near(0.1), *CROPS),
    Row("AUROC", auc, "scikit-learn", lambda x, y: roc_auc_score(y.numpy(), x.numpy()), near(1e-12), *PAIRS),
    Row("AURC, AUGRC", lambda x, y: (aurc(x, ~y), augrc(x, ~y)), "NumPy", by_numpy, near(1e-3), *QUERIES),
    Row("vMF normaliser", vmf_log_normalizer, "scipy.special.ive", by_scipy, near(1e-9), *NORMALISER),
    Row("`bench report`", reported, "JSON of its records", loaded, near(0), *REPORT),
    Row("`import bench`", partial(process, "import bench"), "python", partial(process, ""), near(0), *START),
    Row("`bench --help`", partial(process, HELP), "python", partial(process, ""), near(0), *START),
)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def _processor_seconds() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measure(row: Row, side: str, size: int, out: Path) -> None:
    """Write the seconds, MiB, result and kernels of one side, measured in this process."""
    torch.set_num_threads(1)
    work = row.ours if side == "ours" else row.theirs
    work(*row.data(*row.sizes[0]))
    data = row.data(*row.sizes[size])
    # Memory that earlier work returned to the allocator would hide the need of this work.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before, start = _status("VmRSS"), _processor_seconds()
    result = work(*data)
    seconds, peak = _processor_seconds() - start, _status("VmHWM") - before
    blas = (each for each in threadpool_info() if each["user_api"] == "blas")
    used = {Path(each["filepath"]).parent.name: each["architecture"] for each in blas}
    used["torch"] = torch.backends.cpu.get_cpu_capability()
    out.write_bytes(pickle.dumps((seconds, peak / 1024, result, used)))


def measured(row: Row, side: str, size: int, kernel: str) -> Any:
    """Seconds, MiB, result and kernels of one side in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        program = [sys.executable, __file__, "--rows", row.name, "--side", side, "--size", SIZES[size], "--out", out]
        subprocess.run(program, check=True, env={**os.environ, **THREADS, "OPENBLAS_CORETYPE": kernel})
        return pickle.loads(out.read_bytes())


def best_kernel(size: int) -> str:
    """Kernel with which faiss is fastest and finds the nearest neighbours that we find."""
    row = next(row for row in ROWS if row.same is same_nearest)
    ours, data = measured(row, "ours", size, KERNELS[0])[2], row.data(*row.sizes[size])
    found = {kernel: measured(row, "theirs", size, kernel) for kernel in KERNELS}
    return min((each[0], kernel) for kernel, each in found.items() if row.same(ours, each[2], *data))[1]


def line(row: Row, size: int, kernel: str, repeats: int) -> str:
    """A row of the table, measured."""
    ours, theirs = zip(*([measured(row, side, size, kernel) for side in ("ours", "theirs")] for _ in range(repeats)))
    print(f"{row.name}: {ours[0][3]}; {row.peer}: {theirs[0][3]}", file=sys.stderr)
    if not row.same(ours[0][2], theirs[0][2], *row.data(*row.sizes[size])):
        raise SystemExit(f"{row.name}: the sides computed different things")
    seconds, memory = ([statistics.median(run[i] for run in side) for side in (ours, theirs)] for i in (0, 1))
    ratio = statistics.median(one[0] / other[0] for one, other in zip(ours, theirs))
    what = "×".join(f"{each:,}" if isinstance(each, int) else each for each in row.sizes[size])
    timed = f"{seconds[0]:.2f}|{row.peer}|{seconds[1]:.2f}|{ratio:.2f}"
    return f"|{row.name}|{what}|{timed}|{memory[0]:.0f}/{memory[1]:.0f}|"


def main() -> None:
    """Print the table, or measure one side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default=SIZES[-1])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    size = SIZES.index(given.size)
    if given.side:
        measure(next(row for row in ROWS if row.name == given.rows), given.side, size, given.out)
        return
    kernel = best_kernel(max(size, 1))
    lines = (line(row, size, kernel, given.repeats) for row in ROWS if given.rows in row.name)
    table = "\n".join([HEAD, *lines])
    print(table)
    if given.write:
        before, _, rest = PAGE.read_text().partition(HEAD)
        PAGE.write_text(before + table + rest[rest.index("\n\n") :])


if __name__ == "__main__":
    main()
