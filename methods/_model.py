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
    """Embeddings of a batch of B images: raw outputs ``[B, D]`` of the mean head, and one batched distribution.

    That of a deterministic method is a point mass at the raw output.
    """

    raw: Tensor
    distribution: Distribution


class NonFiniteEmbeddings(ValueError):
    """Embeddings of a network that has diverged: some are infinite or not a number."""


class EmbeddingModel(nn.Module):
    """Network of one method: backbone, mean head, spread head (if any) and objective.

    Args:
        method: Method with its hyper-parameters.
        backbone: Module ``images -> [B, F]`` with an ``out_features`` attribute.
        num_classes: Number of training classes.
        dim: Embedding size.
        base_objective: Trained loss module of the base of a two-stage method, kept frozen; else None. Its class weights
            serve as a classifier for confidences, and as targets of the objective of some methods.
        seed: Function that sets the random state; called with ``mean``, ``spread`` and ``objective`` before each of
            these parts is made, so that a part starts the same whatever other parts a method has.
        freeze_backbone: Whether the backbone is not trained, whatever the method says.
    """

    def __init__(
        self,
        method: Method,
        backbone: nn.Module,
        num_classes: int,
        dim: int,
        base_objective: nn.Module | None = None,
        seed: Callable[[str], None] = lambda part: None,
        freeze_backbone: bool = False,
    ) -> None:
        super().__init__()
        self.method = method
        self._freeze_backbone = freeze_backbone
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
        frozen = [part for name in PARTS if name not in self.trained_parts and (part := parts[name]) is not None]
        return frozen + ([self.base_objective] if self.base_objective is not None else [])

    def train(self, mode: bool = True) -> EmbeddingModel:
        """Set training or evaluation mode; frozen parts stay in the latter, so their batch-norm statistics stay."""
        super().train(mode)
        for part in self._frozen_parts():
            part.eval()
        return self

    @property
    def trained_parts(self) -> tuple[str, ...]:
        """Names of the trained parts: those of the method, without a backbone that was frozen."""
        parts = self.method.trained_parts
        return tuple(part for part in parts if part != "backbone") if self._freeze_backbone else parts

    @property
    def backbone_frozen(self) -> bool:
        """True if the backbone is not trained, so that its features can be computed once and reused."""
        return "backbone" not in self.trained_parts

    def features(self, images: Tensor) -> Tensor:
        """Pooled features ``[B, F]`` of images ``[B, C, H, W]``.

        In training mode the backbone runs under autocast if the attribute ``precision`` is a dtype other than float32.
        """
        lower = self.training and self.precision != torch.float32
        with torch.autocast(images.device.type, self.precision if lower else None, enabled=lower):
            features: Tensor = self.backbone(images)
        return features

    def embed_features(self, features: Tensor) -> Embedding:
        """Embeddings of images from pooled features ``[B, F]``; heads with infinite or nan outputs are refused."""
        # Distribution parameters and losses are float32 whatever precision the backbone ran in.
        raw, spread = self.method.heads(self, features.float())
        try:
            return Embedding(raw, self.method.distribution(raw, spread))
        except ValueError as error:
            bad = ~torch.isfinite(raw if spread is None else torch.cat([raw, spread.flatten(1)], 1)).all(1)
            if not bool(bad.any()):
                raise
            raise NonFiniteEmbeddings(f"{int(bad.sum())} of {len(bad)} embeddings are not finite") from error

    def forward(self, images: Tensor) -> Embedding:
        """Embeddings of images ``[B, C, H, W]``."""
        return self.embed_features(self.features(images))

    def scorer_options(self) -> dict[str, float]:
        """Trained parameters of the scorer by name, such as HIB's ``scale`` and ``bias``; empty for most methods."""
        options = getattr(self.objective, "scorer_options", None)
        return {} if options is None else dict(options())

    @torch.no_grad()
    def confidences(self, embedding: Embedding) -> dict[str, Tensor]:
        """All confidences of a batch by name, each ``[B]`` and higher = more confident.

        They are ``method`` (the method's own, if it has one), ``norm`` (the norm of the raw embedding) and, from the
        classifier of the method's objective or else of its base, if there is one, ``max_cosine`` (largest cosine to a
        class weight), ``max_probability`` (log of the largest class probability) and ``neg_entropy`` (negative entropy
        of the class probabilities).
        """
        own = self.method.confidence(embedding.distribution)
        classifier = self.objective if hasattr(self.objective, "class_cosines") else self.base_objective
        result = {} if own is None else {"method": own}
        return (
            result
            | {"norm": norm_confidence(embedding.raw)}
            | classifier_confidences(classifier, embedding.distribution)
        )
