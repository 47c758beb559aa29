"""Networks of a unit: building, saving and loading them, embedding images, and their default confidence."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.distributions import Distribution

from ..methods._base import Method
from ..methods._model import EmbeddingModel, EnsembleMethod, EnsembleModel, NonFiniteEmbeddings, tf32
from ..methods.backbones.registry import build_backbone, find_weights
from ..methods.distributions.arrays import from_arrays, to_arrays
from ..protocols.recipes._base import Optim
from ..seeds import seed_for, seed_generators
from ..site import Site
from ..store.files import sha256
from ..store.folder import WEIGHTS, checked_training
from ..store.records import TrainRecord
from ..store.specs import Cell, TrainSpec
from .running import Running, in_chunks

CHUNK = 256
"""Images are embedded in chunks of exactly this size, the last one padded: a matrix product may round a row
differently in a product of another size, and a benchmark's values must not depend on batch sizes."""

PIXELS, LEAST = 1 << 20, 16
"""Pixels that pass through a backbone together on a CPU, and the least number of images: 256 of 64 x 64, 16 of 224 x
224. More need more memory and save nothing, fewer round differently (docs/measurements.md)."""


def at_once(images: Tensor, size: int) -> int:
    """How many of a chunk of ``size`` images ``[B, C, H, W]`` pass through a backbone together: a power of two.

    It depends on their pixels alone, so that no value depends on how many images there are.
    """
    if images.dim() != 4 or images.device.type != "cpu":
        return size
    few = max(LEAST, PIXELS // (images.shape[-2] * images.shape[-1]))
    return min(size, 1 << (few.bit_length() - 1))


def features_of(network: Callable[[Tensor], Tensor], images: Tensor, size: int) -> Tensor:
    """Features of a chunk of up to ``size`` images, few of which pass through the network at a time."""
    few = at_once(images, size)
    with tf32(False):
        return torch.cat([network(_padded(part, few))[: len(part)] for part in images.split(few)])


def build_model(spec: TrainSpec, site: Site, num_classes: int, channels: int) -> EmbeddingModel:
    """Network of a training at its initial weights.

    Each part has a seed of its own. Parts that two methods share (backbone, mean head) start equal for equal data set
    and replicate (seed number).
    """
    method = site.method(spec.method, spec.params)

    def seeded(part: str) -> None:
        seed_generators(seed_for("init", spec.dataset, spec.replicate, part))

    seeded("backbone")
    backbone = starting_backbone(spec, site, channels)
    base_objective = None
    if spec.base is not None:
        base_objective = site.method(spec.base.method, spec.base.params).objective(num_classes, spec.dim)
    model = EmbeddingModel(
        method, backbone, num_classes, spec.dim, base_objective, seeded, bool(spec.frozen), spec.train_from
    )
    model.to(site.device)
    return model.to(memory_format=torch.channels_last)


def prepare_steps(model: EmbeddingModel, optim: Optim) -> None:
    """Give a network the precision that it trains in, and compile its backbone if that is asked for."""
    model.tf32 = optim.precision == "tf32"
    model.precision = torch.float32 if model.tf32 else getattr(torch, optim.precision)
    if optim.compile:
        # Compiled kernels are to be deterministic if the others are.
        torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=True)
        model.backbone.compile()


def starting_backbone(spec: TrainSpec, site: Site, channels: int) -> nn.Module:
    """Backbone of a training at its starting weights."""
    batches, size = spec.batches, spec.view.get("image_size")
    weights = find_weights(spec.backbone, site.weights)
    return build_backbone(spec.backbone, channels, weights, batches.freeze_norm, batches.pooling, size)


def load_base(model: EmbeddingModel, weights: Path) -> None:
    """Copy the weights of a trained base (backbone, mean head and objective) into a two-stage model."""
    state = load_file(weights)
    wanted = {}
    for key, value in state.items():
        part, _, rest = key.partition(".")
        if part in ("backbone", "mean"):
            wanted[key] = value
        elif part == "objective":
            wanted[f"base_objective.{rest}"] = value
    missing, unexpected = model.load_state_dict(wanted, strict=False)
    lost = [key for key in missing if key.split(".")[0] in ("backbone", "mean", "base_objective")]
    if unexpected or lost:
        raise ValueError(f"base weights do not fit: missing {lost}, unexpected {unexpected}")


def state_sha256(network: nn.Module) -> str:
    """SHA-256 of the weights and buffers of a network."""
    return sha256(save({name: value.cpu().contiguous() for name, value in network.state_dict().items()}))


def open_training(folder: Path, site: Site) -> tuple[EmbeddingModel, TrainRecord]:
    """Network of the training in a folder in evaluation mode, and its record; its weights are checked."""
    record = checked_training(folder)
    # The starting weights of the backbone are overwritten: --weights may be gone by now.
    bare = site.model_copy(update={"weights": "none"})
    model = build_model(record.spec, bare, record.num_classes, record.channels)
    model.load_state_dict(load_file(folder / WEIGHTS))
    return model.eval(), record


def load_model(cell: Cell, unit: str, site: Site) -> tuple[EmbeddingModel, TrainRecord]:
    """Network of a finished training in evaluation mode, and the record of the training."""
    return open_training(site.store.unit_dir(cell, "train", unit), site)


def load_ensemble(method: str, members: Cell, units: Sequence[str], site: Site) -> tuple[EnsembleModel, TrainRecord]:
    """Network of an ensemble in evaluation mode, and the record of its first member's training."""
    loaded = [load_model(members, unit, site) for unit in units]
    own = site.method(method, {})
    assert isinstance(own, EnsembleMethod)
    return EnsembleModel(own, [model for model, _ in loaded]).eval(), loaded[0][1]


def _padded(inputs: Tensor, chunk: int) -> Tensor:
    """Inputs ``[B, ..]`` with zeros up to ``chunk``; images channels last in memory."""
    if len(inputs) < chunk:
        inputs = torch.cat([inputs, inputs.new_zeros(chunk - len(inputs), *inputs.shape[1:])])
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs


@torch.no_grad()
def backbone_features(
    backbone: nn.Module,
    load: Callable[[Tensor], Tensor],
    count: int,
    device: str,
    chunk: int = CHUNK,
    running: Running | None = None,
    step: str = "features",
) -> Tensor:
    """Pooled features of a backbone, ``[N, F]`` on the CPU, equal to the last bit to those inside :func:`embed`.

    ``load`` and ``chunk`` are those of :func:`embed`, and memory is treated alike.
    """

    def work(rows: Tensor, size: int) -> Tensor:
        return features_of(backbone, load(rows).to(device), size).cpu()

    return torch.cat(in_chunks(count, chunk, work, running or Running(), step))


@torch.no_grad()
def embed(
    model: EmbeddingModel | EnsembleModel,
    load: Callable[[Tensor], Tensor],
    count: int,
    device: str,
    chunk: int = CHUNK,
    features: bool = False,
    running: Running | None = None,
    step: str = "embedding",
    confident: bool = True,
) -> tuple[Distribution, dict[str, Tensor]]:
    """Embed N images: one distribution of batch shape ``[N]``, and every confidence by name, each ``[N]``; on the CPU.

    Args:
        model: The network.
        load: Function from row numbers ``[B]`` to images ``[B, C, H, W]``, as :meth:`.ImageSet.normalised` gives them.
        count: Number of images N.
        device: Where the network is.
        chunk: Images per pass through the heads, a short last chunk padded to it; the backbone sees few at a time.
        features: ``load`` gives pooled features ``[B, F]`` instead, those of :func:`backbone_features`.
        running: Progress of the training or test that this belongs to.
        step: Name of the work.
        confident: Whether confidences are computed, those of the training classes included.

    Raises:
        OutOfMemory: If memory runs out with a single image; with more, they are embedded in smaller chunks.
    """
    network: Any = model.eval()  # each kind takes its own kind of embedding
    kinds: set[str] = set()
    # Filled in place: small results that are kept between the large ones of chunks keep their memory from being reused.
    held: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})

    def work(rows: Tensor, size: int) -> None:
        inputs = load(rows).to(device)
        given = inputs if features else features_of(network.features, inputs, size)
        embedding = network.embed_features(_padded(given, size))
        kind, arrays = to_arrays(embedding.distribution)
        kinds.add(kind)
        for into, found in zip(held, (arrays, network.confidences(embedding) if confident else {})):
            for name, value in found.items():
                if name not in into:
                    into[name] = torch.empty(count, *value.shape[1:], dtype=value.dtype)
                into[name][rows] = value[: len(rows)].cpu()

    in_chunks(count, chunk, work, running or Running(), step)
    return from_arrays(kinds.pop(), held[0]), held[1]


def check_finite(distribution: Distribution, confidences: Mapping[str, Tensor]) -> None:
    """Refuse embeddings with a number that is not finite, or a confidence that is not a number (it may be infinite)."""
    bad = {
        f"embeddings ({name})": ~torch.isfinite(value.flatten(1) if value.dim() > 1 else value[:, None]).all(1)
        for name, value in to_arrays(distribution)[1].items()
    }
    bad |= {f"confidences ({name})": torch.isnan(value) for name, value in confidences.items()}
    for what, rows in bad.items():
        if bool(rows.any()):
            raise NonFiniteEmbeddings(f"{int(rows.sum())} of {len(rows)} {what} are not finite")


def default_confidence(method: Method, names: Container[str], of_deterministic: str = "") -> str:
    """Name of the confidence that speaks for a method if only one is shown.

    It is the default one of the method, or for a deterministic method the one that a preset asks for. If the model does
    not have it, because the objective of a plug-in is not a classifier, say, it is the norm, which every embedding has.
    """
    if not method.probabilistic and of_deterministic in names:
        return of_deterministic
    return method.default_confidence if method.default_confidence in names else "norm"
