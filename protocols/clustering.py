"""Agreement of clusters of embeddings with the classes: NMI, AMI and pair-counting F1."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

import numpy as np
import torch
from torch import Tensor

from .declare import test
from .embeddings import Embeddings
from .rows import Row, row

_DISTANCES, _POWER = 1 << 22, 4


def k_means(points: Tensor, clusters: int, *, iterations: int = 20, seed: int = 0) -> Tensor:
    """Assign points ``[N, D]`` to clusters by Lloyd's k-means: int64 ``[N]``, 0 to ``clusters - 1``.

    It starts from :func:`spread_points`, which find classes that lie apart: of random points, two may lie in one class.
    Normalise points first to cluster directions. More clusters than points, or points that are not finite, are a
    ValueError.

    Example:
        >>> cluster = k_means(torch.tensor([[0.0, 0.0], [0.0, 0.1], [5.0, 5.0], [5.0, 5.1]]), 2)
        >>> bool(cluster[0] == cluster[1]), bool(cluster[2] == cluster[3]), bool(cluster[0] == cluster[2])
        (True, True, False)
    """
    import faiss

    if not 1 <= clusters <= len(points):
        raise ValueError(f"{len(points)} points cannot form {clusters} clusters")
    x = points.double() - points.double().mean(0)  # points that lie close to each other keep their digits
    largest = x.abs().max()
    if not torch.isfinite(largest):
        raise ValueError("points that are not finite cannot be clustered")
    # By a power of two, which rounds nothing, so that squares stay within float32.
    x, size = (x * 2.0 ** -max(int(largest.frexp().exponent), -1000)).float(), len(x)
    means = faiss.Kmeans(
        x.shape[1], clusters, niter=iterations, seed=seed + 1, min_points_per_centroid=1, max_points_per_centroid=size
    )
    means.train(x.numpy(), init_centroids=x[spread_points(x, clusters, seed)].numpy())
    return torch.from_numpy(means.index.search(x.numpy(), 1)[1][:, 0])


def spread_points(x: Tensor, count: int, seed: int = 0) -> Tensor:
    """Rows ``[count]`` of different points ``[N, D]``, drawn as by k-means++ (Arthur and Vassilvitskii 2007).

    Each is drawn with a probability proportional to a power of its distance from the nearest one before it: the eighth,
    not the second, which too often draws again where it was. Many are drawn at once by distances that are older, thus
    nowhere smaller, and accepted with the ratio of the two; so distances come from a matrix product. Points within
    rounding of a chosen one count as equal to it.
    """
    g = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(x), (1,), generator=g)
    left = _nearest_squares(x, x[chosen])
    while len(chosen) < count:
        total = left.double().pow(_POWER).cumsum(0)
        if total[-1] == 0:  # no point is apart from the chosen ones
            others = torch.randperm(len(x), generator=g)
            return torch.cat([chosen, others[~torch.isin(others, chosen)]])[:count]
        first, second = torch.rand(2, min(256, max(16, _DISTANCES // len(x))), generator=g, dtype=torch.float64)
        drawn = torch.searchsorted(total, total[-1] * first, right=True).clamp_max(int(left.nonzero()[-1]))
        now, points = left[drawn], x[drawn]
        least, kept = now * (1.0 - second).pow(1.0 / _POWER).float(), []
        for i in range(len(drawn)):
            if now[i] >= least[i]:
                kept.append(i)
                now = torch.minimum(now, _nearest_squares(points, points[i : i + 1]))
        kept = kept[: count - len(chosen)]
        chosen = torch.cat([chosen, drawn[kept]])
        left = torch.minimum(left, _nearest_squares(x, points[kept]))
    return chosen


def _nearest_squares(x: Tensor, points: Tensor) -> Tensor:
    """Squared distance ``[N]`` of each point ``[N, D]`` from the nearest of some, 0 within rounding."""
    squares = x.square().sum(1)
    nearest = squares + torch.addmm(points.square().sum(1), x, points.T, alpha=-2.0).amin(1)
    return nearest.masked_fill_(nearest < 2e-6 * squares, 0.0)


def nmi(labels: Tensor, clusters: Tensor) -> float:
    """Mutual information of classes and clusters ``[N]``, divided by the mean of their entropies (NMI): in [0, 1].

    Example:
        >>> nmi(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 6, 6]))
        1.0
    """
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(labels.numpy(), clusters.numpy()))


def ami(labels: Tensor, clusters: Tensor) -> float:
    """Adjusted mutual information of classes and clusters ``[N]``: 0 on average for random clusters, at most 1.

    Example:
        >>> round(ami(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])), 6)
        -0.5
    """
    from scipy.stats import entropy
    from sklearn.metrics import mutual_info_score

    of_class, of_cluster = (torch.unique(each, return_counts=True)[1].numpy() for each in (labels, clusters))
    expected = _expected_information(of_class, of_cluster)
    above = float(entropy(of_class) + entropy(of_cluster)) / 2 - expected
    found = float(mutual_info_score(labels.numpy(), clusters.numpy())) - expected
    return min(1.0, found / above) if above > 1e-12 else 1.0


def _expected_information(of_class: np.ndarray, of_cluster: np.ndarray) -> float:
    """Mutual information that clusters of these sizes have with the classes on average over all permutations.

    Sizes occur many times, and the sum over classes and clusters has equal terms for equal sizes (Vinh et al. 2010).
    """
    from scipy.special import gammaln

    count, total = int(of_class.sum()), 0.0
    log_factorial = gammaln(np.arange(count + 1) + 1.0)
    sizes, others = (list(zip(*np.unique(each, return_counts=True))) for each in (of_class, of_cluster))
    for (a, times), (b, repeated) in itertools.product(sizes, others):
        n = np.arange(max(1, a + b - count), min(a, b) + 1)
        ways = log_factorial[a] + log_factorial[b] + log_factorial[count - a] + log_factorial[count - b]
        parts = log_factorial[n] + log_factorial[a - n] + log_factorial[b - n] + log_factorial[count - a - b + n]
        share = np.exp(ways - log_factorial[count] - parts)
        total += times * repeated * float((share * n * np.log(count * n / (a * b))).sum()) / count
    return float(total)


def pair_f1(labels: Tensor, clusters: Tensor) -> float:
    """F1 score over all pairs of images: a pair is positive if it shares a class, and predicted if it shares a cluster.

    Example:
        >>> pair_f1(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1]))
        0.4
    """
    from sklearn.metrics.cluster import pair_confusion_matrix

    (_, one), (other, both) = pair_confusion_matrix(labels.numpy(), clusters.numpy()).astype(float)
    return float(2 * both / (2 * both + one + other)) if both + one + other else 0.0


def clustering_rows(labels: Tensor, starts: Sequence[Tensor]) -> Iterator[Row]:
    """NMI, AMI and pair F1 of clusters of N images, ``[N]`` each: mean over the starts, and their SD if several."""
    for metric, measure in (("nmi", nmi), ("ami", ami), ("pair_f1", pair_f1)):
        values = [measure(labels, clusters) for clusters in starts]
        yield row(metric, fmean(values), scorer="cosine", n_queries=len(labels))
        if len(values) > 1:
            yield row(metric, stdev(values), scorer="cosine", variant="sd", n_queries=len(labels))


def clusters_of(view: Embeddings) -> list[Tensor]:
    """Index of each image's cluster, int64 ``[N]``, by k-means from every start, computed once for all tests."""
    classes = len(torch.unique(view.labels))
    seeds = [view.seed(f"k-means {start}") % (2**31 - 1) for start in range(view.options.starts)]
    # A start draws images by their places, which must not depend on the order of the images.
    order = torch.tensor(sorted(range(len(view)), key=view.ids.__getitem__))
    place = order.argsort()
    return view.once(
        "clusters", lambda: [k_means(view.unit_vectors[order], classes, seed=seed)[place] for seed in seeds]
    )


@test(group="clustering", per="embeddings", needs=("directions",), clean_only=True, version=3)
def clustering(view: Embeddings) -> Iterator[Row]:
    """NMI, AMI and pair F1 of k-means on the unit embeddings, with as many clusters as classes.

    It has one start; with more (:class:`.Options`), they are means over the starts, and rows of the variant ``sd`` have
    their SD.
    """
    yield from clustering_rows(view.labels, clusters_of(view))
