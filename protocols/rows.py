"""Tidy rows, one value of one metric each, and the names of the confidences that they are about.

Light: importing it loads no array library.
"""

from __future__ import annotations

from typing import Literal, get_args

from typing_extensions import TypedDict  # pydantic reads records with it, on 3.11 too

RERANKED = "reranked"
"""Variant of values that are computed as in the public code of "Probabilistic Embeddings Revisited" (PER).

See :mod:`bench.protocols.reranked`."""


class Row(TypedDict):
    """A row of a tidy table of results: one value of one metric.

    Attributes:
        scorer: Name of the scorer (similarity of embeddings) behind the value; empty if there is none.
        confidence: Name of the confidence that the value is about; empty if it is about none.
        variant: Text that distinguishes the value from others of the same metric, such as the choice of a threshold.
        metric: Name of the metric.
        fraction: Share of the images that was removed before (filter-out curves), if any was.
        value: The value; None or nan if it does not exist.
        n_queries: Number of queries (or images or pairs) that count.
        n_lone: Number of queries left out because they have no positive.
    """

    scorer: str
    confidence: str
    variant: str
    metric: str
    fraction: float | None
    value: float | None
    n_queries: int
    n_lone: int


class SplitRow(Row):
    """A row of a tidy table of results, with the split it is about.

    Attributes:
        split: ``test``, ``val``, ``train``, or ``test_NAME`` for test images under the corruption of that name.
    """

    split: str


def row(
    metric: str,
    value: float,
    *,
    scorer: str = "",
    confidence: str = "",
    variant: str = "",
    fraction: float | None = None,
    n_queries: int = 0,
    n_lone: int = 0,
) -> Row:
    """Build a row of a tidy table of results: one value of one metric.

    Args:
        metric: Name of the metric.
        value: A fraction in [0, 1], a correlation in [-1, 1], another number, or nan if the value does not exist.
        scorer: Name of the scorer (similarity of embeddings) that the value was computed with, if any.
        confidence: Name of the confidence that the value is about, if any.
        variant: Text that distinguishes the value from others of the same metric.
        fraction: Share of the images that was removed before, if any was.
        n_queries: Number of queries (or images or pairs) that count.
        n_lone: Number of queries left out because they have no positive.

    Example:
        >>> row("map_at_r", 0.5, scorer="cosine")["value"]
        0.5
    """
    return {
        "scorer": scorer,
        "confidence": confidence,
        "variant": variant,
        "metric": metric,
        "fraction": fraction,
        "value": value,
        "n_queries": n_queries,
        "n_lone": n_lone,
    }


CONTROLS = ("random", "oracle")
"""Names of the control confidences that every data set has."""

OWN = "method"
"""Name of the image confidence that a method learns, such as the negative log variance."""

FREE_IMAGE_CONFIDENCES = (
    "norm",
    "max_cosine",
    "max_probability",
    "neg_entropy",
    "knn_density",
    "mahalanobis",
    "relative_mahalanobis",
    "vmf_mixture",
    "mirror",
    "crops",
)
"""Names of the image confidences that networks have without learning one, in the order of tables."""

UNDRAWN = FREE_IMAGE_CONFIDENCES[4:]
"""Those of the training data and of views, which have no filter-out curves: they would be half of all values."""

RETRIEVAL_CONFIDENCES = (
    "top1_score",
    "margin",
    "agreement",
    "spread",
    "consistency",
    "posterior",
    "view_agreement",
)
"""Names of the retrieval confidences, in the order of tables (:mod:`bench.protocols.retrieval_confidence`)."""

COSTS = {
    **dict.fromkeys(FREE_IMAGE_CONFIDENCES[4:8], "training embeddings"),
    "mirror": "1 more pass",
    "crops": "2 more passes",
    "view_agreement": "the passes of views",
}
"""What free confidences need beyond the embedding of an image, its network and the ranking."""


def cost_of(confidence: str) -> str:
    """What a confidence, or the image confidence of a combined one, needs beyond the embedding; empty for most."""
    return COSTS.get(confidence.partition("+")[0], "")


COMBINED = "+margin"
"""End of the name of an image confidence that is combined with the margin by the mean of their ranks."""

MARGIN = COMBINED.removeprefix("+")
"""Name of the retrieval confidence that image confidences are combined with."""

FITTED_TO_MARGIN = "+margin_fitted"
"""End of the name of an image confidence that was fitted together with the margin alone, in records up to 2026-11."""

AGREEMENT = "agreement"
"""Name of the retrieval confidence that is combined with the margin, and with the margin and an image confidence."""

MARGIN_AND_AGREEMENT = f"{MARGIN}+{AGREEMENT}"
"""Name of the margin and the agreement, combined by a logistic fit on validation classes: it needs no learning."""

CHOSEN = "chosen"
"""Name of the confidence that validation images chose for a threshold; it may be another one in each model."""

FITTED = f"+{MARGIN_AND_AGREEMENT}"
"""End of the name of an image confidence that is combined with both by a logistic fit on validation classes."""

OBSERVER = "observer"
"""Name of the probability that an answer is right, for one who knows how the images were made."""

OBSERVER_IMAGE = "observer_image"
"""Name of the largest probability of a class, for one who knows how the images were made but not the answer."""

Kind = Literal["image", "retrieval", "combined", "control"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds in the order of tables."""


def kind_of(confidence: str) -> Kind:
    """Kind of a confidence by its name.

    An ``image`` confidence is known before there is a gallery. A ``retrieval`` confidence needs the ranking and the
    gallery's labels, never the query's own. A ``combined`` one is made of both. A ``control`` serves for comparison.
    """
    if confidence in (*CONTROLS, OBSERVER, OBSERVER_IMAGE):
        return "control"
    if confidence in RETRIEVAL_CONFIDENCES:
        return "retrieval"
    combined = confidence == CHOSEN or confidence.endswith((COMBINED, FITTED_TO_MARGIN, MARGIN_AND_AGREEMENT))
    return "combined" if combined else "image"
