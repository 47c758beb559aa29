"""Testing embeddings that were trained elsewhere: the protocols of ``bench run`` on arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from ._embedding_set import EmbeddingSet
from .errors import BadInput, unknown
from .methods.confidence import norm_confidence
from .methods.distributions.arrays import rows_of
from .methods.distributions.normal import DiagonalNormal, IsotropicNormal
from .methods.distributions.point import PointMass
from .methods.distributions.von_mises_fisher import VonMisesFisher
from .methods.learned_spread import spread_confidence
from .methods.scorers.distribution_scorer import DistributionScorer
from .methods.scorers.registry import SCORERS, pairwise_score
from .protocols.clustering import clustering_rows
from .protocols.confidence import kendall_crop, risk_rows, spearman_crop
from .protocols.embeddings import Row, row
from .protocols.filter_out import filter_depth, filter_out_rows, random_confidence
from .protocols.retrieval import full_depth, map_at_k_rows, mean_of_counted, per_query, rank
from .protocols.statistics import paired_bootstrap
from .protocols.structure import structure_rows
from .protocols.verification import accuracy_at, best_threshold, sample_pairs, verification_rows
from .report.frame import COLUMNS
from .seeds import seed_for

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

RECALL_KS = (1, 2, 4, 8)
GROUPS: dict[str, tuple[str, ...]] = {
    "recall": tuple(f"recall_at_{k}" for k in RECALL_KS),
    "map_at_r": ("map_at_r",),
    "r_precision": ("r_precision",),
    "precision_at_1": ("precision_at_1",),
    "map_at_1000": ("map_at_1000",),
    "verification": (
        "verification_accuracy",
        "verification_auc",
        "verification_eer",
        "verification_tpr_at_fpr",
    ),
    "clustering": ("nmi", "ami", "pair_f1"),
    "structure": ("spectral_decay", "density", "uniformity", "class_concentration"),
}
"""What ``metrics`` can name, and the metrics of the tidy table that it stands for. Their own names work too."""

FLAT_NORM, UNIT_NORM = 1e-5, 1e-3
"""Raw embeddings whose norms differ by no more than the first share (float32), or are 1 up to the second (half
precision), were normalised and then rounded: an order by their norms would be an order by rounding errors."""


@dataclass(frozen=True)
class Scored:
    """What was found out about one set of embeddings.

    Attributes:
        rows: Tidy rows.
        given: The set, sorted by identity; everything below is in its order.
        queries: Rows of it that are queries, ``[Q]``.
        values: Metrics of every query by scorer and name, each ``[Q]``, nan for lone queries.
        confidences: Confidences by name, each ``[N]``.
        primary: The confidence that is judged, or an empty text: the given one, else the distribution's.
    """

    rows: tuple[Row, ...]
    given: EmbeddingSet
    queries: Tensor
    values: dict[str, dict[str, Tensor]]
    confidences: dict[str, Tensor]
    primary: str


def score(
    embeddings: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    confidence: ArrayLike | Tensor | None = None,
    variance: ArrayLike | Tensor | None = None,
    concentration: ArrayLike | Tensor | None = None,
    quality: ArrayLike | Tensor | None = None,
    is_query: ArrayLike | Tensor | None = None,
    is_gallery: ArrayLike | Tensor | None = None,
    scorers: Sequence[str] = ("cosine",),
    metrics: Sequence[str] = ("recall", "map_at_r", "r_precision"),
    normalize: bool = True,
) -> pd.DataFrame:
    """Score embeddings of labelled images: retrieval, and whether their confidence is worth anything.

    Rankings are over the full gallery, a query's own row left out, exact under ties; queries without another image of
    their class are left out of every metric and counted. Nothing depends on the order of the rows.

    Args:
        embeddings: ``[N, D]``.
        labels: ``[N]`` integers.
        confidence: ``[N]``, any scale, higher = surer: confidence ``given``.
        variance: Of a normal per dimension, in the space that is scored (that of the unit embeddings, if
            ``normalize``), ``[N]`` or ``[N, D]``, positive. Confidence ``method`` is minus its mean logarithm.
        concentration: Of a von Mises-Fisher, ``[N]``, not negative. Confidence ``method`` is its logarithm.
        quality: ``[N]``, known quality of the images, such as the side of a crop. Its rank correlations with every
            confidence are ``spearman_crop`` and ``kendall_crop``, variant ``quality``.
        is_query: ``[N]`` booleans; all if not given.
        is_gallery: ``[N]`` booleans; all if not given.
        scorers: Similarities to rank with (``bench list scorers``).
        metrics: Any of ``recall``, ``map_at_r``, ``r_precision``, ``precision_at_1``, ``map_at_1000``,
            ``verification``, ``clustering``, ``structure``, or single metrics such as ``recall_at_16`` or ``nmi``.
            The verification threshold is chosen on half of the classes and tested on the other half (variant
            ``threshold_held_out_classes``).
        normalize: L2-normalise embeddings first.

    Returns:
        The tidy table, one value per row, with the columns of ``bench run``'s ``metrics.csv``. With a confidence,
        variance or concentration it has filter-out curves, ``aurc``, ``e_aurc`` and ``confidence_auroc`` of each
        confidence: ``given``, ``method``, ``norm`` (of the raw embeddings), and the controls ``random`` and ``oracle``.

    Raises:
        BadInput: A ``ValueError``, if arrays, scorers or metrics are wrong, in one line that says what to do.

    Example:
        >>> import bench
        >>> table = bench.score([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]], [0, 0, 1, 1], metrics=["recall_at_1"])
        >>> table[["scorer", "metric", "value", "n_queries"]].values.tolist()
        [['cosine', 'recall_at_1', 1.0, 4]]
    """
    given = EmbeddingSet.of(
        {
            "embeddings": embeddings,
            "labels": labels,
            "confidence": confidence,
            "variance": variance,
            "concentration": concentration,
            "quality": quality,
            "is_query": is_query,
            "is_gallery": is_gallery,
        }
    )
    return tidy(score_set(given, scorers=scorers, metrics=metrics, normalize=normalize))


def score_set(
    given: EmbeddingSet,
    *,
    scorers: Sequence[str],
    metrics: Sequence[str],
    normalize: bool = True,
    device: str = "cpu",
) -> Scored:
    """Everything that is asked about a set; matrices of scores are computed on ``device``.

    Raises:
        BadInput: If a scorer or metric is unknown or does not fit.
    """
    wanted = wanted_metrics(metrics)
    scorers = (scorers,) if isinstance(scorers, str) else tuple(dict.fromkeys(scorers))
    ordered = given.in_order()
    distribution = distribution_of(ordered, normalize)
    check_scorers(scorers, distribution)
    try:
        return _measured(ordered, distribution, scorers, wanted, device)
    except ValueError as error:
        raise BadInput(str(error)) from None


def wanted_metrics(metrics: Sequence[str]) -> dict[str, int]:
    """Metrics of the tidy table from names of groups and metrics; ``recall_at_k`` with their k, others with 0.

    Raises:
        BadInput: If a name is unknown.
    """
    singles = {metric for names in GROUPS.values() for metric in names}
    wanted: dict[str, int] = {}
    for name in (metrics,) if isinstance(metrics, str) else metrics:
        members = GROUPS.get(name, (name,))
        for member in members if name != "all" else sorted(singles):
            recall = re.fullmatch(r"recall_at_([1-9]\d{0,5})", member)
            if member not in singles and recall is None:
                raise BadInput(str(unknown("metric", member, {*GROUPS, *singles, "all"})))
            wanted[member] = int(recall[1]) if recall else 0
    if not wanted:
        raise BadInput("no metric asked for; name at least one, such as map_at_r")
    return wanted


def check_scorers(scorers: Sequence[str], distribution: Distribution) -> None:
    """Refuse scorers that do not exist or do not fit what the embeddings are.

    Raises:
        BadInput: With those that fit.
    """
    if not scorers:
        raise BadInput("no scorer asked for; name at least one, such as cosine")
    for name in scorers:
        if name not in SCORERS:
            raise BadInput(str(unknown("scorer", name, SCORERS)))
    two = rows_of(distribution, torch.tensor([0, 1]))
    fitting = []
    for name in SCORERS:
        try:
            pairwise_score(name, two, two)
            fitting.append(name)
        except ValueError:
            continue
    for name in scorers:
        if name not in fitting:
            kind = {
                PointMass: "that are points (no variance, no concentration)",
                VonMisesFisher: "with a concentration",
            }
            what = kind.get(type(distribution), "with a variance per image or dimension")
            raise BadInput(f"scorer {name!r} is not defined for embeddings {what}; these are: {', '.join(fitting)}")


def distribution_of(given: EmbeddingSet, normalize: bool = True) -> Distribution:
    """The embeddings as a batch of distributions, float64.

    Raises:
        BadInput: If an embedding that is to be normalised is zero.
    """
    loc = torch.from_numpy(given.embeddings)
    if normalize or given.concentration is not None:
        zero = int((loc == 0).all(1).sum())
        if zero:
            raise BadInput(f"embeddings has {zero} rows of zeros, which have no direction; drop them")
    if normalize:
        # By the largest entry first: squares of very large or small numbers are not representable.
        loc = F.normalize(loc / loc.abs().amax(1, keepdim=True), dim=-1)
    if given.concentration is not None:
        if loc.shape[1] < 2:
            raise BadInput("a von Mises-Fisher (concentration) needs embeddings of at least two dimensions")
        return VonMisesFisher(loc, torch.from_numpy(given.concentration), validate_args=False)
    if given.variance is not None:
        kind = IsotropicNormal if given.variance.ndim == 1 else DiagonalNormal
        return kind(loc, torch.from_numpy(given.variance), validate_args=False)
    return PointMass(loc)


def confidences_of(given: EmbeddingSet, distribution: Distribution) -> dict[str, Tensor]:
    """Confidences by name, each ``[N]``: ``given``, ``method``, ``norm`` and ``random``, where there are any."""
    found: dict[str, Tensor] = {}
    if given.confidence is not None:
        found["given"] = torch.from_numpy(given.confidence)
    if isinstance(distribution, DiagonalNormal):
        # -log s2 of an isotropic normal, and like it monotone in the entropy.
        found["method"] = -distribution.variance.log().mean(-1)
    elif not isinstance(distribution, PointMass):
        found["method"] = spread_confidence(distribution)
    if not found and given.quality is None:
        return {}
    norm = norm_confidence(torch.from_numpy(given.embeddings))
    flat = bool(norm.max() - norm.min() <= FLAT_NORM * norm.max() or (norm - 1.0).abs().max() <= UNIT_NORM)
    found["norm"] = torch.ones_like(norm) if flat else norm
    found["random"] = random_confidence(given.ids, seed_for("score", "random confidence"))
    return found


def _measured(
    given: EmbeddingSet, distribution: Distribution, scorers: tuple[str, ...], wanted: dict[str, int], device: str
) -> Scored:
    labels = torch.from_numpy(_classes(given.labels))
    confidences = confidences_of(given, distribution)
    primary = next((name for name in ("given", "method") if name in confidences), "")
    queries, gallery = (torch.from_numpy(mask).nonzero().squeeze(1) for mask in (given.is_query, given.is_gallery))
    roles: dict[str, Any] = {"queries": queries, "gallery": gallery}
    ks = sorted({1, *(k for k in wanted.values() if k)})
    rows: list[Row] = []
    values: dict[str, dict[str, Tensor]] = {}
    for name in scorers:
        scorer = DistributionScorer(name, distribution, device=device)
        # The filter-out curves look deeper than the other tests; one ranking serves them all.
        depth = max(full_depth(labels, ks), filter_depth(labels) if primary else 1)
        ranking = rank(scorer, labels, depth=depth, **roles)
        values[name] = each = per_query(ranking, ks)
        for metric, found in each.items():
            lone = int(found.isnan().sum())
            if metric in wanted:
                rows.append(row(metric, mean_of_counted(found), scorer=name, n_queries=len(found) - lone, n_lone=lone))
        if "map_at_1000" in wanted:
            rows += map_at_k_rows(scorer, labels, k=1000, **roles)
        if set(GROUPS["verification"]) & set(wanted):
            rows += [item for item in _verification(scorer, labels, given.ids) if item["metric"] in wanted]
        if primary:
            ties = seed_for("score", "confidence ties")
            rows += filter_out_rows(
                scorer, labels, given.ids, confidences, oracle=True, seed=ties, **roles, ranking=ranking
            )
            rows += risk_rows(each, {kind: value[queries] for kind, value in confidences.items()}, scorer=name)
    rows += _about_all(distribution, labels, wanted)
    if given.quality is not None:
        quality = torch.from_numpy(given.quality)
        for kind, value in confidences.items():
            for metric, correlation in (("spearman_crop", spearman_crop), ("kendall_crop", kendall_crop)):
                found_value = correlation(value, quality)
                rows.append(row(metric, found_value, confidence=kind, variant="quality", n_queries=len(labels)))
    return Scored(tuple(rows), given, queries, values, confidences, primary)


def _classes(labels: np.ndarray) -> np.ndarray:
    """Classes 0..C-1 in the order of their first rows: what they were numbered by does not matter."""
    _, first, place = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[place]


def _about_all(distribution: Distribution, labels: Tensor, wanted: dict[str, int]) -> Iterator[Row]:
    """What concerns all directions and no scorer: clusters and structure."""
    loc: Tensor = distribution.loc if hasattr(distribution, "loc") else distribution.mean
    tests: dict[str, Callable[[Tensor], list[Row]]] = {
        "clustering": lambda unit: clustering_rows(unit, labels, seed=seed_for("score", "k-means") % 2**31),
        "structure": lambda unit: structure_rows(unit, labels),
    }
    for group, run in tests.items():
        if set(GROUPS[group]) & set(wanted):
            yield from (item for item in run(F.normalize(loc, dim=-1)) if item["metric"] in wanted)


def _verification(scorer: DistributionScorer, labels: Tensor, ids: tuple[str, ...]) -> Iterator[Row]:
    """Rates over pairs of all images; the accuracy with a threshold from classes that are not tested."""
    seed = seed_for("score", "pairs")
    pairs = sample_pairs(labels, ids, seed)
    scores = scorer.pairs(pairs.left, pairs.right)
    for item in verification_rows(scores, pairs.same, scores, pairs.same, scorer=scorer.name):
        if item["variant"] != "threshold_val":  # there is no validation set, only its stand-in below
            yield item
    sampled = []
    for rows in _halves(labels, ids, seed):
        try:
            half = sample_pairs(labels[rows], [ids[i] for i in rows.tolist()], seed)
        except ValueError:
            raise ValueError(
                "verification needs at least four classes, most of them of two images: half of the classes choose the"
                " threshold, the other half are tested"
            ) from None
        sampled.append((scorer.pairs(rows[half.left], rows[half.right]), half.same))
    (chosen_on, chosen_same), (tested, same) = sampled
    threshold, _ = best_threshold(chosen_on, chosen_same)
    yield row(
        "verification_accuracy",
        accuracy_at(threshold, tested, same),
        scorer=scorer.name,
        variant="threshold_held_out_classes",
        n_queries=len(tested),
    )


def _halves(labels: Tensor, ids: tuple[str, ...], seed: int) -> tuple[Tensor, Tensor]:
    """Rows of two halves of the classes, drawn by the least identity of each class and not by its number."""
    least: dict[int, str] = {}
    for label, name in zip(labels.tolist(), ids):
        least[label] = min(name, least.get(label, name))
    drawn = random_confidence([least[label] for label in range(len(least))], seed)
    first = drawn.argsort()[: len(least) // 2]
    inside = torch.isin(labels, first)
    return inside.nonzero().squeeze(1), (~inside).nonzero().squeeze(1)


def tidy(scored: Scored, name: str = "") -> pd.DataFrame:
    """The tidy table; ``name`` stands in the column ``method``."""
    constant = {
        "protocol": "score",
        "method": name,
        "trials": 0,
        "dim": scored.given.embeddings.shape[1],
        "seed": 0,
        "split": "test",
        "unit": scored.given.digest(),
    }
    empty: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    frame = pd.DataFrame([{**empty, **constant, **item} for item in scored.rows], columns=list(COLUMNS))
    return frame.astype({"value": float, "fraction": float})


def compare(
    first: Scored, other: Scored, metrics: Sequence[str], *, by: str = "queries", resamples: int = 2000
) -> list[dict[str, Any]]:
    """Other minus first, query by query: differences with 95 % paired-bootstrap intervals.

    Args:
        first: Scores of the first set.
        other: Scores of a set that was aligned with it (:meth:`EmbeddingSet.aligned_with`), by the same scorers.
        metrics: As asked for; those that are means over queries are compared.
        by: What is drawn with replacement: ``queries`` (the classes stay as they are) or whole ``classes``.
        resamples: Number of draws.

    Returns:
        One row per scorer and metric.
    """
    found = []
    for scorer, values in first.values.items():
        names = [name for name in values if name in wanted_metrics(metrics)]
        if not names:
            continue
        a, b = (torch.stack([each[scorer][name] for name in names], 1) for each in (other.values, first.values))
        counted = ~b.isnan().any(1)
        labels = _classes(first.given.labels)[first.queries.numpy()][counted.numpy()] if by == "classes" else None
        seed = seed_for("score", "bootstrap") % 2**32
        intervals = paired_bootstrap(a[counted].numpy(), b[counted].numpy(), labels, resamples=resamples, seed=seed)
        for name, interval in zip(names, intervals):
            found.append(
                {
                    "scorer": scorer,
                    "metric": name,
                    "difference": interval.difference,
                    "ci95_low": interval.ci_low,
                    "ci95_high": interval.ci_high,
                    "resampled": by,
                    "units": interval.units,
                }
            )
    return found
