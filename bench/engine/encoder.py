"""Encoders: networks that embed a folder of images, trained here or given as a backbone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from ..datasets.array_images import ArrayImages
from ..datasets.view import View
from ..errors import UserError, first_line
from ..methods._model import EmbeddingModel, NonFiniteEmbeddings
from ..methods.backbones.registry import (
    GIVEN,
    NoWeights,
    build_backbone,
    find_weights,
    full_name,
    images_of,
    poolings_of,
)
from ..methods.distributions.arrays import to_arrays
from ..seeds import seed_for
from ..site import Site
from ..store.files import file_sha256, sha256
from ..store.folder import RECORD, WEIGHTS
from ..store.hub import SCHEME, fetch
from ..store.records import DamagedRecord, TestRecord, TrainRecord
from .networks import backbone_features, default_confidence, embed, restored

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


def unit_folder(results: Path, unit: str) -> Path:
    """Folder of a training in a results folder, by its id or that of a test of it, or by the start of one.

    That of a training on the Hugging Face Hub, ``hf://ORG/NAME``, is downloaded.
    """
    if unit.startswith(SCHEME):
        return fetch(unit)
    matching: dict[Path, None] = {}
    prefix = "".join(c for c in unit if c in "0123456789abcdef")
    if not unit or prefix != unit:
        raise UserError(f"--run {unit!r} is not a unit id; the column `unit` of {results / 'metrics.csv'} has them")
    for path in sorted(results.glob(f"*/*/*/train-{unit}*")):
        matching[path] = None
    for path in sorted(results.glob(f"*/*/*/test-{unit}*")):
        with contextlib.suppress(OSError, DamagedRecord):
            record = TestRecord.from_json((path / RECORD).read_bytes())
            trained = path.parent.with_name(record.trained_cell.method)
            matching |= {trained / f"train-{name}": None for name in record.spec.train}
    if not matching:
        raise UserError(f"no unit {unit} in {results}; the column `unit` of {results / 'metrics.csv'} has the ids")
    if len(matching) > 1:
        names = ", ".join(f"{path.parent.name}/{path.name}" for path in list(matching)[:3])
        raise UserError(f"--run {unit} names {len(matching)} units ({names}, ..); name one of them")
    return next(iter(matching))


def checkpoint_folder(checkpoint: Path) -> Path:
    """Folder of the training that a file of trained weights belongs to, with its record next to it."""
    if not checkpoint.is_file():
        raise UserError(f"--checkpoint {checkpoint}: no such file")
    if checkpoint.name != WEIGHTS or not (checkpoint.parent / RECORD).exists():
        raise UserError(
            f"--checkpoint {checkpoint} is not the {WEIGHTS} of a trained unit with its {RECORD} next to it; for"
            " weights of a backbone alone, use --backbone NAME --weights FILE"
        )
    return checkpoint.parent


def trained_network(folder: Path, site: Site) -> tuple[TrainRecord, EmbeddingModel]:
    """Record and network of a finished training, whose weights must be those of the record."""
    try:
        record = TrainRecord.from_json((folder / RECORD).read_bytes())
    except (OSError, DamagedRecord) as error:
        reason = first_line(error)
        raise UserError(f"{folder} is not a finished training ({reason}); `bench status` shows what exists") from None
    if not (folder / WEIGHTS).exists():
        raise UserError(f"{folder} has no {WEIGHTS}: tuning trials keep none; name a unit of the final seeds")
    if file_sha256(folder / WEIGHTS) != record.files.get(WEIGHTS):
        raise UserError(f"{folder / WEIGHTS} is damaged: {RECORD} has another SHA-256; the same command makes it again")
    return record, restored(record, folder / WEIGHTS, site)


def trained_unit(folder: Path, site: Site) -> Encoder:
    """Encoder of images: the network of a finished training with its weights, and how it takes images."""
    record, model = trained_network(folder, site)

    def run(load: Load, count: int) -> dict[str, np.ndarray]:
        try:
            distribution, confidences = embed(model, load, count, site.device)
        except NonFiniteEmbeddings as error:
            raise UserError(f"{folder}: {error}; embed with another unit") from error
        parameters = to_arrays(distribution)[1]
        default = default_confidence(model.method, confidences)
        arrays = {"embeddings": parameters.pop("loc"), **parameters}
        if "variance" in arrays and not torch.allclose(arrays["embeddings"].norm(dim=-1), torch.ones(()), atol=1e-3):
            # The variance belongs to these embeddings; with unit ones it would be another distribution.
            arrays["normalize"] = torch.tensor(False)
        # The method's own follows from a variance or a concentration.
        if default != "method" or not {"variance", "concentration"} & arrays.keys():
            arrays["confidence"] = confidences[default]
        return {key: value.numpy() for key, value in arrays.items()}

    if record.spec.photographs:
        return Encoder(View(**record.spec.photographs), run)
    return Encoder(View(cache=False, upright=True), run, _small_images(record.spec.dataset, site))


def _small_images(name: str, site: Site) -> Callable[[Tensor], Tensor]:
    """Conversion of a photograph to an image of an embedded data set."""
    from torchvision.transforms.v2 import functional as F

    dataset = site.dataset(name)
    sample = dataset.test()
    if not isinstance(sample, ArrayImages) or dataset.input_channels not in (1, 3):
        raise UserError(f"the unit was trained on {name!r}, whose images cannot be made from files")
    mean, std = (torch.tensor(values)[:, None, None] for values in (sample.mean, sample.std))

    def convert(image: Tensor) -> Tensor:
        grey = F.rgb_to_grayscale(image) if dataset.input_channels == 1 else image
        resized: Tensor = F.resize(grey, list(dataset.image_size), antialias=True)
        return (resized.float() / 255 - mean) / std

    return convert


def bare_backbone(
    name: str, weights: str | None, device: str, image_size: int | None = None, pooling: str | None = None
) -> Encoder:
    """Encoder of images: a backbone alone, whose pooled features are the embeddings.

    ``weights`` is a file, ``none`` for random ones, ``download`` for the network's own, downloaded if they are not on
    this machine, or None for those that are. Images are made as in the network's training, at its size unless another
    is given, and pooled as is usual for it.
    """
    if weights not in (None, "none", "download") and not Path(str(weights)).is_file():
        raise UserError(f"--weights {weights}: no such file")
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
    digest = sha256(save({key: value.cpu().contiguous() for key, value in network.state_dict().items()}))
    held = "random weights" if path is None else f"weights sha256:{file_sha256(path)[:8]}"
    about = f"{name}, {held}, {pooling or known[0]} pooling, {size} x {size} pixels, {own.interpolation} {fit}"
    return Encoder(view, run, None, about, digest)
