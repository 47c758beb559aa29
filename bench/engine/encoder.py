"""Encoders: networks that embed a folder of images, trained here or given as a backbone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..datasets.view import View
from ..errors import UserError, first_line, no_such
from ..methods.backbones.registry import (
    GIVEN,
    NoWeights,
    build_backbone,
    find_weights,
    full_name,
    images_of,
    poolings_of,
)
from ..seeds import seed_for
from ..store.files import file_sha256
from ..store.folder import RECORD, WEIGHTS
from .networks import backbone_features, state_sha256
from .trained import Network, SmallTransform

Load = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Encoder:
    """A network that embeds images, and how the images must be prepared for it.

    Attributes:
        view: How photographs are read (resolution, crop); with ``small``, only used to check them for damage.
        run: Function of a function from row numbers ``[B]`` to images, and of their number N; it returns the arrays of
            an embedding file by name.
        about: Sentence about a backbone: name, weights, pooling and image size; empty for a trained unit.
        digest: SHA-256 of its weights.
        small: Converts a decoded photograph to the input of a network that was trained on small images held in memory;
            None for a network that takes photographs.
    """

    view: View
    run: Callable[[Load, int], dict[str, np.ndarray]]
    small: Callable[[Tensor], Tensor] | None = None
    about: str = ""
    digest: str = ""


def checkpoint_folder(checkpoint: Path) -> Path:
    """Folder of the training that a file of trained weights belongs to, with its record next to it."""
    if not checkpoint.is_file():
        raise UserError(f"--checkpoint {checkpoint}: {no_such(checkpoint)}")
    if checkpoint.name != WEIGHTS or not (checkpoint.parent / RECORD).exists():
        raise UserError(
            f"--checkpoint {checkpoint} is not the {WEIGHTS} of a trained unit with its {RECORD} next to it; for"
            " weights of a backbone alone, use --backbone NAME --weights FILE"
        )
    return checkpoint.parent


def trained_unit(network: Network) -> Encoder:
    """Encoder of images: a trained network, and how it takes images."""

    def run(load: Load, count: int) -> dict[str, np.ndarray]:
        embedded = network.embed_rows(load, count)
        spread = {"variance": embedded.variance, "concentration": embedded.concentration}
        arrays = {name: value for name, value in spread.items() if value is not None} | embedded.parameters
        if embedded.variance is not None and not np.allclose(np.linalg.norm(embedded.mean, axis=-1), 1.0, atol=1e-3):
            # The variance belongs to these embeddings; with unit ones it would be another distribution.
            arrays["normalize"] = np.array(False)
        # The method's own follows from a variance or a concentration.
        if embedded.default != "method" or not {"variance", "concentration"} & arrays.keys():
            arrays["confidence"] = embedded.confidence[embedded.default]
        return {"embeddings": embedded.mean, **arrays}

    small = network.transform if isinstance(network.transform, SmallTransform) else None
    return Encoder(network.view, run, small)


def bare_backbone(
    name: str, weights: str | None, device: str, image_size: int | None = None, pooling: str | None = None
) -> Encoder:
    """Encoder of images: a backbone alone, whose pooled features are the embeddings.

    ``weights`` is a file, ``none`` for random ones, ``download`` for the network's own, downloaded if they are not on
    this machine, or None for those that are. Images are made as in the network's training, at its size unless another
    is given, and pooled as is usual for it.
    """
    if weights not in (None, "none", "download") and not Path(str(weights)).is_file():
        raise UserError(f"--weights {weights}: {no_such(Path(str(weights)))}")
    try:
        if name == GIVEN:
            raise ValueError(f"{name} stands for the features of a data set, and is no network")
        name = full_name(name, weights)
        own = images_of(name)
        size = image_size or own.image_size
        known = poolings_of(name, 3, (size, size))
        if pooling is not None and pooling not in known:
            raise UserError(f"--pooling {pooling}: backbone {name} has {', '.join(known)}")
        path = find_weights(name, weights)
        torch.manual_seed(seed_for("embed", name))  # of weights that no file gives
        network = build_backbone(name, 3, path, pooling=pooling or known[0], image_size=size)
        network = network.to(device).to(memory_format=torch.channels_last).eval()
    except ValueError as error:
        option = "--weights" if isinstance(error, NoWeights) else "--backbone"
        raise UserError(first_line(error) if option in str(error) else f"{option}: {first_line(error)}") from None

    @torch.no_grad()
    def run(load: Load, count: int) -> dict[str, np.ndarray]:
        return {"embeddings": backbone_features(network, load, count, device).numpy()}

    fit = "squash" if own.squash else "crop"
    view = View(image_size=size, resize=int(size / own.crop), fit=fit, interpolation=own.interpolation, upright=True)
    held = f"{network.copy} weights sha256:{file_sha256(path)[:8]}" if path is not None else "random weights"
    about = f"{name}, {held}, {pooling or known[0]} pooling, {size} x {size} pixels, {own.interpolation} {fit}"
    return Encoder(view, run, None, about, state_sha256(network))
