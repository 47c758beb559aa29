"""Agreement of clusters of embeddings with the classes: NMI, AMI and pair-counting F1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

import numpy as np
import torch
from torch import Tensor

from .declare import test
from .embeddings import Embeddings
from .rows import Row, row


def k_means(points: Tensor, clusters: int, *, restarts: int = 1, iterations: int = 20, seed: int = 0) -> Tensor:
    """Assign points ``[N, D]`` to clusters by Lloyd's k-means: int64 ``[N]``, 0 to ``clusters - 1``.

    The start with the smallest sum of squared distances counts; normalise points first to cluster directions. More
    clusters than points are a ValueError.

    Example:
        >>> cluster = k_means(torch.tensor([[0.0, 0.0], [0.0, 0.1], [5.0, 5.0], [5.0, 5.1]]), 2)
        >>> bool(cluster[0] == cluster[1]), bool(cluster[2] == cluster[3]), bool(cluster[0] == cluster[2])
        (True, True, False)
    """
    import faiss

    if not 1 <= clusters <= len(points):
        raise ValueError(f"{len(points)} points cannot form {clusters} clusters")
    x = np.ascontiguousarray(points.float().numpy())
    means = faiss.Kmeans(
        x.shape[1],
        clusters,
        niter=iterations,
        nredo=restarts,
        seed=seed + 1,
        min_points_per_centroid=1,
        max_points_per_centroid=len(x),
    )
    means.train(x)
    return torch.from_numpy(means.index.search(x, 1)[1][:, 0])


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
    from sklearn.metrics import adjusted_mutual_info_score

    return float(adjusted_mutual_info_score(labels.numpy(), clusters.numpy()))


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


STARTS = 10
"""Independent starts of k-means; each ends in another local optimum."""


def clusters_of(view: Embeddings) -> list[Tensor]:
    """Index of each image's cluster, int64 ``[N]``, by k-means from every start, computed once for all tests."""
    classes = len(torch.unique(view.labels))
    seeds = [view.seed(f"k-means {start}") % (2**31 - 1) for start in range(STARTS)]
    # A start draws images by their places, which must not depend on the order of the images.
    order = torch.tensor(sorted(range(len(view)), key=view.ids.__getitem__))
    place = order.argsort()
    return view.once(
        "clusters", lambda: [k_means(view.unit_vectors[order], classes, seed=seed)[place] for seed in seeds]
    )


@test(group="clustering", per="embeddings", needs=("directions",), clean_only=True, version=2)
def clustering(view: Embeddings) -> Iterator[Row]:
    """NMI, AMI and pair F1 of k-means on the unit embeddings, with as many clusters as classes.

    They are means over 10 starts; rows of the variant ``sd`` have the SD over the starts.
    """
    yield from clustering_rows(view.labels, clusters_of(view))
