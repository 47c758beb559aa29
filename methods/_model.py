"""Network that every method trains: backbone, mean head, spread head and objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import PARTS, Method, no_grad_parameters
from .confidence import classifier_confidences, norm_confidence
from .heads import MeanHead


class Embedding(NamedTuple):
    """A batch of embeddings: the raw mean-head output ``[B, D]`` and the distribution made from it."""

    raw: Tensor
    distribution: Distribution


class NonFiniteEmbeddings(ValueError):
    """Embeddings of a network that has diverged: some are infinite or not a number."""


class EmbeddingModel(nn.Module):
    """Backbone, heads and objective of one method.

    Args:
        method: Method with its parameters.
        backbone: Module ``images -> [B, F]`` with an ``out_features`` attribute.
        num_classes: Number of training classes.
        dim: Embedding size.
        base_objective: Objective of the trained base (two-stage methods); it is kept, frozen, because it gives the
            classifier confidences of the base and some methods train towards its class weights.
        seed: Called with the name of each part before it is made, so that a part starts the same whatever others a
            method has.
    """

    def __init__(
        self,
        method: Method,
        backbone: nn.Module,
        num_classes: int,
        dim: int,
        base_objective: nn.Module | None = None,
        seed: Callable[[str], None] = lambda part: None,
    ) -> None:
        super().__init__()
        self.method = method
        self.backbone = backbone
        self.precision = torch.float32
        features = int(backbone.out_features)  # type: ignore[arg-type]
        seed("mean")
        self.mean = MeanHead(features, dim)
        seed("spread")
        self.spread = method.spread_head(features, dim)
        self.base_objective = base_objective
        seed("objective")
        self.objective = method.objective(num_classes, dim, base_objective)
        for part in self._frozen_parts():
            no_grad_parameters(part)

    def _frozen_parts(self) -> list[nn.Module]:
        parts = {
            "backbone": self.backbone,
            "mean": self.mean,
            "spread": self.spread,
            "objective": self.objective,
        }
        frozen = [part for name in PARTS if name not in self.method.trained_parts and (part := parts[name]) is not None]
        return frozen + ([self.base_objective] if self.base_objective is not None else [])

    def train(self, mode: bool = True) -> EmbeddingModel:
        """Set training mode; frozen parts stay in evaluation mode, so their batch-norm statistics never move."""
        super().train(mode)
        for part in self._frozen_parts():
            part.eval()
        return self

    @property
    def backbone_frozen(self) -> bool:
        """True if the backbone is not trained, so that its features can be computed once and reused."""
        return "backbone" not in self.method.trained_parts

    def features(self, images: Tensor) -> Tensor:
        """Pooled features ``[B, F]`` of images ``[B, C, H, W]``; in training, those of :attr:`precision`."""
        lower = self.training and self.precision != torch.float32
        with torch.autocast(images.device.type, self.precision if lower else None, enabled=lower):
            features: Tensor = self.backbone(images)
        return features

    def embed_features(self, features: Tensor) -> Embedding:
        """Embeddings from pooled features ``[B, F]``.

        Raises:
            NonFiniteEmbeddings: If the distribution refuses them because they are not finite.
        """
        # Distribution parameters and losses are float32 whatever precision the backbone ran in.
        features = features.float()
        raw = self.mean(features)
        spread = None if self.spread is None else self.spread(features)
        try:
            return Embedding(raw, self.method.distribution(raw, spread))
        except ValueError as error:
            bad = ~torch.isfinite(raw if spread is None else torch.cat([raw, spread.flatten(1)], 1)).all(1)
            if not bool(bad.any()):
                raise
            raise NonFiniteEmbeddings(f"{int(bad.sum())} of {len(bad)} embeddings are not finite") from error

    def forward(self, images: Tensor) -> Embedding:
        """Embeddings from images ``[B, C, H, W]``."""
        return self.embed_features(self.features(images))

    def scorer_options(self) -> dict[str, float]:
        """Trained parameters of the method's scorer, such as HIB's scale and bias."""
        options = getattr(self.objective, "scorer_options", None)
        return {} if options is None else dict(options())

    @torch.no_grad()
    def confidences(self, embedding: Embedding) -> dict[str, Tensor]:
        """All confidences of the model by name, each ``[B]``."""
        own = self.method.confidence(embedding.distribution)
        classifier = self.objective if hasattr(self.objective, "class_cosines") else self.base_objective
        result = {} if own is None else {"method": own}
        return (
            result
            | {"norm": norm_confidence(embedding.raw)}
            | classifier_confidences(classifier, embedding.distribution)
        )
