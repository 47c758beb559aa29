"""Agreement of a confidence with people: does it fall if they disagree about the class?"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .declare import test
from .embeddings import Embeddings
from .quality import kendall, spearman
from .rows import Row, row


def label_entropy(probabilities: Tensor) -> Tensor:
    """Entropy of label distributions, in nats, float64 ``[N]`` in [0, log K]: how much people disagree about an image.

    Rows of ``[N, K]`` sum to 1 (within 1e-3; they are normalised), or are nan where an image has no distribution, and
    so is the entropy.

    Raises:
        ValueError: If a probability is negative, or a row does not sum to 1.

    Example:
        >>> label_entropy(torch.tensor([[0.0, 1.0], [0.5, 0.5]])).tolist()
        [0.0, 0.6931471805599453]
    """
    p = probabilities.double()
    if p.dim() != 2:
        raise ValueError(f"expected label distributions [N, K], got shape {list(p.shape)}")
    known = ~p.isnan().all(1)
    total = p.sum(1, keepdim=True)
    # Written so that a nan inside a row is an error too.
    if not bool(((p >= 0).all(1) & ((total.squeeze(1) - 1).abs() <= 1e-3))[known].all()):
        raise ValueError("label distributions must be non-negative and sum to 1")
    entropy: Tensor = torch.special.entr(p / total).sum(1)
    return entropy


@test(group="soft_labels", per="embeddings", needs=("soft_labels", "confidences"), clean_only=True)
def soft_labels(view: Embeddings) -> Iterator[Row]:
    """Rank correlations of every confidence with people's agreement on the class of an image.

    Agreement is the negative entropy of the label distribution that people gave: a correlation is positive if images on
    which people agree are more confident. Images without a distribution are left out.
    """
    if view.soft_labels is None:
        return
    entropy = label_entropy(view.soft_labels)
    known = ~entropy.isnan()
    agreement, count = -entropy[known], int(known.sum())
    if count == 0:
        return
    for name, values in view.confidences.items():
        rho, tau = spearman(values[known], agreement), kendall(values[known], agreement)
        yield row("spearman_human_entropy", rho, confidence=name, n_queries=count)
        yield row("kendall_human_entropy", tau, confidence=name, n_queries=count)
