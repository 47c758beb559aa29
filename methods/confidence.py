"""Confidences that any embedding has, probabilistic or not; higher = more confident."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution


def classifier_confidences(objective: nn.Module | None, distribution: Distribution) -> dict[str, Tensor]:
    """Confidences of embeddings from the classifier of the training classes; test images may be of other classes.

    If the objective has ``class_cosines(distribution) -> ([B, C], scale)``, with the scale a number or ``[B, 1]``, its
    classifier is the softmax of the scaled cosines to its C class weights. If it also has ``class_logits(distribution)
    -> [B, C]``, these are the logits instead. The result is empty without ``class_cosines``, else it is ``max_cosine``
    (largest cosine to a class weight), ``max_probability`` (log of the largest class probability, without a margin) and
    ``neg_entropy`` (negative entropy of the class probabilities, nats), each ``[B]``.
    """
    class_cosines: Any = getattr(objective, "class_cosines", None)
    if class_cosines is None:
        return {}
    cosines, _ = class_cosines(distribution)
    largest = {"max_cosine": cosines.amax(-1)}
    return largest | confidences_of_classes(class_log_probabilities(objective, distribution))


def class_log_probabilities(objective: Any, distribution: Distribution) -> Tensor:
    """Log of the probabilities of the C training classes, float64 ``[B, C]``."""
    class_logits = getattr(objective, "class_logits", None)
    # In float64, log-probabilities near 0 keep the order that float32 would round to ties at 1.
    if class_logits is None:
        cosines, scale = objective.class_cosines(distribution)
        return torch.log_softmax(scale * cosines.double(), dim=-1)
    return torch.log_softmax(class_logits(distribution).double(), dim=-1)


def confidences_of_classes(log_p: Tensor) -> dict[str, Tensor]:
    """``max_probability`` and ``neg_entropy``, each ``[B]``, from log-probabilities of classes ``[B, C]``."""
    return {"max_probability": log_p.amax(-1), "neg_entropy": (log_p.exp() * log_p).sum(-1)}


def norm_confidence(raw: Tensor) -> Tensor:
    """Confidence from the norm: the Euclidean norm ``[B]`` of raw embeddings ``[B, D]`` before any normalisation."""
    return raw.square().sum(-1).sqrt()


def variance_confidence(variance: Tensor) -> Tensor:
    """Confidence from variances per dimension ``[B, D]``: the negative log of their mean, ``[B]``."""
    return -variance.mean(-1).log()
