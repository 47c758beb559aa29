"""Deep ensemble (Lakshminarayanan et al., NeurIPS 2017): the models of several seeds of a base, tested as one.

Members have different coordinate systems: a rotation of one member's space changes none of its cosines, but it changes
the variance of an image's vectors over the members. So the members are compared by what they say about the training
classes, which they have in common. With class probabilities p_m of member m and their mean p, confidences are

    neg_entropy = -H(p)                              the paper's, reported by default
    method      = -[H(p) - mean_m H(p_m)]            agreement: the negative mutual information of class and member
"""

from __future__ import annotations

from torch import Tensor

from ._base import Paper, register
from ._model import EnsembleMethod, mean_log_probabilities


def mutual_information(log_probabilities: Tensor) -> Tensor:
    """Mutual information ``[B]`` of class and member, in nats: mean KL divergence of the members from their mean."""
    mean = mean_log_probabilities(log_probabilities)
    divergence = (log_probabilities.exp() * (log_probabilities - mean)).sum(-1).mean(0)
    # Rounding can leave a negative number where members agree.
    return divergence.clamp_min(0.0)


@register
class DeepEnsemble(EnsembleMethod):
    """Deep ensemble (the seeds of a base model): unit vectors side by side, agreement about the training classes.

    It trains nothing: with ``--seeds 5`` it is one ensemble of the five models of the base, tested once.
    """

    name = "deep_ensemble"
    summary = "the base's models of all seeds as one: unit vectors side by side, agreement about training classes"
    paper = Paper(
        title="Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
        venue="NeurIPS 2017",
        arxiv="1612.01474",
        equations="section 2.4",
    )
    deviations = (
        "embeddings are the members' unit vectors side by side: cosines are averaged (the paper: class probabilities)",
        "the default confidence is the entropy of the mean probabilities, as in the paper; test classes are others",
        "LAM's code averages the members' embeddings and takes their variance, although members differ by rotations",
        "no adversarial training (the paper: optional)",
    )

    default_confidence = "neg_entropy"

    def agreement(self, log_probabilities: Tensor) -> Tensor:
        """Confidence ``[B]``: the negative mutual information of class and member, at most 0."""
        return -mutual_information(log_probabilities)
