"""Several trained models of one method taken together: their network, and the base class of methods that are such."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._base import Method, UnfitBase
from ._model import Embedding, EmbeddingModel
from .confidence import class_log_probabilities, confidences_of_classes
from .distributions.point import PointMass


class EnsembleMethod(Method):
    """Base class of methods that train nothing: they are the trained models of all seeds of a base, taken together.

    The embedding of an image is the members' unit vectors side by side, so that the cosine of two embeddings is the
    mean of the members' cosines. A subclass defines :meth:`agreement`.
    """

    on_base: ClassVar[bool] = True
    trains: ClassVar[tuple[str, ...]] = ()
    ensemble: ClassVar[bool] = True
    least_seeds: ClassVar[int] = 2
    default_confidence: ClassVar[str] = "method"

    @classmethod
    def check_base(cls, base: type[Method]) -> None:
        """Refuse a base without a classifier of the training classes."""
        if not hasattr(base().objective(2, 8), "class_cosines"):
            raise UnfitBase(
                f"{cls.name!r} needs a base with a classifier of the training classes; leave --base out for the"
                " recipe's"
            )

    @property
    def probabilistic(self) -> bool:
        """True: the members are draws from a distribution over networks, and with them the embeddings."""
        return True

    def agreement(self, log_probabilities: Tensor) -> Tensor:
        """Confidence ``[B]`` from what the members say about the training classes, log-probabilities ``[M, B, C]``."""
        raise TypeError(f"method {self.name!r} defines no agreement")


class EnsembleEmbedding(NamedTuple):
    """Embeddings of a batch of B images by each of M members, and together.

    The raw embeddings are side by side, ``[B, M D]``; the distribution is points, their unit vectors side by side,
    scaled to unit length.
    """

    raw: Tensor
    distribution: PointMass
    members: tuple[Embedding, ...]


class EnsembleModel(nn.Module):
    """Network of an ensemble: its trained members, which see the same images and have classifiers of equal classes."""

    def __init__(self, method: EnsembleMethod, members: Sequence[EmbeddingModel]) -> None:
        super().__init__()
        self.method = method
        self.members = nn.ModuleList(members)
        if not all(hasattr(member.objective, "class_cosines") for member in members):
            raise TypeError(
                f"{method.name} needs a base with a classifier of the training classes; name one, such as"
                " --base norm_softmax"
            )

    def forward(self, images: Tensor) -> EnsembleEmbedding:
        """Embeddings of images ``[B, C, H, W]``."""
        return self._side_by_side([member(images) for member in self.members])

    def embed_features(self, features: Tensor) -> EnsembleEmbedding:
        """Embeddings of images from their pooled features ``[B, F]``, for members that have the same backbone."""
        members: list[EmbeddingModel] = list(self.members)  # type: ignore[arg-type]
        return self._side_by_side([member.embed_features(features) for member in members])

    @staticmethod
    def _side_by_side(embeddings: Sequence[Embedding]) -> EnsembleEmbedding:
        directions = [F.normalize(embedding.distribution.mean, dim=-1) for embedding in embeddings]
        side_by_side = torch.cat(directions, dim=-1) / len(directions) ** 0.5
        raw = torch.cat([embedding.raw for embedding in embeddings], dim=-1)
        return EnsembleEmbedding(raw, PointMass(side_by_side), tuple(embeddings))

    def scorer_options(self) -> dict[str, float]:
        """Trained parameters of the scorer by name: none, since the cosine has none."""
        return {}

    @torch.no_grad()
    def confidences(self, embedding: EnsembleEmbedding) -> dict[str, Tensor]:
        """All confidences of a batch by name, each ``[B]`` and higher = more confident.

        They are ``method`` (agreement of the members), ``norm`` and ``max_cosine`` (means over the members), and
        ``max_probability`` and ``neg_entropy``, of the mean of the members' class probabilities.
        """
        members: list[EmbeddingModel] = list(self.members)  # type: ignore[arg-type]
        pairs = list(zip(members, embedding.members))
        each = [member.confidences(own) for member, own in pairs]
        log_p = torch.stack([class_log_probabilities(member.objective, own.distribution) for member, own in pairs])
        result = {"method": self.method.agreement(log_p)}
        result |= {name: torch.stack([of[name] for of in each]).mean(0) for name in ("norm", "max_cosine")}
        return result | confidences_of_classes(mean_log_probabilities(log_p))


def mean_log_probabilities(log_probabilities: Tensor) -> Tensor:
    """Log of the mean of the members' class probabilities, ``[B, C]``, from their logs ``[M, B, C]``."""
    return torch.logsumexp(log_probabilities, dim=0) - math.log(len(log_probabilities))
