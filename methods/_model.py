"""Network that every method trains, its confidences, and several trained networks taken together.

A network is a backbone, a mean head, a spread head and an objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import PARTS, Method, UnfitBase, no_grad_parameters
from .backbones.stages import Cut
from .distributions.normal import PointMass
from .heads import MeanHead


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
    logits, scale = class_cosines(distribution)
    largest = {"max_cosine": logits.amax(-1)}
    class_logits = getattr(objective, "class_logits", None)
    if class_logits is not None:
        logits, scale = class_logits(distribution), 1.0
    scales = torch.as_tensor(scale, dtype=torch.float64, device=logits.device).expand(len(logits), 1)
    rows = max(1, _CELLS // max(1, logits.shape[-1]))
    blocks = zip(logits.split(rows), scales.split(rows))
    parts = [confidences_of_classes(_log_probabilities(block, of_rows)) for block, of_rows in blocks]
    return largest | {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def classifies_points(method: type[Method]) -> bool:
    """Whether a method's classifier, if it has one, takes embeddings without a spread, or with that of a head."""
    try:
        classifier_confidences(method().objective(2, 8), PointMass(torch.ones(1, 8)))
    except Exception as error:  # others are of a plug-in; its training will say what is wrong with it
        return not isinstance(error, AssertionError | AttributeError)
    return True


_CELLS = 1 << 17
"""Logits that are turned into probabilities at a time: 1 MiB, which stays in the cache of a processor."""


def class_log_probabilities(objective: Any, distribution: Distribution) -> Tensor:
    """Log of the probabilities of the C training classes, float64 ``[B, C]``."""
    class_logits = getattr(objective, "class_logits", None)
    if class_logits is None:
        return _log_probabilities(*objective.class_cosines(distribution))
    return _log_probabilities(class_logits(distribution), 1.0)


def _log_probabilities(logits: Tensor, scale: float | Tensor) -> Tensor:
    # In float64, log-probabilities near 0 keep the order that float32 would round to ties at 1.
    return torch.log_softmax(scale * logits.double(), dim=-1)


def confidences_of_classes(log_p: Tensor) -> dict[str, Tensor]:
    """``max_probability`` and ``neg_entropy``, each ``[B]``, from log-probabilities of classes ``[B, C]``."""
    return {"max_probability": log_p.amax(-1), "neg_entropy": (log_p.exp() * log_p).sum(-1)}


def norm_confidence(raw: Tensor) -> Tensor:
    """Confidence from the norm: the Euclidean norm ``[B]`` of raw embeddings ``[B, D]`` before any normalisation."""
    return raw.square().sum(-1).sqrt()


def variance_confidence(variance: Tensor) -> Tensor:
    """Confidence from variances per dimension ``[B, D]``: the negative log of their mean, ``[B]``."""
    return -variance.mean(-1).log()


class Embedding(NamedTuple):
    """Embeddings of a batch of B images: raw outputs ``[B, D]`` of the mean head, and one batched distribution.

    That of a deterministic method is a point mass at the raw output.
    """

    raw: Tensor
    distribution: Distribution


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Let a GPU round float32 to 10 bits in convolutions and matrix products, or forbid it, for a while.

    By itself torch allows it in convolutions.
    """
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = allowed
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


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
        train_from: Stage of the backbone from which on it is trained (:class:`.Cut`); empty for all of it.

    Attributes:
        reads_maps: Whether its inputs are what enters that stage, instead of images.
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
        train_from: str = "",
    ) -> None:
        super().__init__()
        self.method = method
        self.cut = Cut(backbone, train_from) if train_from else None
        self.reads_maps = False
        self._freeze_backbone = freeze_backbone
        self.backbone = backbone
        self.precision, self.tf32 = torch.float32, False
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
        parts = [getattr(self, name) for name in PARTS if name not in self.trained_parts]
        parts += [self.base_objective, *([] if self.cut is None else self.cut.frozen)]
        return [part for part in parts if part is not None]

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
        """Pooled features ``[B, F]`` of images ``[B, C, H, W]``, or of maps if the attribute ``reads_maps`` is set.

        In training mode the backbone runs under autocast if the attribute ``precision`` is a dtype other than float32,
        and with TF32 if the attribute ``tf32`` is set.
        """
        lower = self.training and self.precision != torch.float32
        autocast = torch.autocast(images.device.type, self.precision if lower else None, enabled=lower)
        with autocast, tf32(self.training and self.tf32):
            features: Tensor = self.cut.features(images) if self.cut and self.reads_maps else self.backbone(images)
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
        result["norm"] = norm_confidence(embedding.raw)
        return result | classifier_confidences(classifier, embedding.distribution)


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

    members: Any  # torch forgets the class of modules in a list

    def __init__(self, method: EnsembleMethod, members: Sequence[EmbeddingModel]) -> None:
        super().__init__()
        self.method = method
        self.members = nn.ModuleList(members)
        if not all(hasattr(member.objective, "class_cosines") for member in members):
            raise TypeError(
                f"{method.name} needs a base with a classifier of the training classes; name one, such as"
                " --base norm_softmax"
            )

    def features(self, images: Tensor) -> Tensor:
        """Pooled features ``[B, M, F]`` of images ``[B, C, H, W]`` by the backbone of each member."""
        return torch.stack([member.features(images) for member in self.members], 1)

    def forward(self, images: Tensor) -> EnsembleEmbedding:
        """Embeddings of images ``[B, C, H, W]``."""
        return self.embed_features(self.features(images))

    def embed_features(self, features: Tensor) -> EnsembleEmbedding:
        """Embeddings of images from features ``[B, M, F]`` of each member, or ``[B, F]`` of the backbone of all."""
        each = features.unbind(1) if features.dim() == 3 else [features] * len(self.members)
        embeddings = [member.embed_features(own.contiguous()) for member, own in zip(self.members, each)]
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
        pairs = list(zip(self.members, embedding.members))
        each = [member.confidences(own) for member, own in pairs]
        log_p = torch.stack([class_log_probabilities(member.objective, own.distribution) for member, own in pairs])
        result = {"method": self.method.agreement(log_p)}
        result |= {name: torch.stack([of[name] for of in each]).mean(0) for name in ("norm", "max_cosine")}
        return result | confidences_of_classes(mean_log_probabilities(log_p))


def mean_log_probabilities(log_probabilities: Tensor) -> Tensor:
    """Log of the mean of the members' class probabilities, ``[B, C]``, from their logs ``[M, B, C]``."""
    return torch.logsumexp(log_probabilities, dim=0) - math.log(len(log_probabilities))
