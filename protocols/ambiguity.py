"""Regret of a confidence: how much worse it is than an observer who knows how ambiguous every image is.

It needs images whose posterior is known, because they were made through a known channel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .confidence import augrc, combined_confidences
from .declare import test
from .embeddings import Embeddings
from .quality import label_entropy, spearman
from .ranking import Ranking
from .rows import OBSERVER, OBSERVER_IMAGE, Row, row


def answer_probability(posterior: Tensor, labels: Tensor, ranking: Ranking) -> Tensor:
    """Probability that the answer to each query, the class of its nearest neighbour, is right, float64 ``[Q]``.

    It is the posterior of that class, of which ``posterior`` has ``[Q, C]`` and labels are numbered likewise; if
    several images are tied for the nearest place, the mean over them. No confidence has a lower expected AUGRC for
    these answers: given the order of the queries, AUGRC is a sum of their risks with weights that fall from the first
    to the last, and such a sum is lowest if the expected risks ascend. A ranking that does not reach the last tie is a
    ValueError.

    Example:
        >>> from .ranking import ScoreMatrix, rank
        >>> labels = torch.tensor([0, 0, 1])
        >>> scores = torch.tensor([[9.0, 2.0, 2.0], [2.0, 9.0, 0.0], [1.0, 0.0, 9.0]])
        >>> posterior = torch.tensor([[0.8, 0.2], [0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
        >>> answer_probability(posterior, labels, rank(ScoreMatrix(scores), labels, depth=2)).tolist()
        [0.5, 0.9, 0.4]
    """
    nearest = (ranking.group == 0) & (ranking.neighbours >= 0)
    if bool((nearest[:, -1] & (ranking.beyond > 0)).any()):
        raise ValueError(f"more than {ranking.depth} images are tied for the nearest place; rank the whole gallery")
    answers = labels[ranking.neighbours.long().clamp_min(0)]
    probability: Tensor = torch.where(nearest, posterior.gather(1, answers), 0.0).sum(1) / nearest.sum(1)
    return probability


@test(group="ambiguity", per="own scorer", needs=("posterior",), clean_only=True, version=2)
def ambiguity(view: Embeddings, scorer: str) -> Iterator[Row]:
    """AUGRC of every confidence minus that of an observer who knows the posterior, and correlations with its entropy.

    The risk is 1 - Recall@1. The ``observer`` knows the model's answer, too: its confidence is the probability that
    this answer is right, which no other confidence beats in expectation. The ``observer_image`` does not know the
    answer: its confidence is the largest probability of a class. It is judged as all others are.

    The metric is ``observer_augrc``, the AUGRC of the observer; ``augrc_regret``, for each image confidence, retrieval
    confidence, combination, the random control and ``observer_image``; or ``spearman_posterior_entropy``, the rank
    correlation of an image confidence with minus the entropy of the posterior, which is positive if images that leave
    their class open are less confident. Queries without a posterior are left out, and in the first two those without a
    positive.
    """
    if view.posterior is None:
        return
    every = view.once("posterior", view.posterior, shared=True)
    posterior = every[view.query_rows]
    known = ~posterior.isnan().any(1)
    values = view.query_values(scorer, view.options.risk_ks)["recall_at_1"]
    counted = known & ~values.isnan()
    if not bool(counted.any()):
        return
    yield from _regrets(view, scorer, posterior, 1.0 - values[counted], counted)
    certainty = -label_entropy(posterior[known])
    for name, confidence in view.confidences_of_queries().items():
        rho = spearman(confidence[known], certainty)
        yield row("spearman_posterior_entropy", rho, confidence=name, n_queries=len(certainty))


def _regrets(view: Embeddings, scorer: str, posterior: Tensor, risk: Tensor, counted: Tensor) -> Iterator[Row]:
    """AUGRC of the observer and regrets, of the queries that count, whose risks are given."""
    best = augrc(answer_probability(posterior, view.labels, _to_last_tie(view, scorer))[counted], risk)
    combined, gaps = combined_confidences(view, scorer)
    judged = {**view.confidences_of_queries(), **view.retrieval_confidences(scorer), **combined}
    judged[OBSERVER_IMAGE] = posterior.amax(1)
    same: dict[str, Any] = {"variant": "recall_at_1", "n_queries": len(risk)}
    same["n_lone"] = int(view.query_values(scorer, view.options.risk_ks)["recall_at_1"].isnan().sum())
    yield row("observer_augrc", best, confidence=OBSERVER, **same)
    for name, confidence in judged.items():
        excess = math.nan if name in gaps else augrc(confidence[counted], risk) - best
        yield row("augrc_regret", excess, confidence=name, **same)


def _to_last_tie(view: Embeddings, scorer: str) -> Ranking:
    """A ranking that contains all images that are tied for the nearest place: the usual one, unless many are."""
    ranking = view.ranking(scorer)
    if not bool(((ranking.group[:, -1] == 0) & (ranking.beyond > 0)).any()):
        return ranking
    return view.rank(scorer, len(view))
