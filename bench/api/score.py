"""``bench.score``: the tests of ``bench run`` on arrays or a file."""

from __future__ import annotations

import html
import warnings
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from torch import Tensor

from ..datasets.tables import holds_images
from ..report.operating import OperatingPoints
from ..report.per_query import JUDGED, query_frame
from ..report.scored import lines_of, scored_text, worth
from ..scoring.embedding_set import EmbeddingSet
from ..scoring.files import extended_by, read_set, set_of
from ..scoring.operate import operating_points
from ..scoring.score import Scored, score_set, tidy

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def score(
    embeddings: ArrayLike | Tensor | str | PathLike[str],
    labels: ArrayLike | Tensor | None = None,
    *,
    confidence: ArrayLike | Tensor | None = None,
    variance: ArrayLike | Tensor | None = None,
    concentration: ArrayLike | Tensor | None = None,
    quality: ArrayLike | Tensor | None = None,
    is_query: ArrayLike | Tensor | None = None,
    is_gallery: ArrayLike | Tensor | None = None,
    scorers: Sequence[str] = ("cosine",),
    metrics: Sequence[str] = ("recall", "map_at_r", "r_precision"),
    normalize: bool | None = None,
    groups: ArrayLike | None = None,
    ignore: ArrayLike | Tensor | None = None,
    train_embeddings: ArrayLike | Tensor | None = None,
    train_labels: ArrayLike | Tensor | None = None,
    set_up: ArrayLike | Tensor | None = None,
    unknown: ArrayLike | Tensor | str | PathLike[str] | None = None,
) -> Scores:
    """Score embeddings of labelled images: retrieval, and how well a confidence tells right answers from wrong ones.

    Each query ranks the full gallery, except the query itself. Tied scores count by the expectation over random orders
    of the ties, so that nothing depends on the order of the rows. Queries without another image of their class in
    the gallery are left out of the metrics of rankings; the column ``n_lone`` gives their number.

    Args:
        embeddings: Embeddings of N images, ``[N, D]``; or the path of a file of ``bench score``, which may contain all
            other arrays, too; or of a folder of photographs, a folder per class, which are embedded by a network that
            was not trained on them.
        labels: Their classes, ``[N]`` integers or texts; texts are numbered in alphabetical order.
        confidence: ``[N]``, any scale, higher = more confident. The table calls it ``given``.
        variance: Variance per dimension of a normal, in the space that is scored (that of the unit embeddings, if
            ``normalize``), ``[N]`` or ``[N, D]``, positive. The confidence ``method`` is
            minus the mean of the logarithms of an image's variances. Excludes ``concentration``.
        concentration: Concentration of a von Mises-Fisher, ``[N]``, not negative. The confidence ``method`` is
            its logarithm.
        quality: ``[N]``, known quality of the images, such as the side of a crop. The table then has its rank
            correlations with every confidence: metrics ``spearman_crop`` and ``kendall_crop``, variant ``quality``.
        is_query: Which images are queries, ``[N]`` booleans, or 0 and 1; all if not given.
        is_gallery: Which images are searched, ``[N]`` booleans, or 0 and 1; all if not given.
        scorers: Similarities to rank with (``bench list scorers``).
        metrics: Any of ``recall``, ``map_at_r``, ``r_precision``, ``precision_at_1``, ``map_at_1000``,
            ``verification``, ``retrieval_sets``, ``threshold_consistency``, ``clustering`` (such as NMI),
            ``structure`` (such as spectral decay and uniformity), ``discard`` (error versus discard of confidences),
            ``open_set`` (detection of queries of unknown classes), ``confidence_correlation``, or single metrics such
            as ``recall_at_16`` or ``nmi`` (``bench list metrics``). The verification threshold is chosen on half of the
            classes and tested on the other half (variant ``threshold_held_out_classes``).
        normalize: Whether to L2-normalise embeddings first; if not given, as the file says, otherwise yes.
        groups: Camera, burst, sequence or session of each image, ``[N]`` texts or integers. Images of a query's class
            and group are not in its gallery, and no positive pair of verification (as in re-identification).
        ignore: Images that count nowhere, neither as right nor as wrong, ``[N]`` booleans ("junk" images).
        train_embeddings: Embeddings ``[M, D]`` of the images that the network was trained on, for the free confidences
            ``knn_density``, ``mahalanobis``, ``relative_mahalanobis``, ``vmf_mixture`` and, of the ranking,
            ``posterior``, which are missing without. They are normalised for these, whatever ``normalize`` says.
        train_labels: Their classes, ``[M]`` integers or texts, numbered apart from ``labels``.
        set_up: Which images have the classes that choose the thresholds of ``operate()``, ``[N]`` booleans; a random
            half of the classes if not given.
        unknown: Embeddings ``[M, D]`` of images of classes that the gallery lacks, or a file of them: further queries
            of ``open_set``, which is then among the metrics.

    Returns:
        The scores: ``table`` has one value per row, ``summary()`` is what the command prints, ``verdicts`` judges every
        confidence, and ``queries`` says which queries fail. In a notebook the summary is shown.

    Raises:
        BadInput: A ``ValueError``, if arrays, scorers or metrics are wrong, in one line that says what to do.

    Example:
        >>> import bench
        >>> x = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]
        >>> scores = bench.score(x, [0, 0, 1, 1], metrics=["recall_at_1"])
        >>> table = scores.table
        >>> table[table["confidence"] == ""][["scorer", "metric", "value", "n_queries"]].values.tolist()
        [['cosine', 'recall_at_1', 1.0, 4]]
        >>> scores.queries["recall_at_1"].tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    given = {
        "labels": labels,
        "confidence": confidence,
        "variance": variance,
        "concentration": concentration,
        "quality": quality,
        "is_query": is_query,
        "is_gallery": is_gallery,
        "groups": groups,
        "ignore": ignore,
        "train_embeddings": train_embeddings,
        "train_labels": train_labels,
        "set_up": set_up,
    }
    given = {key: value for key, value in given.items() if value is not None}
    name = "embeddings"
    if isinstance(embeddings, str | PathLike):
        place = Path(embeddings)
        name = place.stem
        if place.is_dir() or holds_images(place):
            from ..commands.embed import embed_untrained  # networks take seconds to load

            images, by_file, notes = set_of(place, {**embed_untrained(place, "cpu"), **given}, [])
        else:
            images, by_file, notes = read_set(place, given)
    else:
        images, by_file = EmbeddingSet.of({"embeddings": embeddings, **given}), True
        notes = images.notes
    for note in notes:
        warnings.warn(note, stacklevel=3)  # past the check of arguments in `bench/__init__.py`
    how = by_file if normalize is None else normalize
    extended = None if unknown is None else extended_by(images, unknown)
    return Scores(score_set(images, scorers=scorers, metrics=metrics, normalize=how, unknown=extended), name)


class Scores:
    """Results of the tests of one set of embeddings."""

    def __init__(self, scored: Scored, name: str) -> None:
        self._scored = scored
        self._name = name

    @cached_property
    def table(self) -> pd.DataFrame:
        """Every value, a row each.

        The columns are those of ``metrics.csv``, the table that ``bench run`` writes: ``scorer``, ``confidence``,
        ``variant``, ``metric``, ``fraction`` (share of the images that was removed), ``value``, ``n_queries``,
        ``n_lone`` and columns that describe the experiment, most of which are empty here. If a metric of rankings is
        asked for, or there is a confidence, variance or concentration, the table also has ``aurc``, ``e_aurc``,
        ``augrc``, points of the risk-coverage curve and ``confidence_auroc`` of each confidence: those of the images
        (``given``, ``method``, ``norm`` of the raw embeddings), those of the ranking (``top1_score``, ``margin``,
        ``agreement``, ``spread``, ``consistency``), both together (such as ``norm+margin``), and the controls
        ``random`` and ``oracle``. With a confidence, variance or concentration, it has filter-out curves, too (metrics
        of the images left after the least confident are removed).
        """
        return tidy({"": self._scored})

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """Worth of every confidence, a row each and scorer.

        Columns are ``confidence``, ``kind`` (``image``, ``retrieval``, ``combined`` or ``control``), ``gain`` (MAP@R
        won over a random order as queries are removed), ``share`` of the best gain, ``half_removed`` (MAP@R without the
        least confident half), ``aurc``, ``e_aurc``, ``confidence_auroc`` (telling right first answers from wrong ones)
        and ``spearman`` (with the quality, if known). One set has no interval: two are compared with
        intervals by ``bench score FILE FILE2``.
        """
        return pd.DataFrame(worth(lines_of({"": self._scored}))).drop(columns="method", errors="ignore")

    @cached_property
    def queries(self) -> pd.DataFrame:
        """What is known of every query, a row each and scorer: which ones fail, and what confidences say of them.

        Columns are ``scorer``, ``row`` (position in the input), ``id`` (if there were ids), ``label`` (as given),
        ``recall_at_1``, ``average_precision`` (at R; nan without another image of the class in the gallery), and every
        confidence, as ``confidence.margin``. Empty if no metric of rankings was asked for.
        """
        scored, given = self._scored, self._scored.given
        labels = [given.classes[label] for label in given.labels] if given.classes else given.labels.tolist()
        by_scorer = {
            name: {**{metric: values[metric] for metric in JUDGED}, **scored.retrieval[name]}
            for name, values in scored.values.items()
            if values
        }
        frame = query_frame(given.ids, labels, scored.queries, scored.confidences, by_scorer)
        if frame.empty:
            return frame
        rows = given.embeddings.order[scored.queries.numpy()].tolist() * len(by_scorer)
        frame.insert(1, "row", rows)
        frame = frame if given.named else frame.drop(columns="id")
        return frame.sort_values(["scorer", "row"], ignore_index=True)

    def operate(self, *, risk: float = 0.05, far: float = 0.01, coverage: float = 0.8) -> OperatingPoints:
        """Thresholds from which on a pair, an answer or a query is accepted, and what they give on other classes.

        Half of the classes choose them, or those of ``set_up``; the others are reported.

        Args:
            risk: Wished share of wrong ones among the accepted answers, in (0, 1).
            far: Wished share of different pairs, and of unknown queries, that are accepted.
            coverage: Wished share of queries that are answered.

        Returns:
            The points: ``table`` has one in a row, ``document`` is what ``write(path)`` writes as ``operate.json``.

        Raises:
            BadInput: If a wish is no share, or the classes are too few.
        """
        return OperatingPoints(operating_points(self._scored, {"risk": risk, "far": far, "coverage": coverage}))

    def summary(self, width: int = 120) -> str:
        """The tables that ``bench score`` prints, as a text of lines of at most ``width`` characters."""
        return scored_text({self._name: self._scored}, (), width)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.summary())}</pre>"
