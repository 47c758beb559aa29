"""``bench embed``: a folder of images into a file that ``bench score`` reads, by any network this project can build."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from .scoring.files import check_writable, write_embeddings
from .datasets import DataError
from .datasets.folder import images_below
from .datasets.photographs import PhotoImages, View, decode
from .engine.context import Context
from .engine.model import WEIGHTS, backbone_features, build_model, embed
from .errors import UserError
from .resources import cores
from .methods.backbones import build_backbone, check_backbone, find_weights
from .methods.distributions import to_arrays
from .progress import progress_bar
from .seeds import seed_for
from .store import RECORD, read_json

Load = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Encoder:
    """A network with the images it takes.

    Attributes:
        view: How photographs are read; with ``small``, only checked for damage.
        run: From ``load`` (rows to normalised images) and the number of images to the arrays of a file.
        small: From a decoded image to what a network for an embedded data set takes.
    """

    view: View
    run: Callable[[Load, int], dict[str, np.ndarray]]
    small: Callable[[Tensor], Tensor] | None = None


def embed_command(
    *,
    run: str | None,
    checkpoint: Path | None,
    backbone: str | None,
    weights: str | None,
    image_size: int | None,
    images: Path,
    out: Path,
    results: Path,
    device: str,
    plugins: tuple[Path, ...],
) -> str:
    """Embed a folder of images; returns what to tell the user.

    Raises:
        UserError: If the network or the images cannot be used; damaged images are named before anything is embedded.
    """
    if sum(value is not None for value in (run, checkpoint, backbone)) != 1:
        raise UserError("name one network: --run UNIT, --checkpoint FILE or --backbone NAME")
    if backbone is None and (weights is not None or image_size is not None):
        raise UserError("--weights and --image-size belong to --backbone; a trained unit has its own")
    check_writable(out)
    try:
        listing, labelled = images_below(images)
        if backbone is not None:
            encoder = _bare_backbone(backbone, weights, image_size, device)
        else:
            folder = _unit_folder(results, run) if run is not None else _checkpoint_folder(checkpoint)
            encoder = _trained_unit(folder, Context(str(results), tuple(map(str, plugins)), device=device))
        classes = {key: number for number, key in enumerate(sorted(listing.names))}
        labels = torch.tensor([classes[key] for key in listing.classes])
        paths = [Path(os.path.join(listing.folder, name)) for name in listing.ids]
        names = [listing.names[key] for key in classes]
        photographs = PhotoImages(paths, labels, listing.ids, names, view=encoder.view, threads=cores())
        with progress_bar(Console(stderr=True)) as advance:
            photographs.prepare(["evaluation"], advance)

            def load(rows: Tensor) -> Tensor:
                small = encoder.small
                if small is None:
                    made = photographs.evaluation(rows)
                else:
                    made = torch.stack([small(decode(paths[i])) for i in rows.tolist()])
                advance("embedding", int(rows[-1]) + 1, len(paths))
                return made

            arrays = encoder.run(load, len(paths))
    except DataError as error:
        raise UserError(str(error)) from None
    if labelled:
        arrays |= {"labels": labels.numpy(), "class_names": np.array(names)}
        if listing.parts[0]:
            arrays |= {
                f"is_{role}": np.array([part == role for part in listing.parts]) for role in ("query", "gallery")
            }
    arrays["ids"] = np.array(listing.ids)
    write_embeddings(out, arrays)
    what = ", ".join(f"{key} {list(value.shape)}" for key, value in arrays.items() if value.shape)
    then = f"`bench score {out}`" if labelled else "no labels (a flat folder): add labels [N] before `bench score`"
    return f"{len(paths)} images in {out}: {what}; {then}"


def _unit_folder(results: Path, unit: str) -> Path:
    """Folder of a training unit by its id or the start of it, or by those of a test of it."""
    found: dict[Path, None] = {}
    prefix = "".join(c for c in unit if c in "0123456789abcdef")
    if not unit or prefix != unit:
        raise UserError(f"--run {unit!r} is no unit id; the column `unit` of {results / 'metrics.csv'} has them")
    for path in sorted(results.glob(f"*/*/*/train-{unit}*")):
        found[path] = None
    for path in sorted(results.glob(f"*/*/*/test-{unit}*")):
        record = read_json(path / RECORD)
        if isinstance(record, dict):
            found |= {path.with_name(f"train-{name}"): None for name in record["spec"]["train"]}
    if not found:
        raise UserError(f"no unit {unit} in {results}; the column `unit` of {results / 'metrics.csv'} has the ids")
    if len(found) > 1:
        names = ", ".join(f"{path.parent.name}/{path.name}" for path in list(found)[:3])
        raise UserError(f"--run {unit} names {len(found)} units ({names}, ..); give more of the id")
    return next(iter(found))


def _checkpoint_folder(checkpoint: Path | None) -> Path:
    assert checkpoint is not None
    if not checkpoint.is_file():
        raise UserError(f"--checkpoint {checkpoint}: no such file")
    if checkpoint.name != WEIGHTS or not (checkpoint.parent / RECORD).exists():
        raise UserError(
            f"--checkpoint {checkpoint} is not the {WEIGHTS} of a trained unit with its {RECORD} beside it; for weights"
            " of a backbone alone, use --backbone NAME --weights FILE"
        )
    return checkpoint.parent


def _trained_unit(folder: Path, context: Context) -> Encoder:
    record = read_json(folder / RECORD)
    if not isinstance(record, dict) or not {"spec", "num_classes", "channels"} <= set(record):
        raise UserError(f"{folder} is not a finished training; `bench status` says what there is")
    if not (folder / WEIGHTS).exists():
        raise UserError(f"{folder} has no {WEIGHTS}: those of tuning trials are not kept; name one of the final seeds")
    spec = record["spec"]
    # Every weight comes from the unit's file.
    model = build_model(spec, dataclasses.replace(context, weights="none"), record["num_classes"], record["channels"])
    model.load_state_dict(load_file(folder / WEIGHTS))

    def run(load: Load, count: int) -> dict[str, np.ndarray]:
        distribution, confidences = embed(model, load, count, context.device)
        parameters = to_arrays(distribution)[1]
        default = model.method.default_confidence
        default = default if default in confidences else "norm"
        arrays = {"embeddings": parameters.pop("loc"), **parameters}
        if "variance" in arrays and not torch.allclose(arrays["embeddings"].norm(dim=-1), torch.ones(()), atol=1e-3):
            # The variance belongs to these embeddings; beside unit ones it would be another distribution.
            arrays["normalize"] = torch.tensor(False)
        if default != "method":  # that one follows from variance or concentration
            arrays["confidence"] = confidences[default]
        return {key: value.numpy() for key, value in arrays.items()}

    if spec["view"]:
        return Encoder(View(**spec["view"]), run)
    return Encoder(View(cache=False), run, _small_images(spec["dataset"], context))


def _small_images(name: str, context: Context) -> Callable[[Tensor], Tensor]:
    """What makes a photograph look like an image of an embedded data set."""
    from torchvision.transforms.v2 import functional as F

    dataset = context.dataset(name)
    sample: Any = dataset.test()
    if not hasattr(sample, "mean") or dataset.input_channels not in (1, 3):
        raise UserError(f"the unit was trained on {name!r}, whose images cannot be made from files")
    mean, std = (torch.tensor(values)[:, None, None] for values in (sample.mean, sample.std))

    def convert(image: Tensor) -> Tensor:
        grey = F.rgb_to_grayscale(image) if dataset.input_channels == 1 else image
        resized: Tensor = F.resize(grey, list(dataset.image_size), antialias=True)
        return (resized.float() / 255 - mean) / std

    return convert


def _bare_backbone(name: str, weights: str | None, image_size: int | None, device: str) -> Encoder:
    if weights not in (None, "none") and not Path(str(weights)).is_file():
        raise UserError(f"--weights {weights}: no such file")
    torch.manual_seed(seed_for("embed", name))  # of weights that no file gives
    try:
        check_backbone(name)
        network = build_backbone(name, 3, find_weights(name, weights)).to(device).eval()
    except ValueError as error:
        raise UserError(str(error)) from None
    body: Any = getattr(network, "body", None)
    config = getattr(getattr(body, "model", None), "pretrained_cfg", None) or {}
    size = image_size or int(config.get("input_size", (3, 224, 224))[-1])

    @torch.no_grad()
    def run(load: Load, count: int) -> dict[str, np.ndarray]:
        return {"embeddings": backbone_features(network, load, count, device).numpy()}

    return Encoder(View(image_size=size, resize=round(size * 256 / 224)), run)
