"""Structure of embeddings on the sphere: spectral decay, density, uniformity, spread of the classes.

Definitions of Roth et al. (ICML 2020; NIR, CVPR 2022, Table 3) where these are complete; the papers leave open which
split they were computed on. All take unit vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from .declare import test
from .embeddings import Embeddings
from .rows import Row, row

_BLOCK = 2048
_ROUNDING = 1e-12
"""Mean distance between class means below which it is rounding."""


def singular_spectrum(unit: Tensor, drop: int = 1) -> Tensor:
    """Singular values of the uncentred matrix of embeddings, largest first, divided by the sum of those that are kept.

    The embeddings are unit vectors ``[N, D]``, N >= D; of their D singular values the ``drop`` largest are left out
    (Roth et al. 2020: 1).

    Example:
        >>> singular_spectrum(torch.eye(3))
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    s = torch.linalg.svdvals(unit.double())[drop:]
    share: Tensor = s / s.sum()
    return share


def spectral_decay(unit: Tensor, drop: int = 1) -> float:
    """Spectral decay: KL divergence KL(uniform || s) with the normalised singular values s, in nats; lower = flatter.

    It is nan if no singular value is left; see :func:`singular_spectrum`.

    Example:
        >>> abs(round(spectral_decay(torch.eye(3)), 6))
        0.0
    """
    s = singular_spectrum(unit, drop)
    return float((-math.log(len(s)) - s.clamp_min(1e-300).log()).mean()) if len(s) else math.nan


def class_sums(unit: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the embeddings ``[C, D]`` and numbers of images ``[C]`` of the C classes that occur, in ascending order.

    Example:
        >>> class_sums(torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1]))
        (tensor([[2., 0.],
                [0., 1.]]), tensor([2., 1.]))
    """
    classes, place, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = unit.new_zeros(len(classes), unit.shape[1]).index_add(0, place, unit)
    return sums, counts.to(unit.dtype)


def _mean_cosine(sums: Tensor, counts: Tensor) -> Tensor:
    """Mean cosine of two different members, from the sum of unit vectors: (|S|^2 - n) / (n (n - 1))."""
    return (sums.square().sum(-1) - counts) / (counts * (counts - 1))


def class_distances(unit: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean cosine distance between images of a class, and mean cosine distance between normalised class means.

    The first is computed for each class of two images or more and averaged over these classes. The embeddings are unit
    vectors ``[N, D]``.

    Raises:
        ValueError: If there is one class only, or no class of two images.

    Example:
        >>> unit, labels = torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> class_distances(unit, labels)
        (0.0, 1.0)
    """
    sums, counts = class_sums(unit.double(), labels)
    several = counts > 1
    if len(counts) < 2 or not several.any():
        raise ValueError("distances inside and between classes need two classes, one of them of two images")
    intra = float((1 - _mean_cosine(sums[several], counts[several])).mean())
    means = torch.nn.functional.normalize(sums, dim=-1)
    inter = float(1 - _mean_cosine(means.sum(0), means.new_tensor(float(len(means)))))
    return intra, inter if inter > _ROUNDING else 0.0


def density(unit: Tensor, labels: Tensor) -> float:
    """Mean cosine distance inside classes over mean cosine distance between class means; higher = looser classes.

    As in Roth et al. 2020. It is nan if all class means are the same; see :func:`class_distances`.

    Example:
        >>> unit, labels = torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> density(unit, labels)
        0.0
    """
    intra, inter = class_distances(unit, labels)
    return intra / inter if inter else math.nan


def uniformity(unit: Tensor, t: float = 2.0) -> float:
    """Mean of exp(-t |x - y|^2) over pairs of different unit vectors (Wang and Isola 2020, without the logarithm).

    Example:
        >>> round(uniformity(torch.eye(2)), 6)  # one pair at squared distance 2: exp(-4)
        0.018316
    """
    x = unit.double()
    total = 0.0
    for block in x.split(_BLOCK):
        total += float(torch.exp(-t * (2 - 2 * block @ x.mT).clamp_min(0)).sum())
    return (total - len(x)) / (len(x) * (len(x) - 1))


def class_concentration(unit: Tensor, labels: Tensor) -> Tensor:
    """Spread of each of C classes of two images or more, float64 ``[C]``; higher = less concentrated.

    It is the mean cosine distance of the class's images to its normalised mean, divided by the mean distance between
    the normalised means of all classes; nan if these are all the same.

    Example:
        >>> unit, labels = torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> class_concentration(unit, labels).tolist()
        [0.0, 0.0]
    """
    sums, counts = class_sums(unit.double(), labels)
    _, inter = class_distances(unit, labels)
    length = sums.square().sum(-1).sqrt()
    return ((1 - length / counts) / (inter or math.nan))[counts > 1]


def cluster_diversity(unit: Tensor, labels: Tensor) -> tuple[float, float]:
    """Variance of the cosine distances between images of a class, within classes and between classes.

    EL-nivMF (Kirchhof et al. 2022, Supplement L) calls it "variance of intraclass distances". The paper gives no
    formula and only relative changes, and it measures training images. The first is the variance of the distances
    between two images of a class, as a mean over the classes of three images or more; the second is the variance of the
    classes' mean distances, over the classes of two images or more. Both are unbiased (denominator n - 1). The first is
    nan without such a class, the second with fewer than two.

    Example:
        >>> unit, labels = torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> cluster_diversity(unit, labels)
        (nan, 0.0)
    """
    counts = torch.unique(labels, return_counts=True)[1]
    inside, means = [], []
    for members in unit.double()[labels.argsort(stable=True)].split(counts.tolist()):
        if len(members) > 1:
            first, second = torch.triu_indices(len(members), len(members), 1)
            distances = 1 - (members @ members.mT)[first, second]
            means.append(distances.mean())
            if len(distances) > 1:
                inside.append(distances.var())
    within = float(torch.stack(inside).mean()) if inside else math.nan
    return within, float(torch.stack(means).var()) if len(means) > 1 else math.nan


def structure_rows(unit: Tensor, labels: Tensor) -> list[Row]:
    """Metrics of how unit embeddings ``[N, D]`` and classes are spread over the sphere.

    There are eight rows: ``spectral_decay``, ``density`` and ``uniformity`` (no variant); ``class_concentration``
    (``variance``, ``sd`` and ``cv``, the coefficient of variation, over classes); ``cluster_diversity``
    (``within_classes`` and ``between_classes``).
    """
    r = class_concentration(unit, labels)
    sd = float(r.std()) if len(r) > 1 else math.nan
    within, between = cluster_diversity(unit, labels)
    values = {
        ("spectral_decay", ""): spectral_decay(unit),
        ("density", ""): density(unit, labels),
        ("uniformity", ""): uniformity(unit),
        ("class_concentration", "variance"): sd**2,
        ("class_concentration", "sd"): sd,
        ("class_concentration", "cv"): sd / float(r.mean()) if float(r.mean()) > 0 else math.nan,
        ("cluster_diversity", "within_classes"): within,
        ("cluster_diversity", "between_classes"): between,
    }
    return [
        row(metric, value, scorer="cosine", variant=variant, n_queries=len(labels))
        for (metric, variant), value in values.items()
    ]


@test(group="structure", per="embeddings", needs=("directions",), clean_only=True)
def structure(view: Embeddings) -> Iterable[Row]:
    """Spectral decay, density, uniformity, class concentration and cluster diversity of the unit embeddings."""
    return structure_rows(view.unit_vectors, view.labels)
