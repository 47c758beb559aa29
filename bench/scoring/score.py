"""Testing embeddings that were trained elsewhere: the tests of ``bench run`` on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from ..errors import BadInput
from ..protocols.battery import run_battery
from ..protocols.known_tests import load_tests
from ..protocols.rows import Row
from ..store.records import COLUMNS
from .embedding_set import EmbeddingSet
from .requests import check_scorers, groups_of_tests, is_wanted, recall_ks, wanted_metrics
from .view import distribution_of, primary_of, view_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Scored:
    """Results of the tests of one set of embeddings, sorted by identity, and what they were computed from.

    Values per query ``[Q]`` are by name of the scorer, then of the metric; nan without a positive in the gallery. They
    and the retrieval confidences are empty if no metric of a ranking was asked for and there is no confidence to judge.
    ``primary`` is the confidence that is judged: the given one, else the distribution's; empty if neither exists.
    """

    rows: tuple[Row, ...]
    given: EmbeddingSet
    queries: Tensor
    values: dict[str, dict[str, Tensor]]
    confidences: dict[str, Tensor]
    retrieval: dict[str, dict[str, Tensor]]
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
    """Score embeddings of labelled images: retrieval, and how well a confidence tells right answers from wrong ones.

    Each query ranks the full gallery, except the query itself. Tied scores count by the expectation over random orders
    of the ties, so that nothing depends on the order of the rows. Queries without another image of their class in
    the gallery are left out of the metrics of rankings; the column ``n_lone`` gives their number.

    Args:
        embeddings: Embeddings of N images, ``[N, D]``.
        labels: Their classes, ``[N]`` integers.
        confidence: ``[N]``, any scale, higher = more confident. The table calls it ``given``.
        variance: Variance per dimension of a normal, in the space that is scored (that of the unit embeddings, if
            ``normalize``), ``[N]`` or ``[N, D]``, positive. The confidence ``method`` is
            minus the mean of the logarithms of an image's variances. Excludes ``concentration``.
        concentration: Concentration of a von Mises-Fisher, ``[N]``, not negative. The confidence ``method`` is
            its logarithm.
        quality: ``[N]``, known quality of the images, such as the side of a crop. The table then has its rank
            correlations with every confidence: metrics ``spearman_crop`` and ``kendall_crop``, variant ``quality``.
        is_query: Which images are queries, ``[N]`` booleans; all if not given.
        is_gallery: Which images are searched, ``[N]`` booleans; all if not given.
        scorers: Similarities to rank with (``bench list scorers``).
        metrics: Any of ``recall``, ``map_at_r``, ``r_precision``, ``precision_at_1``, ``map_at_1000``,
            ``verification``, ``retrieval_sets``, ``threshold_consistency``, ``clustering`` (such as NMI),
            ``structure`` (such as spectral decay and uniformity), ``discard`` (error versus discard of confidences), or
            single metrics such as ``recall_at_16`` or ``nmi`` (``bench list metrics``). The verification threshold is
            chosen on half of the classes and tested on the other half (variant ``threshold_held_out_classes``).
        normalize: Whether to L2-normalise embeddings first.

    Returns:
        Table with one value per row. Its columns are those of ``metrics.csv``, the table that ``bench run`` writes:
        ``scorer``, ``confidence``, ``variant``, ``metric``, ``fraction`` (share of the images that was removed),
        ``value``, ``n_queries``, ``n_lone`` and columns that describe the experiment, most of which are empty here.
        If a metric of rankings is asked for, or there is a confidence, variance or concentration, the table also has
        ``aurc``, ``e_aurc``, ``augrc``, points of the risk-coverage curve and ``confidence_auroc`` of each confidence:
        those of the images (``given``, ``method``, ``norm`` of the raw embeddings), those of the ranking
        (``top1_score``, ``margin``, ``agreement``, ``spread``), both together (such as ``norm+margin``), and the
        controls ``random`` and ``oracle``. With a confidence, variance or concentration, it has filter-out curves, too
        (metrics of the images left after the least confident are removed).

    Raises:
        BadInput: A ``ValueError``, if arrays, scorers or metrics are wrong, in one line that says what to do.

    Example:
        >>> import bench
        >>> table = bench.score([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]], [0, 0, 1, 1], metrics=["recall_at_1"])
        >>> table[table["confidence"] == ""][["scorer", "metric", "value", "n_queries"]].values.tolist()
        [['cosine', 'recall_at_1', 1.0, 4]]
    """
    images = EmbeddingSet.of(
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
    return tidy(score_set(images, scorers=scorers, metrics=metrics, normalize=normalize))


def score_set(
    images: EmbeddingSet,
    *,
    scorers: Sequence[str],
    metrics: Sequence[str],
    normalize: bool = True,
    device: str = "cpu",
) -> Scored:
    """Compute the wanted metrics of a set of embeddings under each scorer."""
    wanted = wanted_metrics(metrics)
    names = (scorers,) if isinstance(scorers, str) else tuple(dict.fromkeys(scorers))
    ordered = images.in_order()
    distribution = distribution_of(ordered, normalize)
    check_scorers(names, distribution)
    groups = groups_of_tests(wanted)
    try:
        view = view_of(ordered, distribution, names, ks=recall_ks(wanted), device=device)
        primary = primary_of(view.confidences)
        ranked = bool(primary) or "retrieval" in groups
        if not ranked:  # free confidences are not worth a ranking that nobody asked for
            groups.discard("risk")
        rows = [row for row in run_battery(view, load_tests(groups)) if is_wanted(row["metric"], wanted)]
    except ValueError as error:
        raise BadInput(str(error)) from None
    values = {name: view.query_values(name) if ranked else {} for name in names}
    retrieval = {name: view.retrieval_confidences(name) if ranked else {} for name in names}
    queries = torch.from_numpy(ordered.is_query).nonzero().squeeze(1)
    return Scored(tuple(rows), ordered, queries, values, dict(view.confidences), retrieval, primary)


def tidy(scored: Scored, name: str = "") -> pd.DataFrame:
    """Make the tidy table of results, as in ``metrics.csv``; the name of the set is in the column ``method``."""
    constant = {
        "protocol": "score",
        "method": name,
        "trials": 0,
        "dim": scored.given.embeddings.shape[1],
        "seed": 0,
        "split": "test",
        "unit": scored.given.digest(),
    }
    empty: dict[str, object] = dict.fromkeys(COLUMNS, "")
    frame = pd.DataFrame([{**empty, **constant, **item} for item in scored.rows], columns=list(COLUMNS))
    return frame.astype({"value": float, "fraction": float})
