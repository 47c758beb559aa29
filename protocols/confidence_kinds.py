"""Kinds of confidences by their names in tables. Light: importing it loads no array library."""

from __future__ import annotations

from typing import Literal, get_args

CONTROLS = ("random", "oracle")
"""Names of the control confidences that every data set has."""

OWN = "method"
"""Name of the image confidence that a method learns, such as the negative log variance."""

FREE_IMAGE_CONFIDENCES = ("norm", "max_cosine", "max_probability", "neg_entropy")
"""Names of the image confidences that networks have without learning one, in the order of tables."""

RETRIEVAL_CONFIDENCES = ("top1_score", "margin", "agreement", "spread")
"""Names of the retrieval confidences, in the order of tables (:mod:`bench.protocols.retrieval_confidence`)."""

COMBINED = "+margin"
"""End of the name of an image confidence that is combined with the margin by the mean of their ranks."""

FITTED = "+margin_fitted"
"""End of the name of an image confidence that is combined with the margin by a logistic fit on validation classes."""

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
    return "combined" if confidence.endswith((COMBINED, FITTED)) else "image"
